"""The daemon of one mount: attach the pool, mount, serve until unmounted, detach.

One process for each mount. Its threads: the main one runs trio, and with the pyfuse3 transport
all requests (:mod:`belugafs.transport`); the direct transport has threads of its own for them;
the ticker calls the core's ``tick`` every 100 ms (heartbeat,
reclaiming, recency), and at the beginning one maps all of the pool. The ticker is a plain
thread, so that a busy event loop doesn't look like a dead host.

It ends

- when the kernel closes the connection: after ``umount``, or, after ``umount -l``, with the
  last open file, or when the connection is aborted;
- on SIGTERM, SIGINT or SIGHUP: unmounts lazily, so that no new file can be opened, gives open
  ones ``GRACE_S`` to be closed, and then cuts them off. A second signal does so at once.

In each case it then detaches the pool, which seals what is closed. Killed, it leaves what a
power cut would leave, only more: everything closed is in the pool, and the next mount heals.
"""

import contextlib
import ctypes
import errno
import functools
import logging
import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from logging.handlers import SysLogHandler, WatchedFileHandler
from pathlib import Path

import trio

from belugafs import _native, hostid, mounts
from belugafs.attach import attach, open_checked, revive
from belugafs.control import ControlDirectory
from belugafs.library import Library
from belugafs.options import MountOptions
from belugafs.pool import OpenPool
from belugafs.scrub import Scrubber
from belugafs.transport import Choice, Plan, Session, TransportError, choose, passthrough
from belugafs.transport.direct import DirectSession
from belugafs.transport.over_pyfuse3 import Pyfuse3Session, errno_of, is_late_reply

log = logging.getLogger("belugafs.daemon")

TICK_S = 0.1
GRACE_S = 5.0
CLAIM_WAIT_S = 5.0
_OOM_SCORE = -900
_PREFAULT_STEP_BYTES = 32 << 20

# mallopt(3): buffers of requests are reused rather than given back and faulted in again.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP_BYTES = 64 << 20


class MountError(Exception):
    """Mounting failed; the text says why and what to do."""


class Reporter:
    """How the daemon tells the command that started it how far it is. The base says nothing."""

    def stage(self, text: str) -> None:
        """What is being done now: the answer to "what does it hang in?"."""

    def note(self, text: str) -> None:
        """Something that is worse than it could be."""

    def ready(self) -> None:
        """Mounted and answering."""


def serve(pool_path: str, mount_point: str, options: MountOptions, report: Reporter) -> None:
    """Mount and serve until the end. Raises PoolError and MountError before ``ready``."""
    report.stage("checking the mount point")
    mount_point = prepare_mount_point(mount_point)
    report.stage("checking /dev/fuse")
    _check_dev_fuse()
    allow_other = _allow_other(options, report)
    transport = choose(options.transport)
    report.stage("opening the pool")
    if not options.readonly and (text := revive(pool_path)):
        report.note(text)
        log.warning("%s", text)
    opened, super_ = open_checked(
        pool_path, readonly=options.readonly, lock="shared" if options.readonly else "exclusive"
    )
    with opened:
        report.stage("attaching the pool")
        pool = attach(opened, options, wait_s=CLAIM_WAIT_S)
        try:
            for text in opened.info.notes:
                report.note(text)
            config = _config(opened, super_["uuid"], mount_point, options, transport)
            wish = _passthrough(opened, options, transport, report)
            config |= {"passthrough": "off", "passthrough_reason": wish.reason}
            library = Library(pool, super_["uuid"], options)
            if library.reason:
                log.info("no reading in place: %s", library.reason)
            if library.is_lack:
                report.note(f"no process can read blocks in place: {library.reason}")
            config |= {"library_socket": library.path, "library_reason": library.reason}
            works = _background(pool, opened, options.readonly)
            works.append(library.run)
            scrubber = None
            if options.verify == "scrub":
                scrubber = Scrubber(pool, options.scrub_bytes_per_s)
                works.append(scrubber.run)
            control = ControlDirectory(pool, config, scrubber.stats if scrubber else dict)
            control.counters.append(library.stats)
            plan = Plan(
                source=os.path.realpath(pool_path),
                place=mount_point,
                switches=_switches(options),
                allow_other=allow_other,
                publish_close=options.publish == "close",
                passthrough_fd=wish.fd,
                spin_us=_spin_us(options),
            )
            _Mount(pool, control, plan).serve(transport, works, report)
        finally:
            pool.close()
            log.info("detached %s", pool_path)


class _Mount:
    """An attached pool that is going to be mounted."""

    def __init__(self, pool: _native.Pool, control: ControlDirectory, plan: Plan) -> None:
        self._pool = pool
        self._control = control
        self._plan = plan

    def serve(
        self,
        transport: Choice,
        works: Sequence[Callable[[threading.Event], None]],
        report: Reporter,
    ) -> None:
        """Mount, serve until the end, with ``works`` running beside. Raises MountError."""
        place = self._plan.place
        _lower_oom_score(report)
        _keep_memory()
        report.stage("mounting")
        try:
            session = self._session(transport, report)
        except TransportError as error:
            raise MountError(str(error)) from error
        connection = mounts.connection_of(place)

        def on_ready() -> None:
            self._control.config.update(session.config())
            log.info("serving %s on %s", self._plan.source, place)
            report.ready()

        life = _Life(session, place, on_ready)
        with _threads(*works):
            report.stage("waiting for the kernel's first request")
            try:
                trio.run(life.run)
            except* TransportError as group:
                raise MountError(str(group.exceptions[0])) from group
            except* OSError as group:
                unmounted = mounts.connection_of(place) != connection
                _say_end(group, place, unmounted=unmounted)
            finally:
                session.close(unmount=not life.detached)

    def _session(self, transport: Choice, report: Reporter) -> Session:
        log.info("transport %s: %s", transport.name, transport.reason)
        if transport.name == "direct":
            return DirectSession(self._pool, self._control, self._plan, report.note)
        return Pyfuse3Session(self._pool, self._control, self._plan)


def _judge(record: logging.LogRecord) -> bool:
    """What pyfuse3 calls an error and is none."""
    if is_late_reply(record):
        record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
    return True


def _say_end(group: BaseExceptionGroup[OSError], mount_point: str, *, unmounted: bool) -> None:
    """Log why requests can't be read any more. An abort from /sys is an error. An ``umount`` that
    comes while a request is being read is none, though the kernel says ECONNABORTED for both
    (it says ENODEV, which is the end, a moment later)."""
    number = errno_of(group)
    if number == errno.ECONNABORTED and unmounted:
        log.info("unmounted %s", mount_point)
    else:
        log.error("the connection ended: %s", os.strerror(number) if number else group)


class _Life:
    """A session's main loop, and the signals that end it."""

    def __init__(self, session: Session, mount_point: str, on_ready: Callable[[], None]) -> None:
        self._session = session
        self._on_ready = on_ready
        self._mount_point = mount_point
        self.detached = False
        """Unmounted by ourselves: the place may be another mount's by now."""

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            # Before the first answer: whoever sees the mount may end it.
            await nursery.start(self._watch_signals)
            await self._session.run(self._on_ready)
            nursery.cancel_scope.cancel()

    async def _watch_signals(self, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                log.info("signal %d: unmounting %s", number, self._mount_point)
                break
            await trio.to_thread.run_sync(self._detach)
            with trio.move_on_after(GRACE_S):
                async for _ in signals:
                    break
        log.warning("files on %s were still open; they are cut off", self._mount_point)
        self._session.cut_off()

    def _detach(self) -> None:
        try:
            mounts.unmount(self._mount_point, lazy=True)
            self.detached = True
        except OSError as error:
            log.warning("%s cannot be unmounted: %s", self._mount_point, error.strerror)


# ---- the mount point and FUSE -------------------------------------------------------------------


def prepare_mount_point(path: str) -> str:
    """Make sure that something can be mounted there; detach what a dead daemon left.

    Returns the absolute path. Raises MountError.
    """
    place = mounts.real_place(path)
    while mounts.is_dead(place):
        corpse = mounts.mount_at(place)
        if corpse is None or corpse.fs_type != mounts.FS_TYPE:
            what = corpse.fs_type if corpse else "a filesystem"
            raise MountError(
                f"{place} is the dead mount of {what} that is not ours; detach it: "
                f"umount -l {place}"
            )
        log.info("detaching the dead mount on %s", place)
        try:
            mounts.unmount(place, lazy=True)
        except OSError as error:
            raise MountError(
                f"the dead mount on {place} cannot be detached: {error.strerror}; as root: "
                f"umount -l {place}"
            ) from error
    try:
        found = os.stat(place)
    except FileNotFoundError:
        raise MountError(f"mount point {place} does not exist; mkdir {place}") from None
    except OSError as error:
        raise MountError(f"mount point {place} cannot be reached: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise MountError(f"mount point {place} is not a directory")
    above = mounts.mount_at(place)
    if above is not None and above.fs_type == mounts.FS_TYPE:
        raise MountError(f"{above.source} is already mounted on {place}; umount {place}")
    return os.path.realpath(place)


def _switches(options: MountOptions) -> frozenset[str]:
    """What mount(8) has for every filesystem."""
    # A cache holds no programs and no devices.
    switches = [*(("nodev", "nosuid") if os.geteuid() == 0 else ()), *options.kernel]
    chosen = {switch.removeprefix("no"): switch for switch in switches}
    return frozenset({*chosen.values(), *(("ro",) if options.readonly else ())})


def _allow_other(options: MountOptions, report: Reporter) -> bool:
    others = options.allow_other
    if others is not False and os.geteuid() != 0 and not _user_allow_other():
        text = "other users need user_allow_other in /etc/fuse.conf, which is not set there"
        if others:
            raise MountError(f"allow_other: {text}; add that line as root")
        report.note(f"only you can reach this mount: {text}")
        others = False
    return others is not False


def _check_dev_fuse() -> None:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        raise MountError(
            "there is no /dev/fuse: load the module (modprobe fuse), or give the container the "
            "device (--device /dev/fuse --cap-add SYS_ADMIN)"
        ) from None
    except OSError as error:
        # fusermount3 opens it with the rights of whoever calls it, too.
        advice = "" if os.geteuid() == 0 else "; as root: chmod 666 /dev/fuse"
        raise MountError(f"/dev/fuse cannot be opened: {error.strerror}{advice}") from error


def _user_allow_other() -> bool:
    try:
        lines = Path("/etc/fuse.conf").read_text().splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)


# ---- the process --------------------------------------------------------------------------------


@contextlib.contextmanager
def _threads(*works: Callable[[threading.Event], None]) -> Iterator[None]:
    """Runs each in a thread of its own; at the end they see the event and are waited for."""
    stop = threading.Event()
    threads = [threading.Thread(target=work, args=(stop,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _tick_until(pool: _native.Pool, stop: threading.Event) -> None:
    """The core's heartbeat and housekeeping."""
    last = ""
    while not stop.wait(TICK_S):
        try:
            pool.tick()
            last = ""
        except OSError as error:
            if str(error) != last:  # once, not ten times a second
                log.error("tick: %s", error.strerror)
            last = str(error)


def _prefault(pool: _native.Pool, size_bytes: int, stop: threading.Event) -> None:
    """Map all pages now, in the background: a store to a page that this process hasn't touched
    costs several times the copy itself."""
    started = time.monotonic()
    for offset in range(0, size_bytes, _PREFAULT_STEP_BYTES):
        if stop.is_set() or not pool.prefault(offset, _PREFAULT_STEP_BYTES):
            return
    log.info("all of the pool is mapped, after %.2f s", time.monotonic() - started)


def _background(
    pool: _native.Pool, opened: OpenPool, readonly: bool
) -> list[Callable[[threading.Event], None]]:
    """What runs beside the requests."""
    works: list[Callable[[threading.Event], None]] = []
    if not readonly:
        works.append(functools.partial(_tick_until, pool))
    info = opened.info
    # Not for a sparse pool, whose holes it would fill, nor for a file on a disk, which it would
    # make the kernel write out.
    if info.kind != "file" and info.allocated_bytes >= info.size_bytes:
        works.append(functools.partial(_prefault, pool, info.size_bytes))
    return works


def _lower_oom_score(report: Reporter) -> None:
    try:
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
    except OSError as error:
        report.note(
            "the daemon may be the first to go when memory runs out: its OOM score cannot be "
            f"lowered ({error.strerror})"
        )


def _keep_memory() -> None:
    with contextlib.suppress(AttributeError):  # another libc
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES // 2)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)


def _passthrough(
    opened: OpenPool, options: MountOptions, transport: Choice, report: Reporter
) -> passthrough.Wish:
    wish = passthrough.wish(
        options.passthrough, opened.fd, transport, is_directory_pool=opened.data_fd >= 0
    )
    if wish.reason:
        log.info("no passthrough: %s", wish.reason)
    if wish.is_lack:
        report.note(passthrough.note(wish.reason))
    return wish


def _spin_us(options: MountOptions) -> int:
    """Who asks needs a processor too."""
    return options.spin_us if len(os.sched_getaffinity(0)) > 1 else 0


def _config(
    opened: OpenPool, uuid: bytes, mount_point: str, options: MountOptions, transport: Choice
) -> dict[str, object]:
    return {
        "pool": os.path.realpath(opened.path),
        "uuid": uuid,
        "kind": opened.info.kind,
        "size_bytes": opened.info.capacity_bytes or opened.info.size_bytes,
        "mount_point": mount_point,
        "transport": transport.name,
        "transport_reason": transport.reason,
        "spin_us": _spin_us(options) if transport.name == "direct" else 0,
        "readonly": options.readonly,
        "evict": options.evict,
        "high_permille": options.high_permille,
        "low_permille": options.low_permille,
        "verify": options.verify,
        "scrub_bytes_per_s": options.scrub_bytes_per_s if options.verify == "scrub" else 0,
        "coherence": "coherent" if options.coherence == "auto" else options.coherence,
        "publish": options.publish,
        "host": hostid.host_name(options.host),
        "library": options.library,
        "log": options.log or "default",
    }


def setup_logging(target: str, *, foreground: bool, note: Callable[[str], None]) -> None:
    """Messages to a file, to syslog, or, in the foreground, to standard error."""
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    text = "%(levelname)s %(name)s: %(message)s"
    handler: logging.Handler
    if target and target != "syslog":
        handler = WatchedFileHandler(target)
        text = f"%(asctime)s [%(process)d] {text}"
    elif foreground and not target:
        handler = logging.StreamHandler()
    elif os.path.exists("/dev/log"):
        handler = SysLogHandler("/dev/log", SysLogHandler.LOG_DAEMON)
        text = f"belugafs[%(process)d]: {text}"
    elif target:
        raise MountError("log=syslog: there is no /dev/log here; use log=FILE")
    else:
        note("no syslog here, so the daemon's messages are lost; -o log=FILE keeps them")
        handler = logging.NullHandler()
    handler.setFormatter(logging.Formatter(text))
    handler.addFilter(_judge)
    root.addHandler(handler)

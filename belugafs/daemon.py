"""The daemon of one mount: attach the pool, mount, serve until unmounted, detach.

One process for each mount. Its threads: the main one runs trio and all requests
(:mod:`belugafs.fuse`), the ticker calls the core's ``tick`` every 100 ms (heartbeat,
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

import pyfuse3
import trio

from belugafs import _native, fusewait, hostid, mounts
from belugafs.attach import attach, open_checked
from belugafs.control import ControlDirectory
from belugafs.fuse import Operations, errno_of
from belugafs.options import MountOptions
from belugafs.pool import OpenPool
from belugafs.scrub import Scrubber

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
    fuse_options = _fuse_options(pool_path, options, report)
    report.stage("opening the pool")
    opened, super_ = open_checked(
        pool_path, readonly=options.readonly, lock="shared" if options.readonly else "exclusive"
    )
    with opened:
        report.stage("attaching the pool")
        pool = attach(opened, options, wait_s=CLAIM_WAIT_S)
        try:
            for text in opened.info.notes:
                report.note(text)
            config = _config(opened, super_["uuid"], mount_point, options)
            works = _background(pool, opened, options.readonly)
            scrubber = None
            if options.verify == "scrub":
                scrubber = Scrubber(pool, options.scrub_bytes_per_s)
                works.append(scrubber.run)
            control = ControlDirectory(pool, config, scrubber.stats if scrubber else dict)
            _serve_attached(pool, mount_point, fuse_options, options, control, works, report)
        finally:
            pool.close()
            log.info("detached %s", pool_path)


def _serve_attached(
    pool: _native.Pool,
    mount_point: str,
    fuse_options: set[str],
    options: MountOptions,
    control: ControlDirectory,
    works: Sequence[Callable[[threading.Event], None]],
    report: Reporter,
) -> None:
    def on_ready() -> None:
        log.info("serving %s on %s", control.config["pool"], mount_point)
        report.ready()

    operations = Operations(
        pool,
        control,
        publish_close=options.publish == "close",
        on_ready=on_ready,
    )
    _lower_oom_score(report)
    _keep_memory()
    report.stage("mounting")
    try:
        pyfuse3.init(operations, mount_point, fuse_options)
    except RuntimeError:
        raise MountError(
            f"{mount_point} cannot be mounted: the kernel or fusermount3 refused it"
            + ("" if os.geteuid() == 0 else " (the directory must be yours)")
        ) from None
    fusewait.install()
    connection = mounts.connection_of(mount_point)
    session = _Session(mount_point)
    with _threads(*works):
        report.stage("waiting for the kernel's first request")
        try:
            trio.run(session.run)
        except* OSError as group:
            _say_end(group, mount_point, unmounted=mounts.connection_of(mount_point) != connection)
        finally:
            # Does nothing where the kernel has unmounted or the connection was aborted.
            pyfuse3.close(unmount=not session.detached)


def _judge(record: logging.LogRecord) -> bool:
    """A reply to a request that an umount has ended meanwhile (the kernel says ENOENT: no such
    request) is nothing that anybody has to see to, though pyfuse3 calls it an error."""
    ended = os.strerror(errno.ENOENT) in record.getMessage()
    if record.name.startswith("pyfuse3") and "fuse_reply_" in record.msg and ended:
        record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
    return True


def _say_end(group: BaseExceptionGroup[OSError], mount_point: str, *, unmounted: bool) -> None:
    """Log why requests can't be read any more. An abort from /sys is an error. An ``umount`` that
    comes while a request is being read is none, though the kernel says ECONNABORTED for both
    (it says ENODEV, which pyfuse3 takes for the end, a moment later)."""
    number = errno_of(group)
    if number == errno.ECONNABORTED and unmounted:
        log.info("unmounted %s", mount_point)
    else:
        log.error("the connection ended: %s", os.strerror(number) if number else group)


class _Session:
    """pyfuse3's loop, and the signals that end it."""

    def __init__(self, mount_point: str) -> None:
        self._mount_point = mount_point
        self.detached = False
        """Unmounted by ourselves: the place may be another mount's by now."""

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            # Before the first answer: whoever sees the mount may end it.
            await nursery.start(self._watch_signals)
            # No handler awaits, so further tasks would only hand requests to each other.
            await pyfuse3.main(min_tasks=1, max_tasks=1)
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
        pyfuse3.terminate()

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


def _fuse_options(pool_path: str, options: MountOptions, report: Reporter) -> set[str]:
    root = os.geteuid() == 0
    fuse_options = {"default_permissions", "subtype=belugafs"}
    fuse_options.add("fsname=" + _escaped(os.path.realpath(pool_path)))
    # A cache holds no programs and no devices.
    switches = [*(("nodev", "nosuid") if root else ()), *options.kernel]
    chosen = {switch.removeprefix("no"): switch for switch in switches}
    fuse_options.update(chosen.values())
    if options.readonly:
        fuse_options.add("ro")
    others = options.allow_other
    if others is not False and not root and not _user_allow_other():
        text = "other users need user_allow_other in /etc/fuse.conf, which is not set there"
        if others:
            raise MountError(f"allow_other: {text}; add that line as root")
        report.note(f"only you can reach this mount: {text}")
        others = False
    if others is not False:
        fuse_options.add("allow_other")
    return fuse_options


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


def _escaped(text: str) -> str:
    """For libfuse's parser of options, and pyfuse3's idea that they are ASCII."""
    plain = os.fsencode(text).decode("ascii", "backslashreplace")
    return plain.replace("\\", "\\\\").replace(",", "\\,")


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


def _config(
    opened: OpenPool, uuid: bytes, mount_point: str, options: MountOptions
) -> dict[str, object]:
    return {
        "pool": os.path.realpath(opened.path),
        "uuid": uuid,
        "kind": opened.info.kind,
        "size_bytes": opened.info.size_bytes,
        "mount_point": mount_point,
        "transport": "pyfuse3",
        "pyfuse3": pyfuse3.__version__,
        "readonly": options.readonly,
        "evict": options.evict,
        "high_permille": options.high_permille,
        "low_permille": options.low_permille,
        "verify": options.verify,
        "scrub_bytes_per_s": options.scrub_bytes_per_s if options.verify == "scrub" else 0,
        "coherence": "coherent" if options.coherence == "auto" else options.coherence,
        "publish": options.publish,
        "host": hostid.host_name(options.host),
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

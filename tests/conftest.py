"""Pools and mounts for tests.

Two properties hold for every pool that a test gets from here, whatever the test does: it is
checked with fsck afterwards, twice, and must be clean; and nothing of it is left behind.

For a mount, in addition: a watchdog aborts the FUSE connection before the test's time is over,
since a process that waits for a hung daemon hears no signal; and the daemon's log must hold no
warning that the test did not announce.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

MIB = 1 << 20
POOL_BYTES = 64 * MIB
_COMMAND_LIMIT_S = 20

POOL_KIND = os.environ.get("BELUGAFS_TEST_POOL_KIND", "file")
"""Of all pools whose test doesn't need a certain one: ``file`` or ``directory`` (as root)."""

TRANSPORT = os.environ.get("BELUGAFS_TEST_TRANSPORT", "")
"""Of all mounts whose test doesn't choose one; empty: the one that users get."""

PASSTHROUGH = os.environ.get("BELUGAFS_TEST_PASSTHROUGH", "")
"""``off``: mounts of directory pools without it, where their test doesn't choose."""


@pytest.fixture(scope="session")
def native() -> Any:
    """The extension module. Not built is a failure: skipping would hide all that needs it."""
    try:
        from belugafs import _native
    except ImportError as error:
        pytest.fail(f"the C core is not built ({error}); run: make build")
    return _native


@pytest.fixture
def pool_dir() -> Iterator[Path]:
    """An empty directory in memory, for pool files; below ``BELUGAFS_TEST_SHM``, if that is set."""
    shm = os.environ.get("BELUGAFS_TEST_SHM", "/dev/shm")
    base = shm if os.path.isdir(shm) else None
    path = Path(tempfile.mkdtemp(prefix="belugafs-test-", dir=base))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _alone(name: str) -> Iterator[None]:
    """No other test process that shares our temporary directory is in here by that name."""
    with open(os.path.join(tempfile.gettempdir(), f"belugafs-tests-{name}.lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def alone() -> Callable[[str], contextlib.AbstractContextManager[None]]:
    """What the mark of that name does, for fixtures that last longer than a test."""
    return _alone


@pytest.fixture(autouse=True)
def _alone_as_marked(request: pytest.FixtureRequest) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        for mark in request.node.iter_markers("alone"):
            held.enter_context(_alone(mark.args[0]))
        yield


@pytest.fixture(scope="session", autouse=True)
def _run_dir() -> Iterator[None]:
    """Leases and sockets of all mounts of this run lie in a directory of its own."""
    before = os.environ.get("BELUGAFS_RUN_DIR")
    path = tempfile.mkdtemp(prefix="belugafs-run-")
    os.environ["BELUGAFS_RUN_DIR"] = path
    yield
    os.environ.pop("BELUGAFS_RUN_DIR")
    if before is not None:
        os.environ["BELUGAFS_RUN_DIR"] = before
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def pool_kind(request: pytest.FixtureRequest) -> str:
    """Of the pools of this test: ``file`` or ``directory``. A test may say which by
    ``@pytest.mark.parametrize``; one that looks into the file, by ``@pytest.mark.flat_pool``."""
    return "file" if request.node.get_closest_marker("flat_pool") else POOL_KIND


def _make_directory_pool(native: Any, path: Path, size_bytes: int, inodes: int) -> None:
    from belugafs._pool import directory

    path.mkdir()
    conf = directory.mount_tmpfs(str(path), directory.Conf(size_bytes, inodes))
    directory.fill(str(path), conf, native, uuid.uuid4())


@pytest.fixture
def make_pool(native: Any, pool_dir: Path, pool_kind: str) -> Iterator[Callable[..., Path]]:
    """``make_pool(size, **mkfs)``: a new pool. All are checked after the test."""
    made: list[Path] = []

    def make(size_bytes: int = POOL_BYTES, **mkfs: Any) -> Path:
        path = pool_dir / f"pool{len(made)}"
        if pool_kind == "directory":
            made.append(path)
            _make_directory_pool(native, path, size_bytes, mkfs.get("inodes", 0))
            return path
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.ftruncate(fd, size_bytes)
            native.mkfs(fd, size_bytes, uuid=uuid.uuid4().bytes, **mkfs)
        finally:
            os.close(fd)
        made.append(path)
        return path

    yield make
    try:
        for path in made:
            if (path / "meta" if path.is_dir() else path).exists():
                assert_clean(native, path)
    finally:
        for path in made:
            while _is_mounted(path):
                subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def pool_file(make_pool: Callable[..., Path]) -> Path:
    """A pool of ``POOL_BYTES`` in memory, made by mkfs."""
    return make_pool()


@pytest.fixture
def attach(native: Any) -> Iterator[Callable[..., Any]]:
    """``attach(path, **options)``: a Pool in this process, closed after the test."""
    pools: list[Any] = []

    def attach(path: Path, **options: Any) -> Any:
        options = {"host_uuid": b"h" * 16, "boot_id": b"b" * 16, **options}
        with _opened(path, os.O_RDONLY if options.get("readonly") else os.O_RDWR) as (fd, data_fd):
            pools.append(native.Pool(fd, os.fstat(fd).st_size, data_fd=data_fd, **options))
        return pools[-1]

    yield attach
    for pool in pools:
        pool.close()


@pytest.fixture
def core_pool(attach: Callable[..., Any], pool_file: Path) -> Any:
    """An attached Pool on ``pool_file``."""
    return attach(pool_file)


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[tuple[int, int]]:
    """Descriptors of what is mapped, and of the directory of backing files, or -1."""
    directory = path.is_dir()
    fd = os.open(path / "meta" if directory else path, flags)
    try:
        data_fd = os.open(path / "data", os.O_RDONLY) if directory else -1
        try:
            yield fd, data_fd
        finally:
            if data_fd >= 0:
                os.close(data_fd)
    finally:
        os.close(fd)


def assert_clean(native: Any, path: Path) -> None:
    """fsck, twice: checking must not change what the next check finds."""
    for run in ("first", "second"):
        problems: list[str] = []

        def report(severity: int, code: str, text: str, into: list[str] = problems) -> None:
            if severity:
                into.append(f"{code}: {text}")

        with _opened(path, os.O_RDONLY) as (fd, data_fd):
            counts = native.fsck(fd, os.fstat(fd).st_size, True, report, data_fd=data_fd)
        assert counts["problems"] == 0 and not problems, f"{run} fsck: {problems or counts}"


# ---- mounts ------------------------------------------------------------------------------------


def _state(stat: Path) -> str:
    """The letter that proc(5) has for a process or thread."""
    return stat.read_text().rpartition(")")[2].split()[0]


def _pairs(path: Path) -> dict[str, str]:
    from belugafs.control import parse_pairs

    return parse_pairs(path.read_text())


class MountedPool:
    """A pool, mounted by ``mount.belugafs`` as a user would."""

    def __init__(
        self, native: Any, pool_path: Path, path: Path, log_path: Path, limit_s: float
    ) -> None:
        self._native = native
        self.pool_path = pool_path
        self.path = path
        self.log_path = log_path
        self.daemon_pid = 0
        self.options = ""
        self._limit_s = limit_s
        self._watchdog: threading.Timer | None = None
        self._expected: list[str] = []

    # -- commands --

    def command(self, *arguments: str, **extra: Any) -> subprocess.CompletedProcess[str]:
        """Run one of our commands by module name, such as ``belugafs.fsck``."""
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_LIMIT_S,
            check=False,
            **extra,
        )

    def try_mount(self, options: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run the mount command, whatever comes of it."""
        options = self.options if options is None else options
        self.options = options
        transport = f"transport={TRANSPORT}" if TRANSPORT else ""
        passthrough = f"passthrough={PASSTHROUGH}" if PASSTHROUGH else ""
        joined = ",".join(filter(None, [transport, passthrough, options, f"log={self.log_path}"]))
        return self.command("belugafs.mount", str(self.pool_path), str(self.path), "-o", joined)

    @property
    def transport(self) -> str:
        """Which one serves the mount."""
        return self.config()["transport"]

    @property
    def passthrough(self) -> bool:
        """Whether the kernel reads, writes and maps files by itself."""
        return self.config()["passthrough"] == "on"

    def mount(self, options: str | None = None) -> None:
        """Mount. The daemon's pid is known afterwards, and the watchdog runs."""
        done = self.try_mount(options)
        assert done.returncode == 0, done.stderr
        self.daemon_pid = int(self.stats()["pid"])
        self._stop_watchdog()
        self._watchdog = threading.Timer(self._limit_s, self._bark)
        self._watchdog.daemon = True
        self._watchdog.start()

    def umount(self, *, lazy: bool = False) -> None:
        """Unmount, and, unless lazy, wait until the daemon has detached and ended."""
        command = ["umount", *(["-l"] if lazy else []), str(self.path)]
        if os.geteuid() != 0:
            command = ["fusermount3", "-u", *(["-z"] if lazy else []), str(self.path)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMMAND_LIMIT_S, check=False
        )
        assert done.returncode == 0, done.stderr
        if not lazy:
            self.wait_gone()

    def remount(self, options: str | None = None) -> None:
        """Unmount and mount again."""
        self.umount()
        self.mount(options)

    def kill9(self) -> None:
        """Kill the daemon as the OOM killer would, and wait until it is gone."""
        os.kill(self.daemon_pid, signal.SIGKILL)
        self.wait_gone()

    def kill9_if_running(self) -> None:
        """The same for a daemon that may have ended by now."""
        with contextlib.suppress(ProcessLookupError):
            self.kill9()

    def assert_clean(self) -> None:
        """fsck of the pool, which must not be mounted: after a crash, too."""
        assert_clean(self._native, self.pool_path)

    def wait_gone(self, limit_s: float = 10) -> None:
        """Wait until the daemon has ended."""
        self._stop_watchdog()
        deadline = time.monotonic() + limit_s
        while _is_running(self.daemon_pid):
            assert time.monotonic() < deadline, f"the daemon still runs after {limit_s} s"
            time.sleep(0.01)

    def stop_daemon(self, limit_s: float = 10) -> None:
        """SIGSTOP, which threads that are just answering obey a moment later: until all have."""
        os.kill(self.daemon_pid, signal.SIGSTOP)
        deadline = time.monotonic() + limit_s
        tasks = list(Path(f"/proc/{self.daemon_pid}/task").iterdir())
        while any(_state(task / "stat") != "T" for task in tasks):
            assert time.monotonic() < deadline, "the daemon doesn't stop"
            time.sleep(0.01)

    # -- looking --

    @property
    def size_bytes(self) -> int:
        """Of the pool: of its file, or of its tmpfs."""
        if self.pool_path.is_dir():
            whole = os.statvfs(self.pool_path)
            return whole.f_blocks * whole.f_frsize
        return self.pool_path.stat().st_size

    def stored_at(self, path: Path, offset: int) -> tuple[Path, int]:
        """Where a byte of a file of the mount lies: a file, and the offset in it."""
        if self.pool_path.is_dir():
            ino = os.stat(path).st_ino
            slot, generation = ino & 0xFFFFFFFF, ino >> 32
            name = f"data/{slot % 256:02x}/{slot:08x}.{generation:08x}"
            return self.pool_path / name, offset
        for line in os.getxattr(path, "user.beluga.extents").decode().splitlines():
            start, _, place, length = map(int, line.split())
            if start <= offset < start + length:
                return self.pool_path, place + offset - start
        raise AssertionError(f"{path} has no extent at {offset}")

    def damage(self, path: Path, offset: int) -> None:
        """Flip a bit in the pool's memory, of a sealed file: before, it would be content."""
        assert self.settled_state(path) == "sealed"
        where, place = self.stored_at(path, offset)
        with open(where, "r+b") as file:
            file.seek(place)
            byte = file.read(1)
            file.seek(place)
            file.write(bytes([byte[0] ^ 1]))

    def config(self) -> dict[str, str]:
        """The pairs of ``.beluga/config``."""
        return _pairs(self.path / ".beluga/config")

    def stats(self) -> dict[str, str]:
        """The pairs of ``.beluga/stats``."""
        return _pairs(self.path / ".beluga/stats")

    def await_stat(self, name: str, value: int, limit_s: float = 10) -> None:
        """Wait until a figure of ``.beluga/stats`` is this: the kernel says some things late, such
        as the end of an open file."""
        deadline = time.monotonic() + limit_s
        while int(self.stats()[name]) != value:
            assert time.monotonic() < deadline, f"{name} is {self.stats()[name]}, not {value}"
            time.sleep(0.01)

    def settled_state(self, path: Path, limit_s: float = 10) -> str:
        """``user.beluga.state``, once nobody can write to the file without the daemon any more:
        it learns of that a moment after the close."""
        deadline = time.monotonic() + limit_s
        while (state := os.getxattr(path, "user.beluga.state").decode()) != "sealed":
            if time.monotonic() > deadline or state == "abandoned" or not self.passthrough:
                break
            time.sleep(0.01)
        return state

    def log(self) -> str:
        """What the daemons of this mount have logged."""
        return self.log_path.read_text() if self.log_path.exists() else ""

    def expect_log(self, pattern: str) -> None:
        """Warnings and errors that match are meant to be logged."""
        self._expected.append(pattern)

    def connection(self) -> Path | None:
        """The connection's directory in /sys/fs/fuse."""
        from belugafs.mounts import connection_of

        return connection_of(str(self.path))

    # -- the end --

    def abort(self) -> None:
        """End all requests on the mount at once, as an administrator would."""
        connection = self.connection()
        if connection is not None:
            (connection / "abort").write_text("1")

    def _bark(self) -> None:
        sys.stderr.write(
            f"\nwatchdog: {self.path} takes more than {self._limit_s:.0f} s, aborted\n"
        )
        self.expect_log("connection ended")
        with contextlib.suppress(OSError):
            self.abort()

    def _stop_watchdog(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None

    def clean_up(self) -> None:
        """Leave nothing, however the test ended: no mount, no process."""
        self._stop_watchdog()
        if self.daemon_pid and _is_running(self.daemon_pid):
            with contextlib.suppress(AssertionError, subprocess.SubprocessError, OSError):
                os.kill(self.daemon_pid, signal.SIGCONT)
                self.umount()
        if self.daemon_pid and _is_running(self.daemon_pid):
            with contextlib.suppress(OSError):
                self.abort()
            with contextlib.suppress(OSError):
                os.kill(self.daemon_pid, signal.SIGKILL)
        while _is_mounted(self.path):
            subprocess.run(["umount", "-l", str(self.path)], timeout=_COMMAND_LIMIT_S, check=True)

    def unexpected_log(self) -> list[str]:
        """Lines of the log that say that something is wrong, and were not announced."""
        return [
            line
            for line in self.log().splitlines()
            if re.search(r"\b(WARNING|ERROR|CRITICAL|Traceback)\b", line)
            and not any(re.search(pattern, line) for pattern in self._expected)
        ]


def _is_running(pid: int) -> bool:
    """Of a process that is being killed the first thread may end before the others, which hold the
    pool as long as they are there."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            ended = file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
        return not ended or len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


def _is_mounted(path: Path) -> bool:
    with open("/proc/self/mountinfo") as file:
        return any(line.split()[4] == str(path) for line in file)


def _limit_s(request: pytest.FixtureRequest) -> float:
    """A little less than what pytest-timeout gives the test."""
    marker = request.node.get_closest_marker("timeout")
    whole = float(marker.args[0]) if marker else float(request.config.getini("timeout") or 120)
    return max(5.0, whole - 15)


_FUSE_CONTROL = "/sys/fs/fuse/connections"


def _mount_fuse_control() -> bool:
    """Mount it where it is missing; says whether that was done."""
    missing = os.path.isdir(_FUSE_CONTROL) and not _is_mounted(Path(_FUSE_CONTROL))
    if not missing or os.geteuid() != 0:
        return False
    command = ["mount", "-t", "fusectl", "fusectl", _FUSE_CONTROL]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="session")
def _fuse_control_of_session() -> Iterator[list[bool]]:
    mounted_here = [False]
    yield mounted_here
    if mounted_here[0]:
        subprocess.run(["umount", "-l", _FUSE_CONTROL], check=False)


@pytest.fixture
def fuse_control(_fuse_control_of_session: list[bool]) -> None:
    """The directory in /sys through which connections are aborted: systemd mounts it, a bare
    container does not. Looked at for each test: another run of tests may have ended, and have
    taken its own away."""
    _fuse_control_of_session[0] |= _mount_fuse_control()


@pytest.fixture
def unmounted_pool(
    request: pytest.FixtureRequest,
    native: Any,
    make_pool: Callable[..., Path],
    pool_dir: Path,
    fuse_control: None,
) -> Iterator[MountedPool]:
    """As ``mounted_pool``, not mounted yet. ``@pytest.mark.parametrize`` may give the size in
    bytes indirectly."""
    if not os.path.exists("/dev/fuse"):
        pytest.skip("no /dev/fuse here")
    size_bytes = getattr(request, "param", POOL_BYTES)
    path = pool_dir / "mnt"
    path.mkdir()
    pool = MountedPool(native, make_pool(size_bytes), path, pool_dir / "log", _limit_s(request))
    try:
        yield pool
    finally:
        pool.clean_up()
    assert not pool.unexpected_log()


@pytest.fixture
def mounted_pool(unmounted_pool: MountedPool) -> MountedPool:
    """A fresh pool, mounted."""
    unmounted_pool.mount()
    return unmounted_pool

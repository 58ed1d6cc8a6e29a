"""Where it is measured: a mount, and tmpfs beside it."""

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from belugafs import mounts, status
from belugafs.demo.mounting import DemoError, DemoMount, mount_entry, tool
from belugafs.exits import Exit
from belugafs.pool import PoolError
from belugafs.units import format_size

SHM = "/dev/shm"
_MOUNT_LIMIT_S = 60


class Place:
    """A mount that is measured, by its directory and its daemon's process."""

    def __init__(self, mount_point: str, made: DemoMount | None) -> None:
        self.mount_point = mount_point
        self._made = made
        self.daemon_pid: int | None = None
        """None: it can't be seen from here (in another pid namespace)."""
        self.find_daemon()

    @property
    def is_ours(self) -> bool:
        """Made for the run, so that it may be unmounted."""
        return self._made is not None

    @property
    def pool(self) -> str:
        found = mounts.mount_at(self.mount_point)
        return found.source if found else ""

    def find_daemon(self) -> None:
        """After a mount. Raises PoolError if it doesn't answer."""
        pid = status.report(self.mount_point)["stats"]["pid"]
        self.daemon_pid = pid if _is_daemon(pid) else None

    def daemon_cpu_s(self) -> float | None:
        """Processor time that the daemon has used, all threads."""
        return None if self.daemon_pid is None else process_cpu_s(self.daemon_pid)

    def abort(self) -> None:
        """Free whoever waits for our mount."""
        if self._made is not None:
            self._made.abort()

    def time_remount(self) -> float:
        """Unmount, and the seconds of a mount command from its start to a mount that answers."""
        assert self._made is not None
        pool = self.pool
        self._made.unmount()
        command = [*tool("mount.belugafs"), pool, self.mount_point]
        with tempfile.TemporaryFile() as log:
            start = time.perf_counter()
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=_MOUNT_LIMIT_S,
                check=False,
            )
            elapsed_s = time.perf_counter() - start
            if done.returncode != 0:
                log.seek(0)
                raise PoolError(log.read().decode(errors="replace").strip(), Exit.IO_ERROR)
        self.find_daemon()
        return elapsed_s


def _is_daemon(pid: int) -> bool:
    try:
        return b"belugafs" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def process_cpu_s(pid: int) -> float:
    """Processor time of another process by its clock (clock_getcpuclockid(3)); /proc/PID/stat
    counts in hundredths of a second, which is too coarse. Raises PoolError if it has ended."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError as error:
        raise PoolError("the daemon of the mount has ended", Exit.IO_ERROR) from error


@contextlib.contextmanager
def measured_place(where: str | None, size: str, room_bytes: int) -> Iterator[Place]:
    """The mount that ``where`` lies in, or one on a new pool in memory. Raises PoolError."""
    if where is not None:
        mount = mounts.mount_of(where)
        if mount is None:
            raise PoolError(f"no belugafs is mounted on {where}", Exit.NOT_FOUND)
        place = Place(mount.mount_point, None)
        _check_room(mount.mount_point, room_bytes, "use smaller --sizes or fewer --clients")
        yield place
        return
    _check_room(SHM, 2 * room_bytes, "use smaller --sizes or fewer --clients")
    with tempfile.TemporaryDirectory(prefix="belugafs-bench-", dir=SHM) as directory:
        made = DemoMount(Path(directory, "pool"), None, size)
        try:
            made.make()
            made.mount()
            _check_room(str(made.path), room_bytes, "make the pool larger with --size")
            yield Place(str(made.path), made)
        except DemoError as error:
            raise PoolError(str(error), Exit.IO_ERROR) from error
        finally:
            made.close()


def _check_room(path: str, room_bytes: int, advice: str) -> None:
    """Nothing may be evicted, and no memory may run out, because of a benchmark."""
    found = os.statvfs(path)
    # A pool begins to evict at 97 %.
    free = found.f_bavail * found.f_frsize - found.f_blocks * found.f_frsize * 3 // 100
    if free < room_bytes:
        raise PoolError(
            f"{path} has {format_size(max(0, free))} to spare and this takes "
            f"{format_size(room_bytes)}; {advice}",
            Exit.NO_SPACE,
        )


@contextlib.contextmanager
def tmpfs_dir(parent: str) -> Iterator[str]:
    """An empty directory there."""
    if not os.path.isdir(parent):
        raise PoolError(f"{parent} is no directory; say where tmpfs is with --tmpfs", Exit.USAGE)
    with tempfile.TemporaryDirectory(prefix="belugafs-bench-", dir=parent) as path:
        yield path


def tmpfs_mount_times_s(rounds: int) -> list[float]:
    """Seconds of ``mount -t tmpfs``; empty where that isn't allowed."""
    times: list[float] = []
    if os.geteuid() != 0:
        return times
    with tempfile.TemporaryDirectory(prefix="belugafs-bench-") as path:
        for _ in range(rounds):
            start = time.perf_counter()
            command = ["mount", "-t", "tmpfs", "-o", "size=1m", "belugafs-bench", path]
            done = subprocess.run(command, capture_output=True, check=False)
            elapsed_s = time.perf_counter() - start
            if done.returncode == 0 and mount_entry(Path(path)) is not None:
                times.append(elapsed_s)
                subprocess.run(["umount", path], capture_output=True, check=False)
    return times

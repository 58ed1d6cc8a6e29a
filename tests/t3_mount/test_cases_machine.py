"""What others on the machine count on: room that was reserved, pinned memory, device numbers, and
that one who has stopped holds nobody up. On both kinds of pools."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from belugafs import pinning

sys.path.insert(0, os.path.dirname(__file__))
from blocks import BOTH_KINDS, MIB

KEEP_SIZE = 1
pytestmark = BOTH_KINDS


def _needs_fallocate(pool: Any) -> None:
    if pool.transport != "direct":
        pytest.skip(f"the transport {pool.transport} has no fallocate")


def _fallocate(fd: int, mode: int, offset: int, length: int) -> int:
    """The errno."""
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.fallocate(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length))
    return ctypes.get_errno() if done else 0


@pytest.fixture
def fds() -> Iterator[list[int]]:
    """Descriptors that are closed after the test."""
    opened: list[int] = []
    yield opened
    for fd in opened:
        os.close(fd)


def _fill(top: Path, fds: list[int]) -> None:
    """Files that are open, so that nothing can be evicted, until a store finds no room."""
    data = b"f" * MIB
    for number in range(10_000):
        fds.append(os.open(top / f"filler{number}", os.O_CREAT | os.O_RDWR))
        for size in (MIB, 4096):
            try:
                while os.write(fds[-1], data[:size]) == size and size < MIB:
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC
                if size < MIB:
                    return
                continue
            break
    raise AssertionError("the pool never gets full")


@pytest.mark.parametrize("mode", [0, KEEP_SIZE])
def test_reserved_room_is_there_when_the_pool_is_full(
    mounted_pool: Any, fds: list[int], mode: int
) -> None:
    """It counts as used, reads as zeros, and stores into it find no ENOSPC, by write or mapping."""
    _needs_fallocate(mounted_pool)
    top: Path = mounted_pool.path
    before = os.statvfs(top)
    path = top / "reserved"
    fds.append(fd := os.open(path, os.O_CREAT | os.O_RDWR))
    assert not _fallocate(fd, mode, 0, 8 * MIB)
    after = os.statvfs(top)
    assert (before.f_bfree - after.f_bfree) * after.f_frsize >= 8 * MIB
    assert os.fstat(fd).st_blocks * 512 >= 8 * MIB
    assert os.fstat(fd).st_size == (0 if mode else 8 * MIB)
    if not mode:
        assert os.pread(fd, MIB, 3 * MIB) == bytes(MIB)
    _fill(top, fds)
    data = bytes(range(256)) * (MIB // 256)
    for number in range(7):
        assert os.pwrite(fd, data, number * MIB) == MIB
    os.ftruncate(fd, 8 * MIB)
    with mmap.mmap(fd, 8 * MIB) as mapping:
        assert mapping[7 * MIB :] == bytes(MIB)
        mapping[7 * MIB :] = data
    assert path.read_bytes() == data * 8


def test_modes_that_arent_supported_are_one_errno(mounted_pool: Any, fds: list[int]) -> None:
    """And change nothing."""
    _needs_fallocate(mounted_pool)
    fds.append(fd := os.open(mounted_pool.path / "f", os.O_CREAT | os.O_RDWR))
    os.write(fd, b"x" * MIB)
    collapse, insert, unshare = 0x08, 0x20, 0x40
    for mode in (collapse, insert, unshare):
        assert _fallocate(fd, mode, 0, 65536) == errno.EOPNOTSUPP
    assert os.fstat(fd).st_size == MIB
    assert os.pread(fd, 2 * MIB, 0) == b"x" * MIB


@pytest.mark.parametrize("unmounted_pool", [256 * MIB], indirect=True)
def test_pinning_a_file_of_the_mount(unmounted_pool: Any, fds: list[int]) -> None:
    """64 MiB, shared, for writing: pinned where it is the pool's own pages, else refused at
    once and in words; whole, in two parts, and again after it was let go."""
    unmounted_pool.mount()
    path: Path = unmounted_pool.path / "f"
    path.write_bytes(b"p" * 64 * MIB)
    fds.append(fd := os.open(path, os.O_RDWR))
    has_pools_pages = unmounted_pool.passthrough
    with mmap.mmap(fd, 64 * MIB) as mapping:
        place = pinning.address_of(mapping)
        for part, size in ((0, 64 * MIB), (0, 32 * MIB), (32 * MIB, 32 * MIB), (0, 64 * MIB)):
            found = pinning.pin_by_io_uring(place + part, size)
            if found.works is None:
                pytest.skip(found.text)
            assert found.works == has_pools_pages, found.text
            assert found.works or "can't be pinned" in found.text
        mapping[5] = 0
    assert path.read_bytes() == b"p" * 5 + b"\0" + b"p" * (64 * MIB - 6)


def test_the_device_that_stat_names_is_the_mount(mounted_pool: Any, fds: list[int]) -> None:
    """One number for all of it, open or not, that of the one line in the mount table."""
    top: Path = mounted_pool.path
    (top / "d/e").mkdir(parents=True)
    (top / "d/f").write_bytes(b"x" * MIB)
    os.symlink("f", top / "d/link")
    paths = [top, top / "d", top / "d/e", top / "d/f", top / "d/link", top / ".beluga/stats"]

    def devices() -> set[int]:
        found = {os.lstat(path).st_dev for path in paths}
        for flags in (os.O_RDONLY, os.O_RDWR):
            fds.append(os.open(top / "d/f", flags))
            os.pread(fds[-1], 1, 0)
            found.add(os.fstat(fds[-1]).st_dev)
        return found

    (device,) = devices()
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    (line,) = (fields for fields in lines if fields[4] == str(top))
    assert line[2] == f"{os.major(device)}:{os.minor(device)}"
    kind, source = line[line.index("-") + 1 :][:2]
    assert kind in ("fuse.belugafs", "belugafs")
    assert source == str(mounted_pool.pool_path)
    (top / "d/f").write_bytes(b"y")
    assert devices() == {device}
    assert os.statvfs(top).f_fsid == os.statvfs(top / "d/f").f_fsid
    if shutil.which("findmnt"):
        command = ["findmnt", "-n", "-o", "TARGET,SOURCE", "-T", str(top / "d/f")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [str(top), source]


_STOPPED = """
import fcntl, mmap, os, sys
top = sys.argv[1]
written = os.open(top + "/stopped.tmp", os.O_CREAT | os.O_RDWR)
os.write(written, b"half" * 100_000)
fcntl.lockf(written, fcntl.LOCK_EX)
mapping = mmap.mmap(written, 0)
mapping[0] = 0
read = [os.open(f"{top}/settled{n}", os.O_RDONLY) for n in range(16)]
fcntl.flock(read[0], fcntl.LOCK_EX)
listing = os.scandir(top)
next(listing)
print("ready", flush=True)
sys.stdin.read()
"""


class Worker(threading.Thread):
    """Calls something over and over; how often, and how long the slowest took."""

    def __init__(self, call: Callable[[int], None], stop: threading.Event) -> None:
        super().__init__()
        self._call = call
        self._stop_event = stop
        self.count = 0
        self.slowest_s = 0.0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stop_event.is_set():
                began = time.monotonic()
                self._call(self.count)
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                self.count += 1
        except BaseException as error:
            self.failure = error


@pytest.mark.parametrize(
    "seconds", [3, pytest.param(30, marks=[pytest.mark.full_size, pytest.mark.timeout(300)])]
)
def test_one_who_has_stopped_holds_nobody_up(
    mounted_pool: Any, seconds: int, record_property: Callable[[str, object], None]
) -> None:
    """A process stands still that has files open for reading and writing, a mapping it stored into,
    locks, and a listing begun. Others read and store as before, 32 threads each, in a full pool."""
    top: Path = mounted_pool.path
    for number in range(16):
        (top / f"settled{number}").write_bytes(bytes([number]) * MIB)
        os.setxattr(top / f"settled{number}", "user.beluga.pin", b"hard")

    def read(number: int) -> None:
        name = number % 16
        assert (top / f"settled{name}").read_bytes() == bytes([name]) * MIB

    def store(lane: int) -> Callable[[int], None]:
        def call(number: int) -> None:
            path = top / f"{lane}.{number % 8}"
            unfinished = path.with_suffix(".tmp")
            unfinished.write_bytes(bytes([lane]) * (256 << 10))
            # What is closed may be evicted, also before a thread that waited gets to this.
            with contextlib.suppress(FileNotFoundError):
                unfinished.rename(path)

        return call

    def round_(duration_s: float) -> tuple[int, int, float]:
        stop = threading.Event()
        readers = [Worker(read, stop) for _ in range(32)]
        writers = [Worker(store(lane), stop) for lane in range(32)]
        for worker in readers + writers:
            worker.start()
        time.sleep(duration_s)
        stop.set()
        for worker in readers + writers:
            worker.join()
        failures = [worker.failure for worker in readers + writers if worker.failure]
        assert not failures, failures
        counts = [sum(worker.count for worker in workers) for workers in (readers, writers)]
        return counts[0], counts[1], max(worker.slowest_s for worker in readers + writers)

    usual = round_(seconds)
    command = [sys.executable, "-c", _STOPPED, str(top)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stopped:
        try:
            assert stopped.stdout is not None
            assert stopped.stdout.readline() == b"ready\n"
            os.kill(stopped.pid, signal.SIGSTOP)
            found = round_(seconds)
        finally:
            os.kill(stopped.pid, signal.SIGKILL)
    record_property("reads, stores, slowest_s without", usual)
    record_property("reads, stores, slowest_s beside it", found)
    assert found[2] < 5 + 4 * usual[2]
    assert found[0] > usual[0] / 4 and found[1] > usual[1] / 4

"""A million names in a directory, a million directories, 200,000 blocks: what must not grow with
them. Times are printed (pytest -rP) beside those of a thousand; the bounds here are for a busy
machine, docs/performance.md has figures of a quiet one."""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.full_size, pytest.mark.timeout(600)]

MILLION = 1_000_000
BLOCKS = 200_000
GIB = 1 << 30
BATCH = 1000


def key(number: int) -> bytes:
    """A name as engines make them, 64 characters of which no two begin alike."""
    return b"%064x" % (number * 0x9E3779B97F4A7C15F39CC0605CEDC834 % (1 << 256))


def fill(pool: Any, count: int, make: Callable[[int], object]) -> None:
    """``make(n)`` for each n, a thousand in a transaction."""
    for start in range(0, count, BATCH):
        pool.batch_begin()
        for number in range(start, min(count, start + BATCH)):
            make(number)
        pool.batch_commit()
        pool.tick()


@pytest.fixture
def large_pool(unmounted_pool: Any, make_pool: Callable[..., Path]) -> Any:
    """Not mounted yet, with room for a million of everything."""
    unmounted_pool.pool_path.unlink()
    unmounted_pool.pool_path = make_pool(3 * GIB, inodes=MILLION + 300_000)
    return unmounted_pool


def anonymous_mib(pid: int) -> float:
    """Memory of a process that is its own; pages of the pool are not."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no RssAnon")


def median_us(call: Callable[[str], object], paths: list[str]) -> float:
    times = []
    for path in paths:
        begun = time.perf_counter()
        call(path)
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e6


def miss(path: str) -> None:
    with pytest.raises(FileNotFoundError):
        os.stat(path)


def create(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))


@pytest.mark.parametrize("kind", ["files", "directories"])
def test_a_million_names_are_as_quick_as_a_thousand(
    large_pool: Any, attach: Callable[..., Any], kind: str
) -> None:
    pool = attach(large_pool.pool_path)
    make = pool.mkdir if kind == "directories" else lambda d, n: pool.mknod(d, n, 0o100644)
    sizes = {"small": 1000, "large": MILLION}
    for name, count in sizes.items():
        directory = pool.mkdir(1, name).ino
        fill(pool, count, lambda number, directory=directory: make(directory, key(number)))  # type: ignore[misc]
    pool.close()
    large_pool.mount()
    tops = {name: f"{large_pool.path}/{name}" for name in sizes}
    operations: dict[str, Callable[[str], object]] = {
        "look-up": os.stat,
        "miss": miss,
        "create": os.mkdir if kind == "directories" else create,
        "remove": os.rmdir if kind == "directories" else os.unlink,
    }
    taken: dict[tuple[str, str], list[float]] = {}
    for turn in range(5):
        time.sleep(1.1)  # the kernel forgets what it knew
        for name, count in sizes.items():
            present = [f"{tops[name]}/{key(n).decode()}" for n in random.sample(range(count), 1000)]
            absent = [f"{path}.{turn}" for path in present[:500]]
            for operation, paths in zip(operations, (present, absent, absent, absent), strict=True):
                taken.setdefault((operation, name), []).append(
                    median_us(operations[operation], paths)
                )
    for operation in operations:
        small, large = (statistics.median(taken[operation, name]) for name in sizes)
        print(f"{kind}: {operation}: {small:.0f} µs in 1,000, {large:.0f} µs in 1,000,000")
        assert large < 3 * small + 30
    assert len(os.listdir(tops["small"])) == 1000
    assert os.stat(tops["large"]).st_nlink == (2 + MILLION if kind == "directories" else 2)
    found = os.statvfs(large_pool.path)
    assert found.f_files - found.f_ffree == MILLION + 1000 + 3


def test_the_daemon_does_not_grow_with_files(large_pool: Any) -> None:
    """200,000 files made, looked at, listed, opened and removed through the mount."""
    large_pool.mount()
    top = large_pool.path / "d"
    top.mkdir()
    pid = large_pool.daemon_pid
    create(f"{top}/first")
    before = anonymous_mib(pid)
    begun = time.perf_counter()
    for number in range(BLOCKS):
        os.mknod(f"{top}/{number}")
    print(f"mknod: {(time.perf_counter() - begun) / BLOCKS * 1e6:.0f} µs each")
    begun = time.perf_counter()
    listed = subprocess.run(["ls", "-f", top], stdout=subprocess.PIPE, check=True).stdout
    listed_s = time.perf_counter() - begun
    print(f"ls -f of {BLOCKS} names: {listed_s:.2f} s")
    assert listed.count(b"\n") == BLOCKS + 3  # with ".", ".." and the first
    assert listed_s < 30
    handles = [os.open(f"{top}/{number}", os.O_RDONLY) for number in range(900)]
    for handle in handles:
        os.close(handle)
    grown = anonymous_mib(pid) - before
    print(f"the daemon's own memory: {before:.1f} MiB, grown by {grown:.1f} MiB")
    assert grown < 64
    subprocess.run(["rm", "-r", top], check=True)
    assert anonymous_mib(pid) - before < 64


def test_mounting_takes_the_same_time_whatever_is_there(
    large_pool: Any, attach: Callable[..., Any]
) -> None:
    """Clean, and after kill -9 of a daemon that was writing."""
    taken: dict[tuple[int, str], list[float]] = {}
    made = 0
    for count in (100, BLOCKS):
        pool = attach(large_pool.pool_path)
        namespace = pool.ns_create(b"blocks") if not made else pool.lookup(1, b"blocks").ino
        first = made
        fill(
            pool,
            count - first,
            lambda n: pool.block_put(namespace, bytes.fromhex(key(first + n).decode()), b"x" * 64),  # noqa: B023
        )
        made = count
        pool.close()
        for after in ("umount", "kill -9", "umount", "kill -9"):
            begun = time.perf_counter()
            large_pool.mount()
            taken.setdefault((count, after), []).append(time.perf_counter() - begun)
            fd = os.open(large_pool.path / "open", os.O_CREAT | os.O_WRONLY)
            os.write(fd, b"x" * 1_000_000)
            if after == "umount":
                large_pool.kill9()
            with contextlib.suppress(OSError):  # nobody is there any more
                os.close(fd)
            if after == "kill -9":
                large_pool.umount()
    for (count, after), times in sorted(taken.items()):
        print(f"mount, {count} blocks, after {after}: {min(times):.2f} s")
    assert min(min(taken[BLOCKS, after]) for after in ("umount", "kill -9")) < 6
    for after in ("umount", "kill -9"):
        assert min(taken[BLOCKS, after]) < 2 * min(taken[100, after]) + 1

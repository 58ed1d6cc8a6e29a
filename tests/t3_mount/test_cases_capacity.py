"""A full pool: the cap holds, the right blocks go, what can't be had is said at once."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from blocks import KIB, MIB, audit, content, expect_used, get, names, private_kib, put, used_bytes

# (pool, block): the second is what the reports that these tests come from were about.
SIZES = [
    pytest.param(64 * MIB, 256 * KIB, id="small"),
    pytest.param(256 * MIB, MIB, id="full", marks=pytest.mark.full_size),
]
sizes = pytest.mark.parametrize(("unmounted_pool", "block"), SIZES, indirect=["unmounted_pool"])


def evicted(mounted_pool: Any) -> int:
    return int(mounted_pool.stats()["evicted_blocks"])


@sizes
def test_the_cap_holds_over_a_remount(mounted_pool: Any, block: int) -> None:
    """Four times the pool, and, after a remount, twice more: no store fails, and used space is
    never above the pool's size, blocks of the earlier run included."""
    top = mounted_pool.path
    size = mounted_pool.size_bytes
    for number in range(1024 + 512):
        if number == 1024:
            assert audit(top, block) == []
            mounted_pool.remount()
            assert len(names(top)) > 0.7 * size / block
        put(top, f"m/{number % 16:x}/{number}", block)
        if number % 64 == 63:
            found = os.statvfs(top)
            assert used_bytes(top) <= found.f_blocks * found.f_frsize <= size
    assert audit(top, block) == []
    assert get(top, f"m/f/{1024 + 511}") is not None
    # df, du and the pool's own counters agree to the byte
    blocks = sum(os.stat(top / name).st_blocks * 512 for name in names(top))
    assert used_bytes(top) == blocks == int(mounted_pool.stats()["used_granules"]) * 4096


@sizes
def test_nothing_left_to_evict(mounted_pool: Any, block: int) -> None:
    """All blocks are open: a store fails with ENOSPC at once, leaves no name, and goes through
    when they are closed."""
    top = mounted_pool.path
    fill(mounted_pool, block)
    held = {}
    for name in names(top):
        with contextlib.suppress(FileNotFoundError):  # room is made ahead, also now
            held[name] = os.open(top / name, os.O_RDONLY)
    last = ""
    try:
        with pytest.raises(OSError) as caught:
            for number in range(len(held) + 10):
                last = f"more/{number}"
                put(top, last, block)
                held[last] = os.open(top / last, os.O_RDONLY)
        # room is made ahead of passthrough, so what was stored may have gone before its open
        gone = caught.value.errno == errno.ENOENT and mounted_pool.passthrough
        assert caught.value.errno == errno.ENOSPC or gone
        assert last not in names(top)
        for name, fd in held.items():
            assert os.pread(fd, block + 1, 0) == content(name, block)
    finally:
        for fd in held.values():
            os.close(fd)
    for path in (top / "more").glob("*.tmp"):
        path.unlink()
    put(top, last, block)
    assert audit(top, block) == []


def fill(mounted_pool: Any, block: int, prefix: str = "fill", until: int = 1) -> int:
    """Store until that many blocks were evicted; the number of blocks stored."""
    before = evicted(mounted_pool)
    number = 0
    while evicted(mounted_pool) < before + until:
        put(mounted_pool.path, f"{prefix}/{number}", block)
        number += 1
        assert number < 100_000
    return number


@sizes
def test_admission_is_a_use(mounted_pool: Any, block: int) -> None:
    """A block that was just stored is no older than one that was just read: both stay while a
    fifth of all goes."""
    top = mounted_pool.path
    whole = int(mounted_pool.stats()["data_granules"]) * 4096
    put(top, "A", block)
    count = 1
    while used_bytes(top) < 0.8 * whole:  # where nothing is evicted yet, for room ahead either
        put(top, f"old/{count}", block)
        count += 1
    assert get(top, "A") == content("A", block)
    put(top, "N", block)
    fill(mounted_pool, block, "new", until=count // 5)
    assert get(top, "A") == content("A", block)
    assert get(top, "N") == content("N", block)
    assert f"old/{count - 1}" in names(top) and "old/1" not in names(top)


@sizes
def test_recency_survives_a_remount(mounted_pool: Any, block: int) -> None:
    """Whoever stored them, and whenever: what was read last stays longest."""
    top = mounted_pool.path
    for number in range(200):
        put(top, f"b/{number}", block)
    for number in range(150):  # in another order than they were stored
        if number % 3 == 0:
            get(top, f"b/{number}")
    read = [f"b/{number}" for number in range(150, 200)]
    for name in read:
        assert get(top, name) == content(name, block)
    mounted_pool.remount()
    fill(mounted_pool, block, until=100)
    assert [name for name in read if get(top, name) is None] == []
    assert audit(top, block) == []


def test_recency_survives_a_crash(mounted_pool: Any) -> None:
    """What a killed daemon knew of the last seconds may be lost, not what came before."""
    top = mounted_pool.path
    for number in range(150):
        put(top, f"b/{number}", 256 * KIB)
    mounted_pool.remount()  # all are known by now
    mounted_pool.kill9()
    mounted_pool.mount()
    fill(mounted_pool, 256 * KIB, until=60)
    assert audit(top, 256 * KIB) == []
    left = {int(Path(name).name) for name in names(top) if name.startswith("b/")}
    assert left >= set(range(120, 150))


def meminfo_kib() -> dict[str, int]:
    with open("/proc/meminfo") as file:
        fields = (line.split() for line in file)
        return {words[0].rstrip(":"): int(words[1]) for words in fields}


@sizes
def test_a_full_pool_is_the_only_memory(mounted_pool: Any, block: int) -> None:
    """Storing four times the pool and reading what is left costs the daemon nothing that grows
    with the data, and the machine nothing that it can't have back: what the kernel caches of a
    FUSE mount is told, and counts as available. O_DIRECT leaves nothing behind."""
    top = mounted_pool.path
    size = mounted_pool.size_bytes
    for number in range(8):
        put(top, f"warm/{number}", block)
    private, before = private_kib(mounted_pool.daemon_pid), meminfo_kib()
    for number in range(4 * size // block):
        put(top, f"{number}", block)
    left = names(top)
    for name in left:
        get(top, name)
    after = meminfo_kib()
    assert private_kib(mounted_pool.daemon_pid) - private < min(64 * KIB, size // 4 // KIB)
    cached = [figures["Cached"] - figures["Shmem"] for figures in (before, after)]
    print(
        f"pool {size // MIB} MiB, {len(left) * block // MIB} MiB in it, stored and read: "
        f"page cache {(cached[1] - cached[0]) / KIB:+.0f} MiB, available "
        f"{(after['MemAvailable'] - before['MemAvailable']) / KIB:+.0f} MiB"
    )
    # over pyfuse3 a buffered read leaves a copy with the kernel, until the file is opened again
    copied = block if mounted_pool.transport == "pyfuse3" else 0
    own = block if mounted_pool.passthrough else 0  # pages of the pool, and no copy
    for flags, resident in ((os.O_RDONLY, copied or own), (os.O_RDONLY | os.O_DIRECT, own)):
        fd = os.open(top / left[-1], flags)
        buffer = mmap.mmap(-1, block)
        assert os.preadv(fd, [buffer], 0) == block
        assert cached_bytes(fd, block) == resident
        os.close(fd)


def cached_bytes(fd: int, size: int) -> int:
    """How much of an open file the page cache holds, by mincore(2)."""
    pages = (ctypes.c_ubyte * (-(-size // mmap.PAGESIZE)))()
    with mmap.mmap(fd, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as mapping:
        place = ctypes.c_char.from_buffer(mapping)
        address = ctypes.c_void_p(ctypes.addressof(place))
        assert ctypes.CDLL(None).mincore(address, ctypes.c_size_t(size), pages) == 0
        del place
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


def test_space_comes_back_at_once(mounted_pool: Any) -> None:
    """rm, truncate, rename over, O_TRUNC, and a writer that is killed after open and unlink."""
    top = mounted_pool.path
    fresh = used_bytes(top)
    for number in range(20):
        put(top, f"{number}", MIB)
    expect_used(top, fresh + 20 * MIB)
    for number in range(18):
        (top / f"{number}").unlink()
    expect_used(top, fresh + 2 * MIB)
    os.rename(top / "18", top / "19")
    expect_used(top, fresh + MIB)
    os.truncate(top / "19", 4096)
    expect_used(top, fresh + 4096)
    open(top / "19", "wb").close()
    expect_used(top, fresh)
    fd = os.open(top / "gone", os.O_CREAT | os.O_WRONLY)
    os.unlink(top / "gone")
    os.write(fd, bytes(MIB))
    os.close(fd)
    (top / "19").unlink()
    expect_used(top, fresh)
    mounted_pool.await_stat("inodes_used", 1)

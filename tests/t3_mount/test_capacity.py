"""What a full mount does: pins, classes, slots, and space that comes back."""

from __future__ import annotations

import errno
import os
import random
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from blocks import wait_for

MIB = 1 << 20
PIN = "user.beluga.pin"


def free_bytes(top: Path) -> int:
    found = os.statvfs(top)
    return found.f_bavail * found.f_frsize


@pytest.mark.parametrize("unmounted_pool", [32 * MIB], indirect=True)
def test_pins_by_attribute(unmounted_pool: Any) -> None:
    """Set as a user sets them, listed, kept over a remount, and honoured when the pool is full."""
    unmounted_pool.mount()
    top = unmounted_pool.path
    for name in ("hard", "soft", "free"):
        (top / name).mkdir()
        for i in range(4):
            (top / name / f"{i}").write_bytes(name.encode() * (MIB // 4))
    os.setxattr(top / "hard", PIN, b"hard")
    os.setxattr(top / "soft", PIN, b"soft")
    os.setxattr(top / "free/0", PIN, b"hard")
    with pytest.raises(OSError) as caught:
        os.setxattr(top / "free", PIN, b"yes")
    assert caught.value.errno == errno.EINVAL
    unmounted_pool.remount()
    assert os.listxattr(top / "hard") == [PIN]
    assert os.getxattr(top / "soft", PIN) == b"soft"
    assert os.listxattr(top / "free") == []
    for i in range(60):
        (top / "free" / f"more{i}").write_bytes(bytes(MIB))
    assert len(os.listdir(top / "hard")) == len(os.listdir(top / "soft")) == 4
    for name in ("hard", "soft"):
        for path in (top / name).iterdir():
            assert path.read_bytes() == name.encode() * (MIB // 4)
    assert (top / "free/0").exists() and not (top / "free/1").exists()
    os.removexattr(top / "hard", PIN)
    with pytest.raises(OSError) as caught:
        os.removexattr(top / "hard", PIN)
    assert caught.value.errno == errno.ENODATA


@pytest.mark.parametrize("unmounted_pool", [16 * MIB], indirect=True)
def test_a_mount_full_of_hard_pins_is_enospc(unmounted_pool: Any) -> None:
    unmounted_pool.mount()
    top = unmounted_pool.path
    os.setxattr(top, PIN, b"hard")
    with pytest.raises(OSError) as caught:
        for i in range(100):
            (top / f"{i}").write_bytes(bytes(MIB))
    assert caught.value.errno == errno.ENOSPC
    os.removexattr(top, PIN)
    for i in range(100, 130):
        (top / f"{i}").write_bytes(bytes(MIB))


@pytest.mark.parametrize("unmounted_pool", [32 * MIB], indirect=True)
@pytest.mark.parametrize("evict", ["lru", "all"])
def test_ordinary_files(unmounted_pool: Any, evict: str) -> None:
    unmounted_pool.mount(f"evict={evict}")
    top = unmounted_pool.path
    (top / "ordinary").write_bytes(bytes(MIB))
    with open(top / "ordinary", "r+b") as file:
        file.write(b"again")
    with open(top / "open", "wb") as file:
        file.write(bytes(MIB))
    with open(top / "open", "r+b") as held:
        held.write(b"again")
        for i in range(60):
            (top / f"{i}").write_bytes(bytes(MIB))
    assert (top / "ordinary").exists() == (evict == "lru")
    assert (top / "open").read_bytes()[:5] == b"again"


def at_once_or_soon(mounted_pool: Any, condition: Callable[[], bool]) -> None:
    if mounted_pool.passthrough:
        wait_for(condition)
    assert condition()


def test_space_is_back_at_once(mounted_pool: Any) -> None:
    """As df shows it, right after unlink and truncate.  The kernel tells the daemon of a close
    behind the caller's back, so what has no name goes in a moment; and, with passthrough, what was
    written a moment ago, since somebody may still be storing into it."""
    top = mounted_pool.path
    (top / "d").mkdir()
    before = os.statvfs(top)
    empty = free_bytes(top)

    (top / "f").write_bytes(bytes(8 * MIB))
    assert free_bytes(top) <= empty - 8 * MIB
    (top / "f").unlink()
    at_once_or_soon(mounted_pool, lambda: free_bytes(top) == empty)

    (top / "f").write_bytes(bytes(8 * MIB))
    os.truncate(top / "f", 4096)
    assert free_bytes(top) == empty - 4096
    os.truncate(top / "f", 0)
    assert free_bytes(top) == empty

    with open(top / "f", "wb") as file:
        file.write(bytes(8 * MIB))
        file.flush()
        (top / "f").unlink()
        assert free_bytes(top) <= empty - 8 * MIB
    wait_for(lambda: free_bytes(top) == empty)

    (top / "f").write_bytes(bytes(8 * MIB))
    with open(top / "f", "rb") as file:
        (top / "f").unlink()
        assert free_bytes(top) == empty - 8 * MIB
        assert file.read() == bytes(8 * MIB)
    wait_for(lambda: free_bytes(top) == empty)

    (top / "f").write_bytes(bytes(8 * MIB))
    (top / "g").write_bytes(bytes(4 * MIB))
    (top / "g").rename(top / "f")
    at_once_or_soon(mounted_pool, lambda: free_bytes(top) == empty - 4 * MIB)
    (top / "f").unlink()
    at_once_or_soon(mounted_pool, lambda: free_bytes(top) == empty)
    assert os.statvfs(top).f_ffree == before.f_ffree


def test_df_du_and_status_agree(mounted_pool: Any) -> None:
    top = mounted_pool.path
    for i in range(20):
        (top / f"d{i % 4}").mkdir(exist_ok=True)
        (top / f"d{i % 4}" / f"{i}").write_bytes(bytes(i * 70_001))
    with open(top / "sparse", "wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 35)
        file.write(b"x")
    os.symlink("x" * 300, top / "link")
    blocks = inodes = 0
    seen = set()
    for where, _, names in os.walk(top):
        for path in [where, *(os.path.join(where, name) for name in names)]:
            found = os.lstat(path)
            if found.st_ino not in seen:
                seen.add(found.st_ino)
                blocks, inodes = blocks + found.st_blocks, inodes + 1
    total = os.statvfs(top)
    stats = {k: int(v) for k, v in mounted_pool.stats().items() if v.isdecimal()}
    assert blocks * 512 == (total.f_blocks - total.f_bfree) * total.f_frsize
    assert blocks * 512 == stats["used_granules"] * stats["granule_bytes"]
    assert inodes == total.f_files - total.f_ffree == stats["inodes_used"]
    mounted_pool.umount()  # and so does fsck, which counts by itself
    mounted_pool.assert_clean()


@pytest.mark.flat_pool
def test_directories_make_room_when_inodes_are_out(native: Any, unmounted_pool: Any) -> None:
    """An engine that makes a directory for each block: makedirs and create work on and on."""
    with open(unmounted_pool.pool_path, "r+b") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        native.mkfs(file.fileno(), size_bytes, uuid=uuid.uuid4().bytes, inodes=400)
    unmounted_pool.mount()
    top = unmounted_pool.path
    os.makedirs(top / "cache/engine")
    made = full = 0
    # 200 directories with a block each; as many again, for which the first have to go. They are
    # too young at first.
    deadline = time.monotonic() + 60
    while made < 600 and time.monotonic() < deadline:
        place = top / f"cache/engine/{made}"
        try:
            os.makedirs(place, exist_ok=True)
            with open(place / "block", "wb") as file:
                file.write(bytes(4096))
            made += 1
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
            full += 1
            time.sleep(0.5)
    stats = mounted_stats(unmounted_pool)
    print(f"{made} made, {full} times full, {stats['reaped_dirs']} reaped")
    assert made == 600
    assert stats["reaped_dirs"] > 200
    assert (top / "cache/engine/599/block").exists()


@pytest.mark.flat_pool
def test_prefix_directories_of_evicted_blocks_go(native: Any, unmounted_pool: Any) -> None:
    """Thousands of blocks, each in a prefix directory of its own: all are evicted, and inodes get
    scarce. The empty prefixes go; storing under any prefix goes on without a failure."""
    prefixes = 1500
    with open(unmounted_pool.pool_path, "r+b") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        native.mkfs(file.fileno(), size_bytes, uuid=uuid.uuid4().bytes, inodes=2 * prefixes + 300)
    unmounted_pool.mount()
    top = unmounted_pool.path
    by_hand = top / "engine/model/by hand"

    def put(prefix: int, name: str) -> None:
        place = top / f"engine/model/{prefix:04x}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{name}.tmp").write_bytes(name.encode())
        (place / f"{name}.tmp").rename(place / name)

    for prefix in range(prefixes):
        put(prefix, "block")
    by_hand.mkdir()
    rng = random.Random(1)
    # Ordinary files take the inodes of the blocks, then those of their directories.
    (top / "files").mkdir()
    for files in range(prefixes + 100):
        os.mknod(top / "files" / f"{files}")
        if files % 50 == 0:
            put(rng.randrange(prefixes), f"early{files}")
    deadline = time.monotonic() + 60
    while mounted_stats(unmounted_pool)["reaped_dirs"] < prefixes * 0.9:
        assert time.monotonic() < deadline, mounted_stats(unmounted_pool)
        for _ in range(min(40, os.statvfs(top).f_ffree - 150)):
            files += 1
            os.mknod(top / "files" / f"{files}")
        put(rng.randrange(prefixes), f"new{time.monotonic_ns()}")
        time.sleep(0.02)
    empty = [place for place in (top / "engine/model").iterdir() if is_empty(place)]
    print(f"{files} files, {mounted_stats(unmounted_pool)['evicted_blocks']} evicted, {len(empty)}")
    assert by_hand in empty
    assert len(empty) < prefixes * 0.2


def is_empty(place: Path) -> bool:
    try:
        return not os.listdir(place)
    except FileNotFoundError:  # between the listing of the names and this look
        return False


def mounted_stats(pool: Any) -> dict[str, int]:
    return {k: int(v) for k, v in pool.stats().items() if v.isdecimal()}


def test_hits_and_misses(mounted_pool: Any) -> None:
    """A store is neither, with or without a rename; an open of what is there is a hit, a look-up
    of what isn't is a miss."""
    top = mounted_pool.path
    first = mounted_stats(mounted_pool)
    (top / "d").mkdir()
    for i in range(20):
        (top / "d" / f"{i}.tmp").write_bytes(b"x")
        (top / "d" / f"{i}.tmp").rename(top / "d" / f"{i}")
    stored = mounted_stats(mounted_pool)
    assert stored["hits"] == first["hits"]
    assert stored["misses"] - first["misses"] <= 4  # on a slow machine a create takes its time
    for i in range(30):
        if i < 20:
            (top / "d" / f"{i}").read_bytes()
        else:
            assert not (top / "d" / f"{i}").exists()
            with pytest.raises(FileNotFoundError):
                (top / "d" / f"{i}").read_bytes()
    then = mounted_stats(mounted_pool)
    assert then["hits"] - stored["hits"] == 20
    assert then["misses"] - stored["misses"] == 20

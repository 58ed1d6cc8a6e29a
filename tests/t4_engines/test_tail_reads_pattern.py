"""Blocks whose tail is read, and an evictor outside, as llm-d's filesystem backend has it.

Stores go through a large user-space buffer, then rename. A load opens the file, seeks to its
end for the size and reads the last so many bytes. A store that finds its file there sets the
access time and nothing else; a cleaner in another process removes what has the oldest one.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

KIB = 1024
MIB = KIB * KIB
BUFFER_BYTES = MIB

UTIME_NOW = (1 << 30) - 1
UTIME_OMIT = (1 << 30) - 2
_AT_FDCWD = -100


class _Timespec(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_long), ("nsec", ctypes.c_long)]


_libc = ctypes.CDLL(None, use_errno=True)


def touch_access_time(path: Path) -> None:
    """utimensat(2) with UTIME_NOW and UTIME_OMIT, which Python's os.utime doesn't offer."""
    times = (_Timespec * 2)(_Timespec(0, UTIME_NOW), _Timespec(0, UTIME_OMIT))
    if _libc.utimensat(_AT_FDCWD, os.fsencode(path), times, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))


def place(top: Path, number: int) -> Path:
    """Two levels of directories by hash, a file for each block."""
    name = f"{number * 2654435761 % 2**64:016x}"
    return top / name[:3] / f"{name[3:5]}_g0" / f"{name}.bin"


def store(path: Path, content: bytes) -> None:
    if path.exists():
        touch_access_time(path)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}_{os.getpid()}.tmp")
    with unfinished.open("wb", buffering=BUFFER_BYTES) as file:
        for start in range(0, len(content), 200_000):  # as the layers come
            file.write(content[start : start + 200_000])
        file.flush()
    unfinished.rename(path)


def load_tail(path: Path, wanted_bytes: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size < wanted_bytes:
            raise ValueError(f"{path} has {size} bytes, wanted {wanted_bytes}")
        file.seek(size - wanted_bytes)
        content = file.read(wanted_bytes)
    assert len(content) == wanted_bytes  # one read: never short
    return content


@pytest.mark.parametrize("wanted_bytes", [1, 4096, 300_001, 2_500_000, 2_621_440])
def test_the_tail_of_a_block_in_one_read(kv_dir: Path, wanted_bytes: int) -> None:
    content = os.urandom(2_621_440)
    store(place(kv_dir, 1), content)
    assert load_tail(place(kv_dir, 1), wanted_bytes) == content[-wanted_bytes:]
    with pytest.raises(ValueError, match="has 2621440 bytes"):
        load_tail(place(kv_dir, 1), len(content) + 1)
    with pytest.raises(FileNotFoundError):
        load_tail(place(kv_dir, 2), wanted_bytes)


def test_a_second_store_sets_the_access_time_alone(kv_dir: Path) -> None:
    path = place(kv_dir, 1)
    store(path, b"x" * MIB)
    os.utime(path, ns=(10**18 + 3, 10**18 + 7))
    before = path.stat()
    assert (before.st_atime_ns, before.st_mtime_ns) == (10**18 + 3, 10**18 + 7)
    started_ns = time.time_ns()
    store(path, b"never written")
    after = path.stat()
    assert after.st_mtime_ns == 10**18 + 7
    # The kernel's clock for file times is a few milliseconds coarser than this one.
    assert started_ns - 10**8 <= after.st_atime_ns <= time.time_ns() + 10**8
    assert after.st_ctime_ns > before.st_ctime_ns
    assert (after.st_size, after.st_ino) == (MIB, before.st_ino)


# usage: EVICTOR TOP ON OFF MIN_AGE_S: above ON percent unlink by access time until OFF percent.
# Prints how many it removed and the percentage at the end.
EVICTOR = """
import os, subprocess, sys, time
from pathlib import Path
top, on, off, age_s = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
def percent():
    s = os.statvfs(top)
    return 100 * (1 - s.f_bavail / s.f_blocks)
found = sorted((f.stat().st_atime, str(f)) for f in top.rglob("*.bin"))
old = [name for atime, name in found if time.time() - atime >= age_s]
removed = 0
if percent() > on:
    while old and percent() > off:
        batch, old = old[:4], old[4:]
        names = b"".join(os.fsencode(n) + b"\\0" for n in batch)
        subprocess.run(["xargs", "-0", "rm", "-f"], input=names, check=True)
        removed += len(batch)
print(removed, round(percent(), 2))
"""


def run_evictor(top: Path, on: float, off: float, min_age_s: float) -> tuple[int, float]:
    command = [sys.executable, "-c", EVICTOR, str(top), str(on), str(off), str(min_age_s)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    removed, percent = ran.stdout.split()
    return int(removed), float(percent)


def test_a_cleaner_outside_keeps_what_was_used(unmounted_pool: Any) -> None:
    unmounted_pool.mount("evict=none")
    top = Path(unmounted_pool.path)
    content = [bytes([number]) * MIB for number in range(256)]
    count = 0
    while True:
        space = os.statvfs(top)
        if 1 - space.f_bavail / space.f_blocks > 0.86:
            break
        store(place(top, count), content[count])
        # Stored long ago, in this order.
        os.utime(place(top, count), ns=(10**18 + count * 10**9, 10**18))
        count += 1
    assert count > 32
    used = [0, 3, 7]
    for number in used:
        store(place(top, number), b"is there")
    with place(top, 1).open("rb", buffering=0) as reader:
        assert reader.read(10) == content[1][:10]
        removed, percent = run_evictor(top, 85, 70, min_age_s=60)
        assert removed >= 8
        assert percent <= 70
        assert not place(top, 1).exists()
        assert reader.read() == content[1][10:]  # open: whole
    there = {number for number in range(count) if place(top, number).exists()}
    order = [number for number in range(count) if number not in used]
    assert there == set(used) | set(order[removed:])
    for number in there:
        assert load_tail(place(top, number), 1000) == content[number][-1000:]
    # Below the threshold it has nothing to do.
    assert run_evictor(top, 85, 70, min_age_s=60)[0] == 0
    # What was removed is a miss, and is stored again.
    store(place(top, 1), content[1])
    assert load_tail(place(top, 1), MIB) == content[1]


def test_removed_space_is_seen_at_once(mounted_pool: Any) -> None:
    """A cleaner that goes by f_bavail must not remove more than it has to."""
    top = Path(mounted_pool.path)
    for number in range(20):
        store(place(top, number), b"x" * MIB)
    for number in range(20):
        before = os.statvfs(top)
        place(top, number).unlink()
        after = os.statvfs(top)
        assert after.f_bavail - before.f_bavail == MIB // 4096
        assert after.f_bavail == after.f_bfree

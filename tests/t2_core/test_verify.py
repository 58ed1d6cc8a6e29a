"""Checking files on request: what is compared, what damage does to later reads, what it doesn't
touch."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.parametrize("pool_kind", ["file", "directory"])

CHUNK_BYTES = 256 * 1024
GRANULE_BYTES = 4096


def _put(pool: Any, name: str, data: bytes, flags: int = os.O_WRONLY) -> int:
    attr, fh = pool.create(1, name, flags=flags)
    pool.write(fh, 0, data)
    pool.flush(fh)
    pool.release(fh)
    return int(attr.ino)


def _flip(pool: Any, path: Path, ino: int, offset: int) -> None:
    """Damage one byte of a file behind the core's back; again: the former state."""
    if path.is_dir():
        slot, generation = ino & 0xFFFFFFFF, ino >> 32
        _flip_in(path / f"data/{slot % 256:02x}/{slot:08x}.{generation:08x}", offset)
        return
    for place in os.fsdecode(pool.getxattr(ino, "user.beluga.extents")).splitlines():
        start, _, pool_offset, length = map(int, place.split())
        if start <= offset < start + length:
            _flip_in(path, pool_offset + offset - start)
            return
    raise AssertionError("no extent there")


def _flip_in(path: Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        old = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([old[0] ^ 0x80]))


def test_a_whole_file_is_checked_in_slices(core_pool: Any) -> None:
    size = 5 * CHUNK_BYTES + 17
    ino = _put(core_pool, "f", os.urandom(size))
    whole = core_pool.verify(ino)
    assert (whole["done"], whole["checked_bytes"], whole["bad_chunks"]) == (True, size, 0)
    at, slices, checked = 0, 0, 0
    while True:
        part = core_pool.verify(ino, at, 2 * CHUNK_BYTES)
        slices += 1
        checked += part["checked_bytes"]
        if part["done"]:
            break
        assert part["next"] > at
        at = part["next"]
    assert (slices, checked) == (3, size)
    # an offset within a chunk: that chunk is checked
    assert core_pool.verify(ino, 5 * CHUNK_BYTES + 3)["checked_bytes"] == 17


@pytest.mark.parametrize("verify", ["first", "always", "off"])
def test_damage_is_found_whatever_the_pool_was_attached_with(
    attach: Callable[..., Any], pool_file: Path, verify: str
) -> None:
    pool = attach(pool_file, verify=verify)
    data = os.urandom(4 * CHUNK_BYTES)
    ino = _put(pool, "f", data)
    assert pool.verify(ino)["bad_chunks"] == 0
    _flip(pool, pool_file, ino, 2 * CHUNK_BYTES + 5)
    _flip(pool, pool_file, ino, 3 * CHUNK_BYTES)
    found = pool.verify(ino)
    assert (found["bad_chunks"], found["checked_bytes"]) == (2, len(data))
    assert (found["bad_off"], found["bad_bytes"]) == (2 * CHUNK_BYTES, CHUNK_BYTES)
    assert pool.verify(ino)["bad_chunks"] == 2
    assert pool.statfs()["corrupt"] == 1  # one block, however often it is looked at
    fh = pool.open(ino, os.O_RDONLY)
    try:
        assert pool.read(fh, 0, CHUNK_BYTES) == data[:CHUNK_BYTES]
        if verify == "off":
            assert len(pool.read(fh, 2 * CHUNK_BYTES, 10)) == 10
        else:
            # it was read well before: verify=first must not go on believing that
            with pytest.raises(OSError) as caught:
                pool.read(fh, 2 * CHUNK_BYTES, 10)
            assert caught.value.errno == errno.EIO
    finally:
        pool.release(fh)
    for offset in (2 * CHUNK_BYTES + 5, 3 * CHUNK_BYTES):
        _flip(pool, pool_file, ino, offset)
    assert pool.verify(ino)["bad_chunks"] == 0


def test_what_has_no_checksums_is_said(core_pool: Any) -> None:
    attr, fh = core_pool.create(1, "new", flags=os.O_WRONLY)
    core_pool.write(fh, 0, b"x" * 1000)
    found = core_pool.verify(attr.ino)
    assert (found["done"], found["checked_bytes"], found["unchecked_bytes"]) == (True, 0, 1000)
    core_pool.flush(fh)
    assert core_pool.verify(attr.ino)["checked_bytes"] == 1000
    core_pool.release(fh)


def test_a_sealed_file_written_again_is_checked_where_it_is_old(core_pool: Any) -> None:
    ino = _put(core_pool, "f", os.urandom(4 * CHUNK_BYTES))
    fh = core_pool.open(ino, os.O_RDWR)
    core_pool.write(fh, CHUNK_BYTES + 5, b"new")
    found = core_pool.verify(ino)
    assert found["checked_bytes"] == 3 * CHUNK_BYTES
    assert found["unchecked_bytes"] == CHUNK_BYTES
    core_pool.flush(fh)
    core_pool.release(fh)
    assert core_pool.verify(ino)["checked_bytes"] == 4 * CHUNK_BYTES


def test_holes_are_neither_checked_nor_unchecked(core_pool: Any) -> None:
    attr, fh = core_pool.create(1, "sparse", flags=os.O_WRONLY)
    core_pool.write(fh, 10 * CHUNK_BYTES, b"end")
    core_pool.setattr(attr.ino, size=1 << 33, fh=fh)
    core_pool.flush(fh)
    core_pool.release(fh)
    found = core_pool.verify(attr.ino)
    assert (found["done"], found["unchecked_bytes"]) == (True, 0)
    assert 3 <= found["checked_bytes"] <= CHUNK_BYTES


def test_checking_is_no_use(core_pool: Any) -> None:
    """The order of eviction stays, whatever a scrubber reads."""
    data = bytes(1 << 20)
    inos = [_put(core_pool, f"b{number}", data) for number in range(8)]
    for ino in reversed(inos):
        assert core_pool.verify(ino)["bad_chunks"] == 0
    core_pool.evict(len(data) // GRANULE_BYTES)
    with pytest.raises(OSError):
        core_pool.getattr(inos[0])
    assert core_pool.getattr(inos[1]).size == len(data)


def test_what_is_no_regular_file(core_pool: Any) -> None:
    directory = core_pool.mkdir(1, "d").ino
    gone = _put(core_pool, "gone", b"x")
    core_pool.unlink(1, "gone")
    for ino in (directory, gone, 1, 12345):
        with pytest.raises(OSError) as caught:
            core_pool.verify(ino)
        assert caught.value.errno in (errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.ESTALE)

"""Blocks put together from shards, as UCM's POSIX store does it.

Each shard of a block is an open, a pwrite at its offset and a close of its own, from any thread
and in any order, into one temporary file; the block gets its name once the last shard is there.
So a file is closed and opened for writing again many times before it is a block, and must be
one all the same: found, whole, and evicted when the pool is full.
"""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

SHARDS = 8
KIB = 1024
MIB = KIB * KIB

# Shards of whole pages, and such that share a page with their neighbours.
LENGTHS = pytest.mark.parametrize("shard_bytes", [64 * KIB, 50_001])


def shard_content(key: str, index: int, shard_bytes: int) -> bytes:
    return hashlib.shake_128(f"{key}/{index}".encode()).digest(shard_bytes)


class Store:
    """The store of one engine process over a directory."""

    def __init__(self, top: Path, shard_bytes: int, directory_digits: int) -> None:
        self._top = top
        self._shard_bytes = shard_bytes
        self._digits = directory_digits
        self._lock = threading.Lock()
        self._missing: dict[str, int] = {}
        for number in range(16**directory_digits):
            (top / f"{number:0{directory_digits}x}").mkdir(exist_ok=True)

    def place(self, key: str) -> Path:
        return self._top / key[: self._digits] / key

    def store_shard(self, key: str, index: int) -> None:
        """Write one shard; whoever writes the last one publishes the block."""
        unfinished = self.place(key).with_suffix(".tmp")
        fd = os.open(unfinished, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            content = shard_content(key, index, self._shard_bytes)
            assert os.pwrite(fd, content, index * self._shard_bytes) == self._shard_bytes
        finally:
            os.close(fd)
        with self._lock:
            self._missing[key] = self._missing.get(key, SHARDS) - 1
            last = not self._missing[key]
        if last:
            os.rename(unfinished, self.place(key))

    def has(self, key: str) -> bool:
        """A look-up is access(2), and a hit counts as use.

        The kernel may know a name for up to a second longer than the pool: then utime(2) finds
        out, as open(2) would.
        """
        if not os.access(self.place(key), os.F_OK | os.R_OK | os.W_OK):
            return False
        try:
            os.utime(self.place(key))
        except FileNotFoundError:
            return False
        return True

    def load(self, key: str) -> bytes:
        fd = os.open(self.place(key), os.O_RDONLY)
        try:
            parts = [
                os.pread(fd, self._shard_bytes, index * self._shard_bytes)
                for index in range(SHARDS)
            ]
        finally:
            os.close(fd)
        return b"".join(parts)

    def expected(self, key: str) -> bytes:
        return b"".join(shard_content(key, i, self._shard_bytes) for i in range(SHARDS))


def keys(count: int, seed: int) -> list[str]:
    return [hashlib.md5(f"{seed}/{number}".encode()).hexdigest() for number in range(count)]


def store_all(store: Store, wanted: list[str], seed: int) -> None:
    """All shards of these blocks, mixed, from eight threads."""
    shards = [(key, index) for key in wanted for index in range(SHARDS)]
    random.Random(seed).shuffle(shards)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda shard: store.store_shard(*shard), shards))


@LENGTHS
def test_shards_in_any_order_make_a_block(kv_dir: Path, shard_bytes: int) -> None:
    store = Store(kv_dir, shard_bytes, directory_digits=2)
    wanted = keys(16, seed=1)
    half_seen: list[str] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            for key in wanted:
                if store.has(key) and store.load(key) != store.expected(key):
                    half_seen.append(key)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        store_all(store, wanted, seed=2)
    finally:
        stop.set()
        watcher.join()
    assert not half_seen
    for key in wanted:
        assert store.has(key)
        assert store.place(key).stat().st_size == SHARDS * shard_bytes
        assert store.load(key) == store.expected(key)
    assert not list(kv_dir.rglob("*.tmp"))


def test_its_directories_and_its_own_garbage_collection(kv_dir: Path) -> None:
    """4096 directories made at the start; some are sampled, and the oldest of them unlinked."""
    store = Store(kv_dir, 4 * KIB, directory_digits=3)
    assert len(os.listdir(kv_dir)) == 4096
    wanted = keys(64, seed=3)
    store_all(store, wanted, seed=4)
    for age, key in enumerate(wanted):
        os.utime(store.place(key), ns=(0, 10**18 + (len(wanted) - age) * 10**9))
    for key in wanted[:8]:
        assert store.has(key)  # used just now: the youngest
    found = [
        (entry.stat().st_mtime_ns, Path(entry.path))
        for name in os.listdir(kv_dir)
        for entry in os.scandir(kv_dir / name)
    ]
    assert {path.name for _, path in found} == set(wanted)
    for _, path in sorted(found)[:32]:
        path.unlink()
    left = {key for key in wanted if store.has(key)}
    assert left == set(wanted[:32])


@pytest.mark.parametrize("shard_bytes", [128 * KIB, 130_001])
@pytest.mark.parametrize("reopened", [True, False], ids=["one-open-a-shard", "one-open"])
def test_a_full_pool_evicts_such_blocks(
    mounted_pool: Any, reopened: bool, shard_bytes: int
) -> None:
    """64 MiB of pool, 128 MiB of blocks: every store succeeds, the newest are there."""
    store = Store(mounted_pool.path, shard_bytes, directory_digits=1)
    wanted = keys(128, seed=5)

    def at_once(key: str) -> None:
        unfinished = store.place(key).with_suffix(".tmp")
        with unfinished.open("wb", buffering=0) as file:
            for index in reversed(range(SHARDS)):
                os.pwrite(
                    file.fileno(), shard_content(key, index, shard_bytes), index * shard_bytes
                )
        unfinished.rename(store.place(key))

    def in_shards(key: str) -> None:
        for index in reversed(range(SHARDS)):
            store.store_shard(key, index)

    put: Callable[[str], None] = in_shards if reopened else at_once
    for key in wanted:
        put(key)
        assert os.getxattr(store.place(key), "user.beluga.class") == b"block"
    kept, before = wanted, None
    while kept != before:  # room is made ahead of the next store, a moment after the last one
        time.sleep(0.3)
        kept, before = [key for key in wanted if store.has(key)], kept
    assert 16 <= len(kept) < 64
    assert kept[-8:] == wanted[-8:]
    for key in kept:
        assert store.load(key) == store.expected(key)

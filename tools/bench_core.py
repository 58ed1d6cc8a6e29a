#!/usr/bin/env python3
"""Figures of the core on one thread, on DRAM, beside a Python dict and tmpfs in the same run.

    .venv/bin/python tools/bench_core.py [--blocks 100000] [--big 1000000] [--json]

A figure without its partner means nothing on a shared machine, so every row has one: what
the same work costs with a dict of bytes keys, or with files in a tmpfs directory. Times are
medians of the rounds. Nothing here is asserted; docs/performance.md quotes a run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from belugafs import _native

KEY_BYTES = 32
HIT_KEYS = 938  # a 15,000-token prompt in blocks of 16
MIB = 1 << 20
GRANULE = _native.GRANULE_BYTES


def key(index: int) -> bytes:
    """A block key: uniformly spread, as a hash would be."""
    word = (index * 0x9E3779B97F4A7C15 + 0x1234567) & (2**64 - 1)
    return word.to_bytes(8, "little") + index.to_bytes(8, "little") * 3


def median_us(work: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1000


class Bench:
    """Makes pools in one directory, runs the parts, collects (name, value, unit) rows."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rows: list[tuple[str, float, str]] = []
        self.made = 0

    def row(self, name: str, value: float, unit: str) -> None:
        self.rows.append((name, value, unit))
        print(f"{name:66s} {value:14,.2f} {unit}", flush=True)

    def pool(self, size_bytes: int, **options: Any) -> tuple[Path, _native.Pool]:
        self.made += 1
        path = self.root / f"bench-{self.made}.pool"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.posix_fallocate(fd, 0, size_bytes)  # as mkfs.belugafs does: no first touch later
        _native.mkfs(fd, size_bytes, uuid=os.urandom(16), **options)
        os.close(fd)
        return path, self.attach(path)

    def attach(self, path: Path, **options: Any) -> _native.Pool:
        fd = os.open(path, os.O_RDWR)
        try:
            size = os.fstat(fd).st_size
            return _native.Pool(fd, size, host_uuid=b"h" * 16, boot_id=b"b" * 16, **options)
        finally:
            os.close(fd)

    # -- parts --------------------------------------------------------------------------
    def put(self, pool: _native.Pool, ns: int, first: int, count: int, batch: int) -> None:
        data = bytes(64)
        for start in range(first, first + count, batch):
            pool.batch_begin()
            for i in range(start, min(start + batch, first + count)):
                pool.block_put(ns, key(i), data)
            pool.batch_commit()

    def lookups(self, blocks: int) -> None:
        path, pool = self.pool(3 << 30, inodes=blocks * 5 // 4)
        ns = pool.ns_create("bench")
        start = time.perf_counter()
        self.put(pool, ns, 0, blocks, 256)
        self.row(
            f"put {blocks} blocks of 64 B, batches of 256",
            (time.perf_counter() - start) / blocks * 1e6,
            "us each",
        )
        table = {key(i): i for i in range(blocks)}
        step = blocks // HIT_KEYS
        present = [key(i * step) for i in range(HIT_KEYS)]
        absent = [key(blocks * 2 + i) for i in range(HIT_KEYS)]
        for name, keys in (("present", present), ("absent", absent)):
            joined = b"".join(keys)
            mine = median_us(lambda j=joined: pool.block_exists(ns, j, KEY_BYTES), 200)  # type: ignore[misc]
            theirs = median_us(lambda k=keys: [x in table for x in k], 200)  # type: ignore[misc]
            self.row(f"look-up of {HIT_KEYS} {name} keys, one call", mine, "us")
            self.row("  the same in a dict", theirs, "us")
        joined = b"".join(present)
        self.row(
            f"match of {HIT_KEYS} present keys",
            median_us(lambda: pool.block_match(ns, joined, KEY_BYTES), 200),
            "us",
        )
        pool.close()
        path.unlink()

    def changes(self, count: int) -> None:
        path, pool = self.pool(1 << 30, inodes=count * 3 + 10000)
        tmpfs = self.root / "files"
        tmpfs.mkdir()
        directory = pool.mkdir(_native.ROOT_INO, "d").ino

        def create_tmpfs(i: int) -> None:
            os.close(os.open(tmpfs / f"{i:064x}.bin", os.O_CREAT | os.O_WRONLY, 0o644))

        start = time.perf_counter()
        for i in range(count):
            create_tmpfs(i)
        base = (time.perf_counter() - start) / count * 1e6
        before = pool.statfs()
        start = time.perf_counter()
        for i in range(count):
            pool.mknod(directory, f"{i:064x}.bin", 0o100644)
        one = (time.perf_counter() - start) / count * 1e6
        after = pool.statfs()
        self.row("create an empty file, a transaction each", one, "us")
        self.row("  the same in tmpfs", base, "us")
        self.row(
            "  written per transaction",
            (after["bytes_written_meta"] - before["bytes_written_meta"])
            / (after["txns"] - before["txns"])
            / 1024,
            "KiB",
        )
        before = pool.statfs()
        start = time.perf_counter()
        for first in range(0, count, 1000):
            pool.batch_begin()
            for i in range(first, first + 1000):
                pool.mknod(directory, f"{i:063x}.bin2", 0o100644)
            pool.batch_commit()
        self.row(
            "create an empty file, 1000 a transaction",
            (time.perf_counter() - start) / count * 1e6,
            "us",
        )
        after = pool.statfs()
        self.row(
            "  written per file",
            (after["bytes_written_meta"] - before["bytes_written_meta"]) / count / 1024,
            "KiB",
        )
        payload = os.urandom(64 << 10)
        rounds = min(count, 4000)
        start = time.perf_counter()
        for i in range(rounds):
            _, fh = pool.create(directory, f"b{i}.tmp", flags=os.O_WRONLY | os.O_EXCL)
            pool.write(fh, 0, payload)
            pool.flush(fh)
            pool.release(fh)
            pool.rename(directory, f"b{i}.tmp", directory, f"b{i}")
        self.row(
            "create, write 64 KiB, close (sealed), rename",
            (time.perf_counter() - start) / rounds * 1e6,
            "us",
        )
        start = time.perf_counter()
        for i in range(rounds):
            fd = os.open(tmpfs / f"b{i}.tmp", os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o644)
            os.write(fd, payload)
            os.close(fd)
            os.rename(tmpfs / f"b{i}.tmp", tmpfs / f"b{i}")
        self.row("  the same in tmpfs", (time.perf_counter() - start) / rounds * 1e6, "us")
        pool.close()
        path.unlink()
        shutil.rmtree(tmpfs)

    def opening(self, small: int, big: int) -> None:
        """The same pool, nearly empty and full: 4 KiB of data a block, 1.2 KiB of metadata."""
        path, pool = self.pool(big * 9000 + (64 << 20), inodes=big * 11 // 10 + 1000)
        ns = pool.ns_create("bench")
        done = 0
        for blocks in (small, big):
            self.put(pool, ns, done, blocks - done, 512)
            done = blocks
            pool.close()
            times = []
            for _ in range(9):
                start = time.perf_counter_ns()
                again = self.attach(path)
                again.block_exists(ns, key(0), KEY_BYTES)
                times.append(time.perf_counter_ns() - start)
                again.close()
            self.row(
                f"open a pool with {blocks} blocks and look one up",
                statistics.median(times) / 1e6,
                "ms",
            )
            pool = self.attach(path)
        pool.close()
        path.unlink()

    def capacity(self, size_bytes: int) -> None:
        path, pool = self.pool(size_bytes)
        ns = pool.ns_create("bench")
        stored: list[int] = []

        def fill(block_bytes: int, total: int, first: int) -> int:
            data = bytes(block_bytes)
            for i in range(first, first + total // block_bytes):
                pool.block_put(ns, key(i), data)
            return first + total // block_bytes

        def held() -> float:
            stat = pool.statfs()
            return (
                stat["blocks_bytes"]
                if "blocks_bytes" in stat
                else stat["evictable_granules"] * GRANULE
            )

        next_key = fill(5 * MIB // 2, size_bytes + size_bytes // 10, 0)
        self.row(
            "payload a pool holds, blocks of 2.5 MiB", held() / size_bytes * 100, "% of the pool"
        )
        for block_bytes in (MIB, 5 * MIB, 640 << 10):
            next_key = fill(block_bytes, size_bytes + size_bytes // 4, next_key)
            stored.append(int(held()))
            self.row(
                f"  after a change to blocks of {block_bytes >> 10} KiB",
                held() / size_bytes * 100,
                "% of the pool",
            )
        pool.close()
        path.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dir", default="/dev/shm", help="where the pools are made; tmpfs (default /dev/shm)"
    )
    parser.add_argument("--blocks", type=int, default=100_000, help="blocks in the look-up part")
    parser.add_argument(
        "--big", type=int, default=1_000_000, help="blocks in the larger pool of the opening part"
    )
    parser.add_argument("--changes", type=int, default=20_000, help="files in the create part")
    parser.add_argument(
        "--capacity",
        type=int,
        default=4096,
        help="size of the pool of the capacity part, MiB; 0 leaves it out",
    )
    parser.add_argument("--json", action="store_true", help="print the rows as JSON at the end")
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="belugafs-bench-", dir=args.dir))
    bench = Bench(root)
    try:
        bench.lookups(args.blocks)
        bench.changes(args.changes)
        bench.opening(1000, args.big)
        if args.capacity:
            bench.capacity(args.capacity * MIB)
    finally:
        shutil.rmtree(root)
    if args.json:
        print(
            json.dumps(
                [{"name": n.strip(), "value": v, "unit": u} for n, v, u in bench.rows], indent=1
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m belugafs.kernels.bench``: copies beside the best memcpy of the same run.

All rows are measured in turn, round after round, and a ratio is the median of the ratios within a
round: the machine may be busy, and absolute times then say little. Places are drawn at random from
memory that is much larger than the caches that a core has for itself, as blocks of a pool are.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from belugafs.kernels import CpuMover, Layout, PagedCache, _copy
from belugafs.kernels.layout import Blocks

MIB = 1 << 20
SUM_BYTES = 256 << 10
LAYOUT = Layout(layers=64, kv=2, heads=5, head_dim=128, block_tokens=16, dtype_bytes=2)
"""128 chunks of 20 KiB: a block of 2.5 MiB."""

MEMCPY = ("memcpy", "rep movsb")


@dataclass
class Row:
    """One kind of work. ``ratio``: of the speed of the best memcpy of as many bytes."""

    name: str
    nbytes: int
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    ratio: float = 0.0
    goal: float | None = None
    against: str = ""

    def as_dict(self) -> dict[str, Any]:
        data = asdict(self)
        del data["seconds"], data["cpu_seconds"]
        data["median_us"] = statistics.median(self.seconds) * 1e6
        data["gb_per_s"] = self.nbytes / statistics.median(self.seconds) / 1e9
        data["cpu_s_per_gb"] = sum(self.cpu_seconds) / (self.nbytes * len(self.seconds)) * 1e9
        return data


class _Places:
    """A pool (tmpfs, populated) and an engine's cache, and random places in both."""

    def __init__(self, memory_bytes: int, random: np.random.Generator) -> None:
        self._random = random
        fd = os.memfd_create("belugafs-bench")
        try:
            os.ftruncate(fd, memory_bytes)
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            self.pool = np.frombuffer(mmap.mmap(fd, memory_bytes, flags), np.uint8)
        finally:
            os.close(fd)
        pages = memory_bytes // LAYOUT.block_bytes
        shape = (LAYOUT.layers, 2, pages, LAYOUT.block_tokens, LAYOUT.heads, LAYOUT.head_dim)
        self.engine = np.ones(shape, np.uint16)
        self.flat = self.engine.reshape(-1).view(np.uint8)

    def at(self, side: np.ndarray[Any, Any], nbytes: int) -> np.ndarray[Any, Any]:
        start = int(self._random.integers(0, (side.nbytes - nbytes) // 4096)) * 4096
        return side[start : start + nbytes]

    def cache(self, block_tokens: int) -> PagedCache:
        """The same memory, seen as pages of so many tokens."""
        layout = Layout(LAYOUT.layers, 2, LAYOUT.heads, LAYOUT.head_dim, block_tokens, 2)
        pages = self.engine.shape[2] * LAYOUT.block_tokens // block_tokens
        engine = self.engine[:, :, : pages * block_tokens // LAYOUT.block_tokens]
        shape = (LAYOUT.layers, 2, pages, block_tokens, LAYOUT.heads, LAYOUT.head_dim)
        strides = (*engine.strides[:2], engine.strides[3] * block_tokens, *engine.strides[3:])
        tensor = np.ndarray(shape, np.uint16, self.engine, 0, strides)
        return PagedCache.from_tensors(layout, [tensor], "lkpthd")


Work = Callable[[], Callable[[], object]]
"""Draws places, and returns what is to be timed."""


def _works(places: _Places) -> dict[str, tuple[int, Work]]:
    block_bytes, small = LAYOUT.block_bytes, 16 << 10
    plain, summing = CpuMover(threads=1), CpuMover(threads=1, sum_bytes=SUM_BYTES)
    random = np.random.default_rng(2)
    cache, long_cache = places.cache(16), places.cache(256)

    def raw(how: int, nbytes: int) -> Work:
        def draw() -> Callable[[], object]:
            dst, src = places.at(places.pool, nbytes), places.at(places.flat, nbytes)
            return lambda: _copy.plain_copy(dst, src, how)

        return draw

    def whole(mover: CpuMover, to_pool: bool, nbytes: int) -> Work:
        def draw() -> Callable[[], object]:
            pool, engine = places.at(places.pool, nbytes), places.at(places.flat, nbytes)
            dst, src = (pool, engine) if to_pool else (engine, pool)
            return lambda: mover.copy(dst, src, to_pool=to_pool)

        return draw

    def paged(mover: CpuMover, of: PagedCache, to_pool: bool, nblocks: int) -> Work:
        """The list is made beforehand; `lists` is the row that has it inside."""

        def draw() -> Callable[[], object]:
            views = [places.at(places.pool, of.layout.block_bytes) for _ in range(nblocks)]
            pages = random.permutation(of.npages)[:nblocks]
            transfer = of.transfer(pages, Blocks.of(views))
            return lambda: mover.run(transfer, to_pool=to_pool)

        return draw

    def lists() -> Callable[[], object]:
        blocks = Blocks.of([places.at(places.pool, block_bytes)])
        pages = random.permutation(cache.npages)[:1]
        return lambda: plain.gather_write(cache, pages, blocks)

    long_bytes = 16 * block_bytes
    return {
        "memcpy": (block_bytes, raw(0, block_bytes)),
        "rep movsb": (block_bytes, raw(1, block_bytes)),
        "copy to the pool": (block_bytes, whole(plain, True, block_bytes)),
        "copy from the pool": (block_bytes, whole(plain, False, block_bytes)),
        "copy to the pool, checksums": (block_bytes, whole(summing, True, block_bytes)),
        "gather 128 x 20 KiB": (block_bytes, paged(plain, cache, True, 1)),
        "scatter 128 x 20 KiB": (block_bytes, paged(plain, cache, False, 1)),
        "gather, page numbers to list too": (block_bytes, lists),
        "gather, checksums": (block_bytes, paged(summing, cache, True, 1)),
        "scatter, checksums": (block_bytes, paged(summing, cache, False, 1)),
        "memcpy 16 KiB": (small, raw(0, small)),
        "copy from the pool 16 KiB": (small, whole(plain, False, small)),
        "gather 1 x 256 tokens": (long_bytes, paged(plain, long_cache, True, 1)),
        "gather 16 x 16 tokens": (long_bytes, paged(plain, cache, True, 16)),
    }


_GOALS = {
    "copy to the pool": 0.95,
    "copy from the pool": 0.95,
    "gather 128 x 20 KiB": 0.9,
    "scatter 128 x 20 KiB": 0.9,
    "copy from the pool 16 KiB": 0.5,
    "gather 16 x 16 tokens": 0.91,
}
_AGAINST = {
    "copy from the pool 16 KiB": "memcpy 16 KiB",
    "memcpy 16 KiB": "memcpy 16 KiB",
    "gather 16 x 16 tokens": "gather 1 x 256 tokens",
    "gather 1 x 256 tokens": "gather 1 x 256 tokens",
}


def measure_cpu(*, memory_bytes: int = 512 * MIB, seconds: float = 5.0) -> list[Row]:
    """All rows, for about ``seconds``. Needs twice ``memory_bytes`` of memory, at least 48 MiB each
    (ValueError)."""
    if memory_bytes < 48 * MIB:
        raise ValueError(f"{memory_bytes} bytes are too few: 48 MiB or more")
    works = _works(_Places(memory_bytes, np.random.default_rng(1)))
    rows = {name: Row(name, nbytes, goal=_GOALS.get(name)) for name, (nbytes, _) in works.items()}
    deadline = time.monotonic() + seconds
    rounds = 0
    while rounds < 5 or time.monotonic() < deadline:
        for name, (_, draw) in works.items():
            run = draw()
            cpu, begin = time.process_time(), time.perf_counter()
            run()
            took, cpu_took = time.perf_counter() - begin, time.process_time() - cpu
            if rounds:  # the first touches code and page tables
                rows[name].seconds.append(took)
                rows[name].cpu_seconds.append(cpu_took)
        rounds += 1
    best = min(MEMCPY, key=lambda name: statistics.median(rows[name].seconds))
    for row in rows.values():
        row.against = _AGAINST.get(row.name, best)
        pairs = zip(rows[row.against].seconds, row.seconds, strict=True)
        row.ratio = statistics.median(other / own for other, own in pairs)
    return list(rows.values())


def _print(rows: list[Row], about: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE, title=about, title_justify="left")
    table.add_column("work")
    for name in ("ratio", "goal", "GB/s", "median us", "CPU s/GB"):
        table.add_column(name, justify="right")
    table.add_column("ratio to")
    for row in rows:
        data = row.as_dict()
        table.add_row(
            row.name,
            f"{row.ratio:.2f}",
            "" if row.goal is None else f"{row.goal:.2f}",
            f"{data['gb_per_s']:.1f}",
            f"{data['median_us']:.1f}",
            f"{data['cpu_s_per_gb']:.3f}",
            row.against,
        )
    Console(width=None if sys.stdout.isatty() else 110).print(table)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m belugafs.kernels.bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="for the processor's rows (5)")
    parser.add_argument("--memory-mib", type=int, default=512, help="of each side (512)")
    parser.add_argument("--isa", choices=_copy.isas(), help="other loops than the best ones")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--thresholds", action="store_true", help="with a GPU: measure and print its thresholds"
    )
    options = parser.parse_args(argv)
    if options.isa:
        _copy.set_isa(options.isa)
    rows = measure_cpu(memory_bytes=options.memory_mib * MIB, seconds=options.seconds)
    about = f"{_copy.isa()}, one thread, {len(os.sched_getaffinity(0))} processors, load "
    about += f"{os.getloadavg()[0]:.1f}, {len(rows[0].seconds)} rounds"
    gpu = _gpu(options.thresholds)
    if options.json:
        print(json.dumps({"about": about, "rows": [row.as_dict() for row in rows], "gpu": gpu}))
        return
    _print(rows, about)
    if "missing" in gpu:
        print(f"GPU: not measured: {gpu['missing']}")
        return
    for name, value in gpu.items():
        print(f"GPU: {name}: {value}")


def _gpu(thresholds: bool) -> dict[str, Any]:
    from belugafs.kernels.bench_gpu import GpuMissing, measure_gpu

    try:
        return measure_gpu(LAYOUT, thresholds=thresholds)
    except GpuMissing as missing:
        return {"missing": str(missing)}


if __name__ == "__main__":
    main()

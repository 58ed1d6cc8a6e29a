"""The run: makes the places, fills them, measures all rows, and removes what it made."""

from __future__ import annotations

import contextlib
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from belugafs import ring_bench
from belugafs.bench.library import blocks, lookups, peers, rows
from belugafs.bench.library.stores import (
    CLibrary,
    DictStore,
    FuseStore,
    LibraryStore,
    Store,
    blocks_that_fit,
    free_bytes,
)
from belugafs.bench.place import measured_place
from belugafs.exits import Exit
from belugafs.kernels import bench as kernels_bench
from belugafs.pool import PoolError
from belugafs.units import format_size

FEW = 10_000
"""Blocks of the pool that most rows are of."""


@dataclass
class Plan:
    """What is asked for."""

    many: int
    """Blocks of the large pool; as many as there is memory for."""
    block_bytes: int
    """Of each of the blocks that are leased."""
    rounds: int
    budget_s: float
    """For the rounds, beside storing blocks, the kernels and the ring."""
    with_peers: bool
    directory: str
    few: int = FEW
    ring_calls: int = 200_000
    kernel_s: float = 5.0
    kernel_bytes: int = 512 << 20


@dataclass
class Outcome:
    """What was found."""

    rows: list[rows.Row]
    kernels: list[kernels_bench.Row]
    ring: ring_bench.Result
    many: int
    """Blocks of the large pool; 0: it wasn't made."""
    rounds: int
    missing: dict[str, str] = field(default_factory=dict)
    """Places that are left out, and why."""
    machine: dict[str, Any] = field(default_factory=dict)


@contextlib.contextmanager
def _fuse(room_bytes: int, missing: dict[str, str]) -> Iterator[FuseStore | None]:
    """Files on a mount of its own; None where there can be none."""
    with contextlib.ExitStack() as stack:
        try:
            size = str(2 * room_bytes + (64 << 20))
            place = stack.enter_context(measured_place(None, size, room_bytes))
            store = FuseStore(place)
        except (PoolError, OSError) as error:
            missing["FUSE"] = str(error)
            yield None
            return
        try:
            yield store
        except BaseException:
            place.abort()
            raise


def _needed_bytes(plan: Plan) -> int:
    """Of the leased blocks, in each place, and of the large ones that are copied."""
    return lookups.PROMPT * plan.block_bytes + 48 * blocks.BLOCK_BYTES


def run(plan: Plan, step: Callable[[str], None]) -> Outcome:
    """Everything. ``step`` is told what comes next. Raises PoolError: too little memory."""
    needed = _needed_bytes(plan)
    places = 3 + 3 * plan.with_peers
    if free_bytes(plan.directory) * 2 < places * needed:
        raise PoolError(
            f"{plan.directory} has too little room: this takes {format_size(places * needed)}; "
            "use smaller blocks (--block)",
            Exit.NO_SPACE,
        )
    missing: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="belugafs-bench-", dir=plan.directory)
        )
        # What removes it comes last, so what is in it is closed by then.
        library = LibraryStore(os.path.join(directory, "pool"), 4 * needed, 2 * plan.few + 20_000)
        stack.callback(library.close)
        stores: list[Store] = [library, DictStore()]
        fuse = stack.enter_context(_fuse(needed, missing))
        if fuse is not None:
            stores.append(fuse)
        if plan.with_peers:
            stores.extend(peers.peers(directory, needed, stack, missing))
        in_c = CLibrary(library)
        stack.callback(in_c.close)

        step("storing blocks")
        present, absent = lookups.keys_of(0, plan.few), lookups.keys_of(1 << 40, lookups.PROMPT)
        data = os.urandom(plan.block_bytes)
        for store in stores:
            store.fill(present[: lookups.PROMPT], data)
        for store in stores[:2]:
            store.fill(present[lookups.PROMPT :], b"")
        all_rows = lookups.rows(stores, present, absent, library=library, in_c=in_c)
        all_rows += blocks.rows_of_leases(stores, present, plan.block_bytes, library)
        all_rows += blocks.rows_of_copies(stores)
        all_rows.append(blocks.row_of_get(library, stores))
        all_rows += blocks.rows_of_commits(stores, library, plan.block_bytes)
        all_rows.append(blocks.row_of_lengths(directory, stack))
        all_rows += blocks.rows_of_firsts(directory, stack)
        many = blocks_that_fit(directory, plan.many)
        if many > plan.few:
            step(f"storing {many} blocks")
            large = LibraryStore(os.path.join(directory, "many"), 0, many, populated=False)
            stack.callback(large.close)
            large.fill_from(lookups.iter_keys(0, many), b"")
            all_rows += lookups.rows_of_many(library, present, large, many)
        else:
            many = 0
            missing["many blocks"] = "there is no memory for more than in the small pool"
        done = rows.measure(all_rows, rounds=plan.rounds, budget_s=plan.budget_s, step=step)
        for row in all_rows:
            blocks.best_memcpy(row)
    step("the kernels' copies")
    kernels = kernels_bench.measure_cpu(memory_bytes=plan.kernel_bytes, seconds=plan.kernel_s)
    step("the request ring")
    ring = ring_bench.measure(plan.ring_calls, 10 * plan.ring_calls)
    machine = {
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "load_1m": os.getloadavg()[0],
    }
    return Outcome(all_rows, kernels, ring, many, done, missing, machine)

"""Rows of blocks: leases and views, first use, copies out of the pool and into it."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from belugafs import client
from belugafs.bench.library.lookups import PROMPT, keys_of
from belugafs.bench.library.rows import LIBRARY, Row, Work
from belugafs.bench.library.stores import DictStore, LibraryStore, Store
from belugafs.kernels import _copy

SMALL_BYTES = 16 << 10
BLOCK_BYTES = 5 << 19
"""2.5 MiB: 16 tokens of a model with 64 layers."""
LONG_BLOCKS = 16
"""Blocks of 16 tokens in one of 256."""
_BLOCKS = 24
_SUM_BYTES = 256 << 10
_TINY_BYTES = 64
_MANY = 8192


def rows_of_leases(
    stores: Sequence[Store], keys: list[bytes], size_bytes: int, library: LibraryStore
) -> list[Row]:
    """Of ``keys``, whose blocks have ``size_bytes`` each and are verified."""
    keys = keys[:PROMPT]
    views, release = {}, {}
    for store in stores:
        held = store.hold(keys)
        store.let_go(held)
        views[store.name] = Work(partial(store.hold, keys), after=store.let_go, cpu_s=store.cpu_s)
        release[store.name] = _release(store, keys)
    total_bytes = len(keys) * size_bytes
    leases = Work(lambda: library.namespace.read(keys), after=client.Blocks.close)
    return [
        Row(
            "lease and views",
            f"{len(keys)} verified blocks of {size_bytes} bytes; FUSE: open and mmap",
            len(keys),
            total_bytes,
            views,
            time_goal_s=1e-3,
        ),
        Row(
            "lease alone",
            "the same without a view of each; a dict: look-ups",
            len(keys),
            total_bytes,
            {LIBRARY: leases, "dict": _of(stores, "dict", lambda s: s.exists(keys))},
        ),
        Row(
            "release",
            "of those, with their views",
            len(keys),
            total_bytes,
            release,
            time_goal_s=0.5e-3,
        ),
        _first_use(keys, size_bytes, library),
    ]


def _release(store: Store, keys: list[bytes]) -> Work:
    taken: list[Any] = []
    return Work(
        lambda: store.let_go(taken.pop()),
        before=lambda: taken.append(store.hold(keys)),
        cpu_s=store.cpu_s,
    )


def _of(stores: Sequence[Store], name: str, call: Callable[[Any], Any]) -> Work:
    (store,) = [store for store in stores if store.name == name]
    return Work(lambda: call(store), cpu_s=store.cpu_s)


def _first_use(keys: list[bytes], size_bytes: int, library: LibraryStore) -> Row:
    """By a reader that has verified nothing yet; the hash alone beside it."""
    fresh: list[client.Pool] = []
    sums = np.empty(-(-size_bytes // _SUM_BYTES), np.uint64)
    held = library.namespace.read(keys)
    arrays = [block.numpy() for block in held]

    def hash_all() -> None:
        for array in arrays:
            _copy.sum_chunks(array, _SUM_BYTES, sums)

    def done(blocks: client.Blocks) -> None:
        assert all(blocks.present)
        blocks.close()
        fresh.pop().close()

    lease = Work(
        lambda: fresh[-1].namespace("bench").read(keys),
        before=lambda: fresh.append(library.connect()),
        after=done,
        runs_max=2,
    )
    return Row(
        "first use",
        f"leases of {len(keys)} blocks by a new process's connection, with verification",
        len(keys),
        len(keys) * size_bytes,
        {LIBRARY: lease, "hash": Work(hash_all, runs_max=2)},
        limit="hash",
    )


def _buffer(size_bytes: int) -> memoryview:
    data = np.empty(size_bytes, np.uint8)
    data[:] = 1
    return data.data.cast("B")


def _turns(keys: Sequence[bytes]) -> Callable[[], bytes]:
    """One after the other, so that none is in a cache already."""
    return partial(next, itertools.cycle(keys))


def _memcpys(size_bytes: int) -> dict[str, Work]:
    """Two ways, of which the better one is the limit; between large tables."""
    sources, places = itertools.cycle(_table(size_bytes)), itertools.cycle(_table(size_bytes))

    def copy(how: int) -> Work:
        return Work(lambda: _copy.plain_copy(next(places), next(sources), how))

    return {"memcpy": copy(0), "rep movsb": copy(1)}


def best_memcpy(row: Row) -> None:
    """The faster of the two is what a row is compared with, under the name ``memcpy``."""
    if "rep movsb" in row.places and "memcpy" in row.places:
        other = row.places.pop("rep movsb")
        if other.median_s < row.places["memcpy"].median_s:
            row.places["memcpy"] = other


def _table(size_bytes: int) -> NDArray[np.uint8]:
    """Rows of that many bytes, larger together than the caches that a core has for itself: where an
    engine's pages lie is in no cache."""
    return np.ones((max(4, (64 << 20) // size_bytes), size_bytes), np.uint8)


def _read(store: Store, keys: list[bytes], into: NDArray[np.uint8]) -> Work:
    turn, rows = _turns(keys), itertools.cycle([row.data.cast("B") for row in into])
    return Work(lambda: store.read(turn(), next(rows)), cpu_s=store.cpu_s)


def _put(store: Store, key: bytes, data: bytes) -> Work:
    return Work(lambda: store.put(key, data), after=lambda _: store.remove(key), cpu_s=store.cpu_s)


def rows_of_copies(stores: Sequence[Store]) -> list[Row]:
    """Out and in, of one block at a time. Stores blocks of its own."""
    made = []
    for size_bytes, first in ((SMALL_BYTES, 1 << 50), (BLOCK_BYTES, 1 << 51)):
        keys, (new,) = keys_of(first, _BLOCKS), keys_of(first + (1 << 20), 1)
        data, into = os.urandom(size_bytes), _table(size_bytes)
        for store in stores:
            store.fill(keys, data)
        reads = {store.name: _read(store, keys, into) for store in stores}
        puts = {store.name: _put(store, new, data) for store in stores}
        size = "16 KiB" if size_bytes == SMALL_BYTES else "2.5 MiB"
        made.append(
            Row(
                f"read {size}",
                "look-up, lease, copy to a buffer, release",
                1,
                size_bytes,
                {**reads, **_memcpys(size_bytes)},
                limit="memcpy",
                ratio_goal=None if size_bytes == SMALL_BYTES else 0.95,
            )
        )
        made.append(
            Row(
                f"put {size}",
                "asked of a thread that serves the request ring; FUSE: create, write, rename",
                1,
                size_bytes,
                {**puts, **_memcpys(size_bytes)},
                limit="memcpy",
            )
        )
    return made


def rows_of_commits(stores: Sequence[Store], library: LibraryStore, size_bytes: int) -> list[Row]:
    """New blocks, reserved and committed: without copy and checksums, with one, with both."""
    keys, many = keys_of(1 << 55, PROMPT), keys_of(1 << 56, _MANY)
    data = os.urandom(size_bytes)

    def besides_copy(some: list[bytes], data: bytes, most: int = 5) -> Work:
        return Work(
            lambda: library.store(some, data),
            after=lambda _: library.remove_all(some),
            runs_max=most,
            tells=True,
        )

    def fill(store: Store) -> Work:
        def remove(_: object) -> None:
            for key in keys:
                store.remove(key)

        return Work(lambda: store.fill(keys, data), after=remove, cpu_s=store.cpu_s, runs_max=1)

    whole = {store.name: fill(store) for store in stores if store is not library}
    whole[LIBRARY] = Work(
        lambda: library.store(keys, data), after=lambda _: library.remove_all(keys), runs_max=3
    )
    sums = np.empty(-(-size_bytes // _SUM_BYTES), np.uint64)
    table = _table(size_bytes)

    def hash_all() -> None:
        for row in itertools.islice(itertools.cycle(table), PROMPT):
            _copy.sum_chunks(row, _SUM_BYTES, sums)

    tiny = os.urandom(_TINY_BYTES)
    return [
        Row(
            "reserve and commit",
            f"{PROMPT} blocks of {_TINY_BYTES} bytes, besides the copy: hardly a checksum",
            PROMPT,
            0,
            {LIBRARY: besides_copy(keys, tiny)},
            time_goal_s=3e-3,
        ),
        Row(
            "commits in batches",
            f"{_MANY} such blocks, reserved and committed in one call each, besides the copy",
            _MANY,
            0,
            {LIBRARY: besides_copy(many, tiny)},
            rate_goal=2e5,
        ),
        Row(
            "with checksums",
            f"{PROMPT} blocks of {size_bytes} bytes: reserve, checksum, commit, besides the copy",
            PROMPT,
            PROMPT * size_bytes,
            {LIBRARY: besides_copy(keys, data, 3), "hash": Work(hash_all, runs_max=3)},
            limit="hash",
        ),
        Row(
            "store a prompt",
            f"{PROMPT} blocks of {size_bytes} bytes: reserve, copy, checksum, commit",
            PROMPT,
            PROMPT * size_bytes,
            whole,
        ),
    ]


def row_of_get(library: LibraryStore, stores: Sequence[Store]) -> Row:
    """``get_into``, beside a copy of a dict's value. After rows_of_copies."""
    turn = _turns(keys_of(1 << 50, _BLOCKS))
    rows = itertools.cycle([row.data.cast("B") for row in _table(SMALL_BYTES)])
    get_into = library.namespace.get_into
    works = {LIBRARY: Work(lambda: get_into(turn(), next(rows)))}
    (named,) = [store for store in stores if isinstance(store, DictStore)]
    works["dict"] = Work(lambda: named.read(turn(), next(rows)))
    works.update(_memcpys(SMALL_BYTES))
    return Row(
        "get 16 KiB",
        "copied into a buffer, in one call",
        1,
        SMALL_BYTES,
        works,
        limit="memcpy",
        ratio_goal=0.5,
    )


def row_of_lengths(directory: str, stack: contextlib.ExitStack) -> Row:
    """The same bytes as blocks of 16 tokens, and as one of 256; in a pool whose regions are as
    large as those of a large pool, so that the latter is in one piece."""
    path = os.path.join(directory, "lengths")
    library = LibraryStore(path, 256 << 20, 1000, region_granules=16384)
    stack.callback(library.close)
    short, long = keys_of(1 << 52, LONG_BLOCKS), keys_of(1 << 53, 1)
    library.fill(short, os.urandom(BLOCK_BYTES))
    library.fill(long, os.urandom(LONG_BLOCKS * BLOCK_BYTES))
    into = _buffer(LONG_BLOCKS * BLOCK_BYTES)

    def read(keys: list[bytes], size_bytes: int) -> None:
        with library.namespace.read(keys) as blocks:
            for at, block in enumerate(blocks):
                _copy.copy(into[at * size_bytes : (at + 1) * size_bytes], block.view, threads=1)

    return Row(
        "16-token blocks",
        "40 MiB read as 16 blocks of 16 tokens, and as one of 256",
        1,
        LONG_BLOCKS * BLOCK_BYTES,
        {
            LIBRARY: Work(lambda: read(short, BLOCK_BYTES)),
            "256-token blocks": Work(lambda: read(long, LONG_BLOCKS * BLOCK_BYTES)),
        },
        limit="256-token blocks",
        ratio_goal=0.91,
    )


def rows_of_firsts(directory: str, stack: contextlib.ExitStack) -> list[Row]:
    """The first put after mkfs, and a new reader's first pass, beside the steady ones."""
    numbers = itertools.count()
    data = os.urandom(BLOCK_BYTES)
    keys = keys_of(1 << 54, _BLOCKS)

    def new(verify: Any = "first") -> LibraryStore:
        path = os.path.join(directory, f"first{next(numbers)}")
        return LibraryStore(path, 2 * _BLOCKS * BLOCK_BYTES, 4 * _BLOCKS, verify=verify)

    def joined() -> LibraryStore:
        store = new()
        store.namespace.delete(keys)  # its ring is there from now on
        return store

    fresh: list[LibraryStore] = []
    steady = new()
    stack.callback(steady.close)
    for key in keys:
        steady.put(key, data)
    for key in keys:
        steady.remove(key)
    turn = _turns(keys)
    used: list[bytes] = []

    def put_again() -> None:
        used.append(turn())
        steady.put(used[-1], data)

    put = Row(
        "first put",
        "of 2.5 MiB into a pool just made; the limit: then, into one that was full before",
        1,
        BLOCK_BYTES,
        {
            LIBRARY: Work(
                lambda: fresh[-1].put(keys[0], data),
                before=lambda: fresh.append(joined()),
                after=lambda _: fresh.pop().close(),
                runs_max=2,
            ),
            # After as much other work: making a pool empties the caches, and threads fall asleep.
            "steady": Work(
                put_again,
                before=lambda: joined().close(),
                after=lambda _: steady.remove(used.pop()),
                runs_max=2,
            ),
        },
        limit="steady",
        ratio_goal=0.9,
    )
    rows = [put]
    for verify, goal in (("off", 0.9), ("first", None)):
        store = new(verify)
        stack.callback(store.close)
        store.fill(keys, data)
        rows.append(_first_pass(store, keys, verify, goal))
    return rows


def _first_pass(store: LibraryStore, keys: list[bytes], verify: str, goal: float | None) -> Row:
    into = _buffer(BLOCK_BYTES)
    readers: list[client.Pool] = []

    def copy_all(pool: client.Pool) -> None:
        with pool.namespace("bench").read(keys) as blocks:
            for block in blocks:
                _copy.copy(into, block.view, threads=1)

    return Row(
        f"first pass, verify={verify}",
        f"a new reader copies {len(keys)} blocks of 2.5 MiB; the limit: it does so again",
        len(keys),
        len(keys) * BLOCK_BYTES,
        {
            LIBRARY: Work(
                lambda: copy_all(readers[-1]),
                before=lambda: readers.append(store.connect()),
                after=lambda _: readers.pop().close(),
                runs_max=3,
            ),
            "steady": Work(lambda: copy_all(store.pool), runs_max=3),
        },
        limit="steady",
        ratio_goal=goal,
    )

"""Rows of look-ups: a prompt of 938 blocks, and batches, in pools of different sizes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from belugafs.bench.library.rows import LIBRARY, Row, Work
from belugafs.bench.library.stores import (
    KEY_BYTES,
    NAMESPACE,
    CLibrary,
    DictStore,
    LibraryStore,
    Store,
)
from belugafs.client import Pool
from belugafs.exits import Exit
from belugafs.pool import PoolError

PROMPT = 938
"""Blocks of 16 tokens in a prompt of 15,000."""
BATCH = 20_000


def keys_of(first: int, count: int) -> list[bytes]:
    """Keys that look like hashes; the same for the same numbers."""
    return list(iter_keys(first, count))


def iter_keys(first: int, count: int) -> Iterator[bytes]:
    for start in range(first, first + count, 1 << 16):
        many = min(1 << 16, first + count - start)
        raw = random.Random(start).randbytes(many * KEY_BYTES)
        for at in range(0, len(raw), KEY_BYTES):
            yield raw[at : at + KEY_BYTES]


def as_array(keys: Sequence[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), KEY_BYTES)


def rows(
    stores: Sequence[Store],
    present: list[bytes],
    absent: list[bytes],
    *,
    library: LibraryStore,
    in_c: CLibrary,
) -> list[Row]:
    """In the pool that has ``present``; ``stores`` have its first PROMPT keys at least."""
    some, none = present[:PROMPT], absent[:PROMPT]

    def each(name: str, keys: list[bytes], expected: int) -> dict[str, Work]:
        works = {}
        for store in stores:
            call = getattr(store, name)
            if call(keys) != expected:
                raise PoolError(f"{store.name} hasn't {expected} blocks", Exit.INTERNAL)
            works[store.name] = Work(partial(call, keys), cpu_s=store.cpu_s)
        return works

    many, blocks = present[:BATCH], set(present)
    joined, array = b"".join(many), as_array(many)
    in_dict = Work(lambda: [key in blocks for key in many])
    namespace = library.namespace
    return [
        Row(
            "match, present",
            f"the longest prefix of {len(some)} keys that are there",
            len(some),
            0,
            each("match", some, len(some)),
            time_goal_s=100e-6,
        ),
        Row(
            "match, absent",
            f"of {len(none)} keys that aren't there: it ends at the first",
            len(none),
            0,
            each("match", none, 0),
            time_goal_s=100e-6,
        ),
        Row(
            "exists, absent",
            f"{len(none)} keys, each looked up, that aren't there",
            len(none),
            0,
            each("exists", none, 0),
            time_goal_s=100e-6,
        ),
        Row(
            "batch, from C",
            f"{len(many)} keys in one call of bfc_exists",
            len(many),
            0,
            {LIBRARY: Work(lambda: in_c.exists(joined)), "dict": in_dict},
            rate_goal=5e6,
        ),
        Row(
            "batch, from an array",
            f"{len(many)} keys, a numpy array",
            len(many),
            0,
            {LIBRARY: Work(lambda: namespace.exists(array)), "dict": in_dict},
            rate_goal=2e6,
        ),
        Row(
            "batch, from a list",
            f"{len(many)} keys, a list of bytes",
            len(many),
            0,
            {LIBRARY: Work(lambda: namespace.exists(many)), "dict": in_dict},
            rate_goal=2e6,
        ),
    ]


def rows_of_many(
    few: LibraryStore, present: list[bytes], many: LibraryStore, count: int
) -> list[Row]:
    """The same in a pool of ``count`` blocks; the limit is the pool of ``present``.

    Other keys in each run, from all of the pool: the same ones again would be in the processor's
    caches, whatever the pool's size. Each reader has looked up all blocks before, since it checks a
    page of metadata at its first use; what that costs is a row of its own.
    """
    all_of = DictStore()
    all_of.blocks = dict.fromkeys(iter_keys(0, count), b"")
    all_keys = list(all_of.blocks)
    for start in range(0, count, 1 << 16):
        many.exists(all_keys[start : start + (1 << 16)])
    few.exists(present)
    chosen = random.Random(3)
    sets = {
        "few": _draws(present, chosen),
        "many": _draws(all_keys, chosen),
        "none": [keys_of(1 << 40 | i << 20, PROMPT) for i in range(64)],
    }
    small = f"{len(present)} blocks"
    made = []
    for name, call, ours, theirs in (
        ("match, present", "match", "many", "few"),
        ("exists, absent", "exists", "none", "none"),
    ):
        works = {
            LIBRARY: _turns(getattr(many, call), sets[ours]),
            small: _turns(getattr(few, call), sets[theirs]),
            "dict": _turns(getattr(all_of, call), sets[ours]),
        }
        text = f"{PROMPT} keys drawn from a pool of {count} blocks, others each time"
        made.append(
            Row(f"{name}, {count:.0e}", text, PROMPT, 0, works, limit=small, ratio_goal=0.5)
        )
    made.append(
        Row(
            f"a fresh reader, {count:.0e}",
            f"match of {PROMPT} such keys, the first that a new process's connection looks up",
            PROMPT,
            0,
            {LIBRARY: _fresh(many, sets["many"]), small: _fresh(few, sets["few"])},
            limit=small,
        )
    )
    return made


def _fresh(store: LibraryStore, sets: list[list[bytes]]) -> Work:
    readers: list[Pool] = []
    turn = itertools.cycle(sets)
    return Work(
        lambda: readers[-1].namespace(NAMESPACE).match(next(turn)),
        before=lambda: readers.append(store.connect()),
        after=lambda _: readers.pop().close(),
        runs_max=5,
    )


def _draws(keys: list[bytes], chosen: random.Random) -> list[list[bytes]]:
    return [chosen.sample(keys, min(PROMPT, len(keys))) for _ in range(64)]


def _turns(call: Callable[[list[bytes]], object], sets: list[list[bytes]]) -> Work:
    turn = itertools.cycle(sets)
    return Work(lambda: call(next(turn)))

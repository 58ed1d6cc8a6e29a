"""Files that are put together in several openings, by writers whose stores no daemon sees.

Such a file is a block once it gets its name, if nothing that was there at an opening was changed
by it. Over passthrough that is found out afterwards, from what the file held before; so it must
come to the same as where each store is seen.
"""

from __future__ import annotations

import mmap
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belugafs.transport import kernel_release
from belugafs.transport.passthrough import SINCE

sys.path.insert(0, os.path.dirname(__file__))
from blocks import expect_blocks_of

KIB = 1 << 10
MIB = 1 << 20
UNIT = 64
"""Holes that are smaller than 16 bytes count as data: the model knows of none."""

pytestmark = [
    pytest.mark.skipif(
        os.geteuid() != 0, reason="only root may mount the tmpfs of a directory pool"
    ),
    pytest.mark.skipif(kernel_release() < SINCE, reason="passthrough takes Linux 6.9"),
    pytest.mark.parametrize("pool_kind", ["directory"]),
    pytest.mark.parametrize("unmounted_pool", [256 * MIB], indirect=True),
]


@pytest.fixture
def passing(unmounted_pool: Any) -> Any:
    """A mounted directory pool with passthrough."""
    unmounted_pool.mount("transport=direct,passthrough=auto")
    assert unmounted_pool.passthrough
    expect_blocks_of(unmounted_pool.path, 80 * MIB)
    return unmounted_pool


def class_of(path: Path) -> str:
    return os.getxattr(path, "user.beluga.class").decode()


def settled_class(pool: Any, path: Path) -> str:
    assert pool.settled_state(path) == "sealed"
    return class_of(path)


@dataclass
class Opening:
    """What one opening does. ``emptied``: it begins anew (O_TRUNC)."""

    stores: list[tuple[int, bytes]]
    emptied: bool = False
    mapped: bool = False

    def do(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | (os.O_TRUNC if self.emptied else 0), 0o600)
        try:
            end = max((offset + len(data) for offset, data in self.stores), default=0)
            if self.mapped and end:
                os.ftruncate(fd, max(end, os.fstat(fd).st_size))
                with mmap.mmap(fd, 0) as mapping:
                    for offset, data in self.stores:
                        mapping[offset : offset + len(data)] = data
            else:
                for offset, data in self.stores:
                    assert os.pwrite(fd, data, offset) == len(data)
        finally:
            os.close(fd)


@dataclass
class Model:
    """What the openings so far come to."""

    content: bytearray = field(default_factory=bytearray)
    forming: bool = True

    def apply(self, opening: Opening) -> None:
        before = b"" if opening.emptied else bytes(self.content)
        self.content = bytearray(before)
        for offset, data in opening.stores:
            self.content.extend(bytes(max(0, offset + len(data) - len(self.content))))
            self.content[offset : offset + len(data)] = data
        now = self.content[: len(before)]
        self.forming &= all(old in (0, new) for old, new in zip(before, now, strict=True))


def _units(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low // UNIT, high // UNIT).map(lambda n: n * UNIT)


@st.composite
def _openings(draw: st.DrawFn) -> list[Opening]:
    stores = st.tuples(_units(0, 600 * KIB), _units(UNIT, 300 * KIB), st.integers(0, 2**32 - 1))
    return [
        Opening(
            [(at, random.Random(seed).randbytes(n).replace(b"\0", b"\1")) for at, n, seed in some],
            emptied=draw(st.integers(0, 7)) == 0,
            mapped=draw(st.booleans()),
        )
        for some in draw(st.lists(st.lists(stores, max_size=2), min_size=1, max_size=5))
    ]


def test_the_class_is_that_of_a_file_whose_stores_are_seen(passing: Any) -> None:
    """Random openings, each with stores anywhere; the name comes after the last.

    An opening that is promised no room has its stores seen, and one that stores twice over the same
    makes an ordinary file then: the kernel may give up a former file, and its promise, late.
    """
    number = seen = 0

    def refused() -> int:
        return int(passing.stats()["promises_refused"])

    @settings(
        max_examples=60,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(_openings())
    def check(openings: list[Opening]) -> None:
        nonlocal number, seen
        number += 1
        before = refused()
        unfinished, path = passing.path / f"{number}.tmp", passing.path / f"{number}"
        model = Model()
        for opening in openings:
            opening.do(unfinished)
            model.apply(opening)
        unfinished.rename(path)
        assert path.read_bytes() == model.content
        is_block = settled_class(passing, path) == "block"
        assert model.forming or not is_block
        was_seen = refused() > before
        assert is_block or was_seen or not model.forming
        seen += was_seen
        path.unlink()

    check()
    assert seen <= number // 2, f"{seen} of {number} weren't by passthrough"


def parts(count: int, size: int) -> list[tuple[int, bytes]]:
    return [(index * size, bytes([index + 1]) * size) for index in range(count)]


@pytest.mark.parametrize("size", [64 * KIB, 50_001, 999])
@pytest.mark.parametrize("order", ["forwards", "backwards", "mixed"])
def test_parts_that_share_a_chunk_or_a_page(passing: Any, size: int, order: str) -> None:
    """The class is there with the name: the rename waits for what was just closed."""
    unfinished, path = passing.path / "f.tmp", passing.path / "f"
    stores = parts(16, size)
    if order == "backwards":
        stores.reverse()
    elif order == "mixed":
        random.Random(size).shuffle(stores)
    for store in stores:
        Opening([store]).do(unfinished)
    unfinished.rename(path)
    assert class_of(path) == "block"
    assert path.read_bytes() == b"".join(data for _, data in parts(16, size))


def test_parts_by_many_threads_at_a_time(passing: Any) -> None:
    """Some have it open while others open and close it."""
    for number in range(8):
        unfinished, path = passing.path / f"{number}.tmp", passing.path / f"{number}"
        Opening([]).do(unfinished)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda store, to=unfinished: Opening([store]).do(to), parts(24, 30_001)))
        unfinished.rename(path)
        assert settled_class(passing, path) == "block"


@pytest.mark.parametrize("changed_at", [0, 100_000, 300 * KIB])
def test_one_byte_that_is_changed_makes_it_ordinary(passing: Any, changed_at: int) -> None:
    unfinished, path = passing.path / "f.tmp", passing.path / "f"
    Opening([(0, b"a" * 400 * KIB)]).do(unfinished)
    Opening([(changed_at, b"b"), (500 * KIB, b"more")]).do(unfinished)
    unfinished.rename(path)
    assert settled_class(passing, path) == "ordinary"


@pytest.mark.parametrize("at_once", [True, False])
def test_what_was_changed_before_it_was_emptied_counts(passing: Any, at_once: bool) -> None:
    """As where stores are seen: emptying a file doesn't make it one that was only added to."""
    for number in range(10):
        unfinished, path = passing.path / f"{number}.tmp", passing.path / f"{number}"
        Opening([(0, b"a" * 20 * KIB)], mapped=number % 2 == 0).do(unfinished)
        Opening([(5000, b"b" * 20 * KIB)]).do(unfinished)
        if not at_once:
            time.sleep(0.1)
        Opening([(300 * KIB, b"c" * 20 * KIB)], emptied=True).do(unfinished)
        unfinished.rename(path)
        assert settled_class(passing, path) == "ordinary"


@pytest.mark.parametrize(("byte", "expected"), [(b"b", "block"), (b"a", "ordinary")])
def test_still_mapped_at_the_next_opening(passing: Any, byte: bytes, expected: str) -> None:
    """Nobody knows who stored what there is then: it must stay from the next opening on."""
    unfinished, path = passing.path / "f.tmp", passing.path / "f"
    Opening([(0, b"x" * MIB)]).do(unfinished)
    fd = os.open(unfinished, os.O_RDWR)
    mapping = mmap.mmap(fd, MIB)
    os.close(fd)
    time.sleep(0.1)  # longer than a close is waited for
    Opening([(2 * MIB, b"y" * MIB)]).do(unfinished)
    if byte == b"a":
        mapping[5] = ord(byte)
    unfinished.rename(path)
    mapping.close()
    assert settled_class(passing, path) == expected


def test_renamed_while_it_is_written_again(passing: Any) -> None:
    """As where stores are seen: it isn't finished, so that name doesn't make it a block."""
    unfinished, path = passing.path / "f.tmp", passing.path / "f"
    Opening([(0, b"x" * 100)]).do(unfinished)
    fd = os.open(unfinished, os.O_RDWR)
    os.pwrite(fd, b"y", 100)
    unfinished.rename(path)
    os.pwrite(fd, b"z", 101)
    os.close(fd)
    assert settled_class(passing, path) == "ordinary"


def test_a_large_one_isnt_noted(passing: Any) -> None:
    """Beyond 64 MiB of data only whole chunks of 256 KiB tell: what is appended behind one is
    only added, what fills a hole in one isn't."""
    for tail, expected in ((65 * MIB, "block"), (65 * MIB - 5 * KIB, "ordinary")):
        unfinished, path = passing.path / "f.tmp", passing.path / "f"
        Opening([(0, b"x" * 64 * MIB), (64 * MIB + MIB - 1, b"x")]).do(unfinished)
        assert passing.settled_state(unfinished) == "sealed"
        Opening([(tail, b"y" * KIB)]).do(unfinished)
        unfinished.rename(path)
        assert settled_class(passing, path) == expected
        path.unlink()


def test_a_reader_that_has_it_open_all_the_time(passing: Any) -> None:
    """Holds nothing up, and sees every part."""
    unfinished, path = passing.path / "f.tmp", passing.path / "f"
    Opening([(0, b"\1" * KIB)]).do(unfinished)
    with unfinished.open("rb") as reader:
        for store in parts(16, KIB)[1:]:
            Opening([store]).do(unfinished)
        unfinished.rename(path)
        assert class_of(path) == "block"
        assert reader.read() == b"".join(data for _, data in parts(16, KIB))

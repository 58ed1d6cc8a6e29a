"""Room of a directory pool ahead of writers that the core doesn't see."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Iterator

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from core_memory import MIB, ROOT, Memory, Writer, content, native

BIG = 1024 * MIB
"""Of a pool with room for promises: what is kept empty beyond them goes by the number of cores."""
BLOCK = 32 * MIB


def full(memory: Memory) -> None:
    """Blocks of one size until the first is evicted."""
    number = 0
    while not memory.pool.statfs()["evicted_blocks"]:
        memory.put(ROOT, f"old{number}", BLOCK)
        number += 1


@pytest.fixture
def full_memory() -> Iterator[Memory]:
    memory = Memory(kind="directory", size_bytes=BIG)
    full(memory)
    yield memory
    for handle in memory.taken:
        memory.pool.release(handle)
    memory.close()


def test_what_is_promised_is_there(full_memory: Memory) -> None:
    """To several at a time, and without anybody who looks after them: as much as the last block of
    the directory had."""
    pool = full_memory.pool
    writers = [Writer(full_memory, name=f"new{number}") for number in range(6)]
    for writer in writers:
        pool.promise(writer.fh)
    assert pool.statfs()["promises"] == len(writers)
    assert pool.statfs()["largest_free_granules"] * 4096 >= len(writers) * BLOCK
    others = pool.statfs()["evicted_blocks"]
    for off in range(0, BLOCK, MIB):
        for number, writer in enumerate(writers):
            writer.write(off, bytes([number + 1]) * MIB)
    assert pool.statfs()["evicted_blocks"] == others
    for number, writer in enumerate(writers):
        writer.close()
        assert pool.verify(writer.ino)["checked_bytes"] == BLOCK
        assert content(full_memory, writer.ino) == bytes([number + 1]) * BLOCK


@pytest.mark.parametrize("evict", ["room", "full"])
def test_the_first_block_of_a_directory(evict: str) -> None:
    """Where directories are the digits of a hash, each block is the first of its own. What the
    last ones were like is known above, so it is promised as much, in a full pool too."""
    memory = Memory(kind="directory", size_bytes=BIG)
    pool = memory.pool

    def directory(number: int) -> int:
        where = ROOT
        for name in ("model", f"{number % 2}", f"{number}", "0"):
            try:
                where = pool.lookup(where, name).ino
            except native.CoreError:
                where = pool.mkdir(where, name).ino
        return int(where)

    number = 0
    while (evict == "full" and not pool.statfs()["evicted_blocks"]) or number < 2:
        memory.put(directory(number), "block", BLOCK)
        number += 1
    for where in (directory(number), directory(number + 1)):
        writer = Writer(memory, where=where)
        pool.promise(writer.fh)
        assert pool.statfs()["largest_free_granules"] * 4096 >= BLOCK
        writer.write(0, b"x" * BLOCK)
        writer.close()
    assert pool.statfs()["promises_refused"] == 0
    # of another tree nothing is known
    writer = Writer(memory, where=pool.mkdir(ROOT, "elsewhere").ino)
    if evict == "full":
        with pytest.raises(OSError, match="No space"):
            pool.promise(writer.fh)
    writer.close()
    memory.close()


def test_who_writes_through_the_core_takes_nothing_of_a_promise(full_memory: Memory) -> None:
    pool = full_memory.pool
    writer = Writer(full_memory)
    pool.promise(writer.fh)
    for number in range(8):
        full_memory.put(ROOT, f"between{number}", BLOCK)
        assert pool.statfs()["largest_free_granules"] * 4096 >= BLOCK
    writer.write(0, b"x" * BLOCK)
    writer.close()


def test_promises_end_with_the_close(full_memory: Memory) -> None:
    pool = full_memory.pool
    for number in range(60):  # together more than the pool
        writer = Writer(full_memory, name=f"new{number}")
        pool.promise(writer.fh)
        pool.promise(writer.fh)  # has it
        writer.write(0, b"x")
        writer.close()
    assert pool.statfs()["promises_refused"] == 0


def test_who_outgrows_it_gets_more_room(full_memory: Memory) -> None:
    pool = full_memory.pool
    writer = Writer(full_memory)
    pool.promise(writer.fh)
    for off in range(0, 6 * BLOCK, MIB):
        writer.write(off, b"o" * MIB)
        pool.headroom()
        assert pool.statfs()["largest_free_granules"] * 4096 >= 4 * MIB
    writer.close()
    assert pool.verify(writer.ino)["checked_bytes"] == 6 * BLOCK


@pytest.mark.parametrize("why", ["open", "pinned", "never evicted"])
def test_what_can_not_be_had_is_not_promised(why: str) -> None:
    """The writer is told, and its writes through the core are ENOSPC when nothing is left."""
    attach = {"evict": "none"} if why == "never evicted" else {}
    memory = Memory(kind="directory", size_bytes=256 * MIB, attach=attach)
    pool, size, handles = memory.pool, 16 * MIB, []
    if why == "pinned":
        pool.setxattr(ROOT, "user.beluga.pin", b"hard")
    for number in range(14):  # of 16
        ino = memory.put(ROOT, f"old{number}", size)
        if why == "open":
            handles.append(pool.open(ino, os.O_RDONLY))
    writer = Writer(memory)
    with pytest.raises(OSError) as caught:
        pool.promise(writer.fh)
    assert caught.value.errno == errno.ENOSPC
    assert pool.statfs()["promises_refused"] == 1
    with pytest.raises(OSError) as caught:
        for off in range(0, 4 * size, MIB):
            pool.write(writer.fh, off, b"x" * MIB)
    assert caught.value.errno == errno.ENOSPC
    writer.close()
    for handle in handles:
        pool.release(handle)
    memory.close()


def test_a_file_that_is_mostly_holes_is_promised_nothing(full_memory: Memory) -> None:
    writer = Writer(full_memory)
    os.ftruncate(writer.fd, 1 << 40)
    full_memory.pool.promise(writer.fh)
    writer.write(1 << 39, b"x" * MIB)
    full_memory.pool.headroom()
    assert full_memory.pool.statfs()["evicted_blocks"] < 8
    os.ftruncate(writer.fd, MIB)
    writer.close()


def test_writers_into_a_full_pool(full_memory: Memory) -> None:
    """Eight of them, who outgrow what is expected, and one who looks every few milliseconds: the
    kernel never says ENOSPC, and the cap is never passed."""
    memory, pool = full_memory, full_memory.pool
    failures: list[BaseException] = []
    stop = threading.Event()

    def write(number: int) -> None:
        try:
            for i in range(6):
                writer = Writer(memory, name=f"w{number}-{i}")
                try:
                    pool.promise(writer.fh)
                except OSError:
                    seen = True
                else:
                    seen = False
                for off in range(0, BLOCK + i * MIB, MIB):
                    if seen:
                        pool.write(writer.fh, off, bytes([number]) * MIB)
                    else:
                        writer.write(off, bytes([number]) * MIB)
                writer.close()
        except BaseException as failure:
            failures.append(failure)

    def timer() -> None:
        while not stop.wait(0.005):
            pool.headroom()
            pool.tick()

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    ticker = threading.Thread(target=timer)
    for thread in [*threads, ticker]:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    ticker.join()
    assert not failures, failures[0]
    numbers = pool.statfs()
    assert numbers["used_granules"] <= numbers["data_granules"]
    assert numbers["evicted_blocks"] > 30


# ---- nothing else takes what is promised -------------------------------------------------------


def empty_bytes(memory: Memory) -> int:
    found = os.fstatvfs(memory.data_fd)
    return found.f_bfree * found.f_frsize


def take_all(memory: Memory, how: str) -> None:
    """By the core, until it says that there is no room, as one of its ways of taking some does.
    What was stored stays open, or is pinned, so it can't be evicted."""
    pool, number = memory.pool, 0
    if how == "put":
        space = pool.ns_create(f"pinned{time.monotonic_ns()}")
        pool.setxattr(space, "user.beluga.pin", b"hard")
    with pytest.raises(OSError) as caught:
        while True:
            number += 1
            if how == "put":
                pool.block_put(space, number.to_bytes(16, "big"), bytes(4 * MIB))
                continue
            attr, fh = pool.create(ROOT, f"taker{number}-{time.monotonic_ns()}", flags=os.O_RDWR)
            memory.taken.append(fh)
            if how == "store":
                for off in range(0, 16 * MIB, MIB):
                    pool.write(fh, off, b"t" * MIB)
            elif how == "store into a hole":
                pool.setattr(attr.ino, fh=fh, size=64 * MIB)
                for off in range(MIB, 64 * MIB, 2 * MIB):
                    pool.write(fh, off, b"t")
            elif how == "allocate":
                pool.fallocate(fh, 0, 0, 8 * MIB)
            elif how == "allocate more than there is":
                pool.fallocate(fh, 0, 0, BIG // 4 * 3)
            else:
                pool.reserve(fh, 8 * MIB)
    assert caught.value.errno == errno.ENOSPC


WAYS = ["store", "store into a hole", "allocate", "allocate more than there is", "reserve", "put"]


@pytest.mark.parametrize("how", WAYS)
def test_a_full_pool_has_room_for_what_is_promised(full_memory: Memory, how: str) -> None:
    """Nobody watches, and the core stores all that it can, which stays open: no byte of that was
    promised to somebody else. What isn't promised may be used up to the last page."""
    pool = full_memory.pool
    writers = [Writer(full_memory, name=f"new{number}") for number in range(3)]
    for writer in writers:
        pool.promise(writer.fh)
    for number, writer in enumerate(writers[:2]):  # a part of it is there, and nobody has looked
        writer.write(0, bytes([number + 1]) * (BLOCK // 2))
    take_all(full_memory, how)
    for off in range(0, BLOCK, MIB):
        for number, writer in enumerate(writers):
            writer.write(off, bytes([number + 1]) * MIB)
    for number, writer in enumerate(writers):
        writer.close()
        assert content(full_memory, writer.ino) == bytes([number + 1]) * BLOCK


@pytest.mark.parametrize("how", ["store", "put"])
def test_what_is_left_of_promises_is_used(full_memory: Memory, how: str) -> None:
    """As long as one is held there is less for others; afterwards there is all of it."""
    writer = Writer(full_memory)
    full_memory.pool.promise(writer.fh)
    take_all(full_memory, how)
    assert BLOCK <= empty_bytes(full_memory) < BLOCK + 24 * MIB
    writer.close()
    take_all(full_memory, how)
    assert empty_bytes(full_memory) < 4 * MIB


def test_what_takes_no_room_needs_none(full_memory: Memory) -> None:
    """All that is empty is promised: what is there already can be stored into all the same, and
    what was allocated."""
    pool = full_memory.pool
    _, there = pool.create(ROOT, "there", flags=os.O_RDWR)
    pool.write(there, 0, b"a" * MIB)
    pool.fallocate(there, 1, 4 * MIB, MIB)
    writer = Writer(full_memory)
    pool.promise(writer.fh)
    take_all(full_memory, "store")
    assert pool.write(there, 0, b"b" * MIB) == MIB
    assert pool.write(there, 4 * MIB, b"c" * MIB) == MIB
    pool.fallocate(there, 1, 0, MIB)
    pool.fallocate(there, 1, 4 * MIB, MIB)
    with pytest.raises(OSError) as caught:
        pool.write(there, 2 * MIB, b"d" * MIB)
    assert caught.value.errno == errno.ENOSPC
    pool.release(there)
    writer.write(0, b"x" * BLOCK)
    writer.close()


def test_what_was_given_back_is_not_promised_again(full_memory: Memory) -> None:
    """A promise is of so many pages, not of so many at a time: else who cuts his file short and
    goes on would have what others were promised meanwhile."""
    pool = full_memory.pool
    first, second = Writer(full_memory, name="first"), Writer(full_memory, name="second")
    pool.promise(first.fh)
    pool.promise(second.fh)
    first.write(0, b"x" * BLOCK)
    pool.setattr(first.ino, fh=first.fh, size=0)
    pool.headroom()
    take_all(full_memory, "store")
    assert empty_bytes(full_memory) < BLOCK + 24 * MIB  # what second has
    second.write(0, b"y" * BLOCK)
    first.close()
    second.close()


def test_a_mapping_of_a_closed_file_has_its_holes(full_memory: Memory) -> None:
    """Up to its size: a promise outlives the close by what a mapping may still store."""
    pool = full_memory.pool
    writer = Writer(full_memory)
    pool.promise(writer.fh)
    pool.setattr(writer.ino, fh=writer.fh, size=BLOCK)
    mapped = writer.map()
    mapped[:MIB] = b"m" * MIB
    writer.close()
    take_all(full_memory, "store")
    for off in range(MIB, BLOCK, MIB):
        mapped[off : off + MIB] = b"n" * MIB
    mapped.close()
    pool.settle()
    assert content(full_memory, writer.ino) == b"m" * MIB + b"n" * (BLOCK - MIB)


def test_one_of_unknown_size_is_promised_nothing_in_a_full_pool(full_memory: Memory) -> None:
    """What it could store while nobody looks, on a busy machine, can't be kept empty here."""
    pool = full_memory.pool
    directory = pool.mkdir(ROOT, "new").ino
    _, fh = pool.create(directory, "f", flags=os.O_RDWR)
    pool.backing_fd(fh, True)
    with pytest.raises(OSError) as caught:
        pool.promise(fh)
    assert caught.value.errno == errno.ENOSPC
    for off in range(0, 4 * BLOCK, MIB):  # by way of the core, which evicts
        pool.write(fh, off, b"x" * MIB)
    pool.flush(fh)
    pool.release(fh)

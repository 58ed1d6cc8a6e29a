"""Who is evicted, and in which order: pins, classes, recency."""

from __future__ import annotations

import errno
import os
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from core_memory import KINDS, Memory, native

ROOT = native.ROOT_INO
EVERYTHING = 1 << 40
PIN = "user.beluga.pin"


@pytest.fixture(params=KINDS)
def memory(request: pytest.FixtureRequest) -> Iterator[Memory]:
    memory = Memory(kind=request.param)
    yield memory
    memory.close()


def refused(call: Any, *arguments: Any) -> int:
    """The errno that a call fails with."""
    with pytest.raises(OSError) as caught:
        call(*arguments)
    assert caught.value.errno is not None
    return caught.value.errno


# ---- the attribute -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_pin_is_set_changed_and_removed(memory: Memory, kind: str) -> None:
    pool = memory.pool
    ino = memory.put(ROOT, "f") if kind == "file" else pool.mkdir(ROOT, "d").ino
    assert refused(pool.getxattr, ino, PIN) == errno.ENODATA
    assert refused(pool.removexattr, ino, PIN) == errno.ENODATA
    assert PIN.encode() not in pool.listxattr(ino)
    for value in (b"hard", b"soft", b"hard"):
        pool.setxattr(ino, PIN, value)
        assert pool.getxattr(ino, PIN) == value
        assert pool.listxattr(ino).count(PIN.encode()) == 1
    assert refused(pool.setxattr, ino, PIN, b"soft", os.XATTR_CREATE) == errno.EEXIST
    pool.removexattr(ino, PIN)
    assert refused(pool.getxattr, ino, PIN) == errno.ENODATA
    assert refused(pool.setxattr, ino, PIN, b"soft", os.XATTR_REPLACE) == errno.ENODATA


@pytest.mark.parametrize("value", [b"", b"h", b"Hard", b"hard\n", b"hards", b"none", b"\0" * 4])
def test_other_values_are_refused(memory: Memory, value: bytes) -> None:
    ino = memory.put(ROOT, "f")
    memory.pool.setxattr(ino, PIN, b"soft")
    assert refused(memory.pool.setxattr, ino, PIN, value) == errno.EINVAL
    assert memory.pool.getxattr(ino, PIN) == b"soft"


def test_what_is_never_evicted_cannot_be_pinned(memory: Memory) -> None:
    ino = memory.pool.symlink(ROOT, "link", b"f").ino
    assert refused(memory.pool.setxattr, ino, PIN, b"hard") == errno.EPERM
    assert refused(memory.pool.getxattr, ino, PIN) == errno.ENODATA


def test_other_attributes_of_the_core_stay_read_only(memory: Memory) -> None:
    ino = memory.put(ROOT, "f")
    for name in ("state", "class", "pins", "pi"):
        assert refused(memory.pool.setxattr, ino, f"user.beluga.{name}", b"hard") == errno.EPERM


@pytest.mark.parametrize("clean", [True, False])
def test_pins_survive_a_remount(memory: Memory, clean: bool) -> None:
    d = memory.pool.mkdir(ROOT, "d").ino
    f, g = memory.put(d, "f"), memory.put(ROOT, "g")
    memory.pool.setxattr(d, PIN, b"soft")
    memory.pool.setxattr(g, PIN, b"hard")
    memory.rejoin(clean)
    assert memory.pool.getxattr(d, PIN) == b"soft"
    assert memory.pool.getxattr(g, PIN) == b"hard"
    assert refused(memory.pool.getxattr, f, PIN) == errno.ENODATA
    assert PIN.encode() in memory.pool.listxattr(g)
    memory.pool.evict(EVERYTHING)
    assert memory.names(ROOT) == {"d", "g"}
    assert memory.names(d) == set()


# ---- what pins do ----------------------------------------------------------------------------


def test_soft_pins_go_after_everything_unpinned_and_hard_ones_never(memory: Memory) -> None:
    pool = memory.pool
    for i in range(30):
        ino = memory.put(ROOT, f"f{i}", 4096)
        if i % 3:
            pool.setxattr(ino, PIN, b"hard" if i % 3 == 1 else b"soft")
    # The oldest are no exception, and every step takes exactly what it was asked for.
    for step in range(1, 11):
        assert pool.evict(1) == 1
        assert memory.names(ROOT) == {f"f{i}" for i in range(30) if i % 3 or i >= 3 * step}
    for step in range(1, 11):
        assert pool.evict(1) == 1
        left = {f"f{i}" for i in range(30) if i % 3 == 1 or (i % 3 == 2 and i >= 3 * step)}
        assert memory.names(ROOT) == left
    assert pool.evict(EVERYTHING) == 0
    assert memory.names(ROOT) == {f"f{i}" for i in range(30) if i % 3 == 1}


def test_what_is_made_later_still_goes_before_a_soft_pin(memory: Memory) -> None:
    pool = memory.pool
    for i in range(10):
        pool.setxattr(memory.put(ROOT, f"soft{i}", 4096), PIN, b"soft")
    assert pool.evict(2) == 2  # the list of candidates is one of soft pins now
    for i in range(5):
        memory.put(ROOT, f"new{i}", 4096)
    assert pool.evict(5) == 5
    assert memory.names(ROOT) == {f"soft{i}" for i in range(2, 10)}


def test_a_directory_pins_all_that_is_in_it_and_the_strongest_pin_counts(memory: Memory) -> None:
    pool = memory.pool
    deep = {}
    for name in ("hard", "soft", "none"):
        top = pool.mkdir(ROOT, name).ino
        deep[name] = pool.mkdir(pool.mkdir(top, "a").ino, "b").ino
        for i in range(3):
            memory.put(deep[name], f"f{i}", 4096)
        if name != "none":
            pool.setxattr(top, PIN, name.encode())
    # weaker than what is above it: changes nothing; stronger: counts
    pool.setxattr(pool.lookup(deep["hard"], "f0").ino, PIN, b"soft")
    pool.setxattr(pool.lookup(deep["soft"], "f1").ino, PIN, b"hard")
    assert pool.evict(3) == 3
    assert [len(memory.names(d)) for d in deep.values()] == [3, 3, 0]
    assert pool.evict(EVERYTHING) == 2
    assert memory.names(deep["hard"]) == {"f0", "f1", "f2"}
    assert memory.names(deep["soft"]) == {"f1"}


def test_a_pin_that_is_taken_away_lets_go_at_once(memory: Memory) -> None:
    pool = memory.pool
    d = pool.mkdir(ROOT, "d").ino
    pool.setxattr(d, PIN, b"hard")
    for i in range(4):
        memory.put(d, f"f{i}", 4096)
    pool.setxattr(pool.lookup(d, "f0").ino, PIN, b"hard")
    assert pool.evict(EVERYTHING) == 0
    pool.removexattr(d, PIN)
    assert pool.evict(EVERYTHING) == 3
    pool.removexattr(pool.lookup(d, "f0").ino, PIN)
    assert pool.evict(EVERYTHING) == 1


@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_pin_goes_by_where_the_file_is_now(memory: Memory, what: str) -> None:
    """Moved out of a pinned directory it may go, moved into one it may not, also when eviction
    has looked at it in its former place."""
    pool = memory.pool
    pinned, other = pool.mkdir(ROOT, "pinned").ino, pool.mkdir(ROOT, "other").ino
    pool.setxattr(pinned, PIN, b"hard")
    in_d, out_d = pool.mkdir(pinned, "d").ino, pool.mkdir(other, "d").ino
    memory.put(in_d, "in", 4096)
    keeper = pool.open(memory.put(out_d, "out", 4096), os.O_RDONLY)  # looked at, and open
    assert pool.evict(EVERYTHING) == 0
    pool.release(keeper)
    if what == "file":
        pool.rename(in_d, "in", out_d, "in")
        pool.rename(out_d, "out", in_d, "out")
    else:
        pool.rename(pinned, "d", other, "d2")
        pool.rename(other, "d", pinned, "d")
    assert pool.evict(EVERYTHING) == 1
    left = {memory.pool.lookup(ino, "out").ino for ino in (in_d, out_d) if memory.names(ino)}
    assert len(left) == 1


def test_native_blocks_are_pinned_with_their_namespace(memory: Memory) -> None:
    pool = memory.pool
    spaces = {name: pool.ns_create(name) for name in ("hard", "soft", "none")}
    keys = [bytes([i]) * 32 for i in range(8)]
    for name, ns in spaces.items():
        for key in keys:
            pool.block_put(ns, key, bytes(4096))
        if name != "none":
            pool.setxattr(ns, PIN, name.encode())

    def present() -> list[int]:
        return [pool.block_match(ns, b"".join(keys), 32) for ns in spaces.values()]

    assert pool.evict(8) == 8
    assert present() == [8, 8, 0]
    assert pool.evict(EVERYTHING) == 8
    assert present() == [8, 0, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_pool_of_pinned_blocks_is_enospc_and_unpinning_helps(kind: str) -> None:
    memory = Memory(size_bytes=16 << 20, kind=kind)
    pool = memory.pool
    d = pool.mkdir(ROOT, "d").ino
    pool.setxattr(d, PIN, b"hard")
    made = 0
    with pytest.raises(OSError) as caught:
        for made in range(10_000):
            memory.put(d, f"f{made}", 256 << 10)
    assert caught.value.errno == errno.ENOSPC
    assert pool.statfs()["evicted_blocks"] == 0
    assert {f"f{i}" for i in range(made)} <= memory.names(d)
    started = time.monotonic()
    for i in range(200):  # each one looks for something to evict; not through everything
        assert refused(memory.put, ROOT, f"no{i}", 256 << 10) == errno.ENOSPC
        pool.unlink(ROOT, f"no{i}")
    print(f"ENOSPC among pinned blocks: {(time.monotonic() - started) / 200 * 1e6:.0f} us a write")
    pool.setxattr(d, PIN, b"soft")
    for i in range(made):
        memory.put(ROOT, f"g{i}", 256 << 10)
    assert memory.names(ROOT) >= {f"g{made - 1}"}
    memory.close()


def test_blocks_of_another_size_come_before_soft_pins() -> None:
    """Emptying a whole region for a larger block takes none that is pinned soft while there are
    others."""
    memory = Memory(size_bytes=32 << 20, region_granules=256)
    pool = memory.pool
    soft = pool.mkdir(ROOT, "soft").ino
    pool.setxattr(soft, PIN, b"soft")
    for i in range(400):
        memory.put(soft if i < 20 else ROOT, f"f{i}", 64 << 10)
    for i in range(20):
        memory.put(ROOT, f"large{i}", 1 << 20)
    assert pool.statfs()["evicted_blocks"] > 100
    assert memory.names(soft) == {f"f{i}" for i in range(20)}
    memory.close()


# ---- classes -----------------------------------------------------------------------------------


def ordinary(memory: Memory, name: str) -> int:
    ino = memory.put(ROOT, name, 4096)
    fh = memory.pool.open(ino, os.O_RDWR)
    memory.pool.write(fh, 0, b"again")
    memory.pool.flush(fh)
    memory.pool.release(fh)
    assert memory.pool.getxattr(ino, "user.beluga.class") == b"ordinary"
    return ino


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("evict", ["lru", "all"])
def test_ordinary_files_go_with_evict_all_only(evict: str, kind: str) -> None:
    memory = Memory(attach={"evict": evict}, kind=kind)
    pool = memory.pool
    old = ordinary(memory, "old")
    memory.put(ROOT, "block", 4096)
    linked = memory.put(ROOT, "linked", 4096)
    pool.link(linked, pool.mkdir(ROOT, "d").ino, "other")
    pool.setxattr(ordinary(memory, "pinned"), PIN, b"hard")
    held = pool.open(ordinary(memory, "open"), os.O_RDONLY)
    pool.symlink(ROOT, "link", b"x")
    d = pool.lookup(ROOT, "d").ino
    if evict == "lru":
        assert pool.evict(EVERYTHING) == 1
        assert memory.names(ROOT) == {"old", "linked", "d", "pinned", "open", "link"}
        assert memory.names(d) == {"other"}
    else:
        assert pool.evict(1) == 1
        assert memory.names(ROOT) == {"block", "linked", "d", "pinned", "open", "link"}
        assert pool.evict(EVERYTHING) == 2
        assert memory.names(ROOT) == {"d", "pinned", "open", "link"}
        assert memory.names(d) == set()  # a file goes with all of its names
        assert refused(pool.getattr, old) == errno.ESTALE
        assert refused(pool.getattr, linked) == errno.ESTALE
    assert pool.read(held, 0, 5) == b"again"
    pool.release(held)
    memory.close()


def test_evict_all_honours_the_pin_of_every_name(memory: Memory) -> None:
    memory.attach = {"evict": "all"}
    memory.rejoin()
    pool = memory.pool
    pinned, other = pool.mkdir(ROOT, "pinned").ino, pool.mkdir(ROOT, "other").ino
    pool.setxattr(pinned, PIN, b"hard")
    pool.link(memory.put(other, "a", 4096), pinned, "a")
    pool.link(memory.put(pinned, "b", 4096), other, "b")
    pool.link(memory.put(other, "c", 4096), other, "c2")
    assert pool.evict(EVERYTHING) == 1
    assert memory.names(pinned) == memory.names(other) == {"a", "b"}


@pytest.mark.parametrize("kind", KINDS)
def test_evict_none_keeps_everything(kind: str) -> None:
    memory = Memory(size_bytes=16 << 20, attach={"evict": "none"}, kind=kind)
    with pytest.raises(OSError) as caught:
        for i in range(10_000):
            memory.put(ROOT, f"f{i}", 256 << 10)
    assert caught.value.errno == errno.ENOSPC
    assert memory.pool.statfs()["evicted_blocks"] == 0
    memory.close()


# ---- order --------------------------------------------------------------------------------------


def evicted_one_by_one(memory: Memory) -> list[str]:
    order = []
    before = memory.names(ROOT)
    while memory.pool.evict(1):
        after = memory.names(ROOT)
        order += sorted(before - after)
        before = after
    return order


def test_least_recently_used_first_and_making_is_a_use(memory: Memory) -> None:
    inos = [memory.put(ROOT, f"f{i}", 4096) for i in range(6)]
    for i in (0, 4, 2):
        memory.read(inos[i])
    memory.put(ROOT, "last", 4096)
    assert evicted_one_by_one(memory) == ["f1", "f3", "f5", "f0", "f4", "f2", "last"]


@pytest.mark.parametrize("evict", ["lru", "all"])
@pytest.mark.parametrize("seed", range(5))
def test_what_can_be_evicted_is_known_before(evict: str, seed: int) -> None:
    """Whatever is pinned, open, linked or written again: what is said is what evict frees."""
    rng = random.Random(seed)
    memory = Memory(attach={"evict": evict})
    pool = memory.pool
    dirs = [ROOT]
    for i in range(12):
        dirs.append(pool.mkdir(rng.choice(dirs), f"d{i}").ino)
        if rng.random() < 0.3:
            pool.setxattr(dirs[-1], PIN, rng.choice([b"hard", b"soft"]))
    held = []
    for i in range(150):
        where, kind = rng.choice(dirs), rng.randrange(10)
        ino = memory.put(where, f"f{i}", rng.randrange(40_000), killed=kind == 0)
        if kind == 1:
            held.append(pool.open(ino, os.O_RDONLY))
        elif kind == 2:
            held.append(pool.open(ino, os.O_RDWR))
            pool.write(held[-1], 0, b"again")
        elif kind == 3:
            pool.link(ino, rng.choice(dirs), f"l{i}")
        elif kind == 4:
            pool.setxattr(ino, PIN, rng.choice([b"hard", b"soft"]))
        elif kind == 5:
            fh = pool.open(ino, os.O_RDWR)
            pool.write(fh, 0, b"again")
            pool.release(fh)
        elif kind == 6:
            held.append(pool.open(ino, os.O_RDONLY))
            pool.unlink(where, f"f{i}")
    said, slot, more = 0, 0, True
    while more:
        part, slot = pool.evictable(slot, 7)
        said, more = said + part, slot != 0
    assert (said, 0) == pool.evictable(0, 1 << 31)
    assert 0 < said < pool.statfs()["used_granules"]
    assert pool.evict(EVERYTHING) == said
    assert pool.evictable(0, 1 << 31) == (0, 0)
    for fh in held:
        pool.release(fh)
    assert pool.evictable(0, 1 << 31)[0] == pool.evict(EVERYTHING)
    memory.close()


def test_abandoned_files_go_first_also_when_somebody_looks_into_them(memory: Memory) -> None:
    for i in range(3):
        memory.put(ROOT, f"f{i}", 4096)
    killed = [memory.put(ROOT, f"killed{i}", 4096, killed=True) for i in range(3)]
    assert memory.pool.getxattr(killed[0], "user.beluga.state") == b"abandoned"
    memory.read(killed[0])
    memory.rejoin()
    memory.read(killed[1])
    order = evicted_one_by_one(memory)
    assert set(order[:3]) == {"killed0", "killed1", "killed2"}
    assert order[3:] == ["f0", "f1", "f2"]


@pytest.mark.parametrize("seed", range(8))
def test_abandoned_files_go_first_whenever_they_come(seed: int) -> None:
    """A pool that fills with files of killed writers, of all sizes: what isn't one of them stays
    until they are gone, though it is the oldest of all."""
    rng = random.Random(seed)
    memory = Memory(size_bytes=32 << 20)
    pool = memory.pool
    memory.put(ROOT, "older", 1 << 20)
    for i in range(200):
        _, fh = pool.create(ROOT, f"killed{i}", flags=os.O_RDWR)
        for piece in range(rng.randrange(2, 11)):
            pool.write(fh, piece << 16, bytes(1 << 16))
        pool.flush(fh, killed=True)
        pool.release(fh)
        assert "older" in memory.names(ROOT), f"after {i}"
    assert pool.statfs()["evicted_blocks"] > 100
    for i in range(2000):
        memory.put(ROOT, f"block{i}", 1 << 16)
        names = memory.names(ROOT)
        if "older" not in names:
            break
    assert not any(name.startswith("killed") for name in names)
    assert i > 100
    memory.close()


@pytest.mark.parametrize("slots", [2048, 80_000])
def test_recency_survives_a_remount(slots: int) -> None:
    """Seconds are what is kept, so uses that are seconds apart stay apart; in pools with many
    slots too."""
    memory = Memory(size_bytes=96 << 20 if slots > 10_000 else 24 << 20, inodes=slots)
    inos = [memory.put(ROOT, f"f{i}", 4096) for i in range(4)]
    if slots > 10_000:  # slots far apart: their recency is on many pages
        pool = memory.pool
        spread = pool.mkdir(ROOT, "spread").ino
        for base in range(0, slots - 3000, 1000):
            pool.batch_begin()
            for i in range(1000):
                pool.mknod(spread, f"{base + i}", 0o100644)
            pool.batch_commit()
            inos.append(memory.put(ROOT, f"g{base}", 4096))
    time.sleep(1.1)
    used = inos[1::2]
    for ino in used:
        memory.read(ino)
    names = {memory.pool.getattr(ino).ino for ino in used}
    memory.rejoin()
    for _ in range(len(inos) - len(used)):
        assert memory.pool.evict(1) == 1
    left = {ino for ino in inos if exists(memory, ino)}
    assert left == names
    memory.close()


def exists(memory: Memory, ino: int) -> bool:
    try:
        memory.pool.getattr(ino)
    except OSError:
        return False
    return True

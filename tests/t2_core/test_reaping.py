"""Directories that eviction emptied go when slots are out; all others stay."""

from __future__ import annotations

import errno
import os
import random
import sys
import threading
import time
from collections.abc import Iterator

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from core_memory import KINDS, Memory, native

ROOT = native.ROOT_INO
EVERYTHING = 1 << 40
AFTER_S = 1


@pytest.fixture(params=KINDS)
def memory(request: pytest.FixtureRequest) -> Iterator[Memory]:
    memory = Memory(kind=request.param, inodes=256, attach={"reap_after_s": AFTER_S})
    yield memory
    memory.close()


def top(memory: Memory) -> int:
    return int(memory.pool.mkdir(ROOT, "engine").ino)


def fill_slots(memory: Memory, where: int, prefix: str = "fill") -> int:
    """Empty ordinary files until slots are out: how many."""
    for i in range(10_000):
        try:
            memory.pool.mknod(where, f"{prefix}{i}", 0o100644)
        except OSError as error:
            assert error.errno == errno.ENOSPC
            return i
    raise AssertionError("slots are never out")


def fill_free_slots(memory: Memory) -> None:
    """As many empty ordinary files as there is room for without taking anything away."""
    numbers = memory.pool.statfs()
    for i in range(numbers["inodes"] - numbers["inodes_used"]):
        memory.pool.mknod(ROOT, f"free{i}", 0o100644)


def reaped(memory: Memory) -> int:
    return int(memory.pool.statfs()["reaped_dirs"])


def test_emptied_directories_make_room_and_no_others(memory: Memory) -> None:
    pool, engine = memory.pool, top(memory)
    for i in range(50):
        memory.put(pool.mkdir(engine, f"d{i}").ino, "block", 4096)
    stay = {
        "by hand": pool.mkdir(engine, "by hand").ino,
        "emptied by hand": pool.mkdir(engine, "emptied by hand").ino,
        "with attributes": pool.mkdir(engine, "with attributes").ino,
        "pinned": pool.mkdir(engine, "pinned").ino,
        "with a subdirectory": pool.mkdir(engine, "with a subdirectory").ino,
        "with an ordinary file": pool.mkdir(engine, "with an ordinary file").ino,
        "changed since": pool.mkdir(engine, "changed since").ino,
        "renamed since": pool.mkdir(engine, "renamed").ino,
        "used since": pool.mkdir(engine, "used since").ino,
    }
    for name, ino in stay.items():
        if name != "by hand":
            memory.put(ino, "block", 4096)
    at_the_root = pool.mkdir(ROOT, "at the root").ino
    memory.put(at_the_root, "block", 4096)
    pool.unlink(stay["emptied by hand"], "block")
    pool.setxattr(stay["with attributes"], "user.tenant", b"7")
    pool.mkdir(stay["with a subdirectory"], "d")
    pool.mknod(stay["with an ordinary file"], "f", 0o100644)
    assert pool.evict(EVERYTHING) == 50 + len(stay) - 2 + 1
    pool.setxattr(stay["pinned"], "user.beluga.pin", b"soft")
    pool.setattr(stay["changed since"], mode=0o700)
    pool.rename(engine, "renamed", engine, "renamed since")
    pool.unlink(stay["used since"], pool.mknod(stay["used since"], "f", 0o100644) and "f")
    time.sleep(AFTER_S + 1.1)
    used = pool.statfs()["inodes_used"]
    made = fill_slots(memory, ROOT)
    assert reaped(memory) == 50
    assert made == pool.statfs()["inodes"] - used + 50
    assert memory.names(engine) == set(stay)
    assert "at the root" in memory.names(ROOT)


def test_parents_go_after_their_children(memory: Memory) -> None:
    pool, engine = memory.pool, top(memory)
    for i in range(10):
        a = pool.mkdir(engine, f"a{i}").ino
        for k in range(3):
            memory.put(pool.mkdir(pool.mkdir(a, f"b{k}").ino, "c").ino, "block", 4096)
    pool.evict(EVERYTHING)
    for _ in range(3):  # each level has to be unused for a while by itself
        time.sleep(AFTER_S + 1.1)
        fill_slots(memory, ROOT, f"t{time.monotonic_ns()}")
    assert reaped(memory) == 10 * (1 + 3 + 3)
    assert memory.names(engine) == set()


def test_nothing_is_reaped_while_there_are_slots(memory: Memory) -> None:
    pool, engine = memory.pool, top(memory)
    memory.put(pool.mkdir(engine, "d").ino, "block", 4096)
    pool.evict(EVERYTHING)
    time.sleep(AFTER_S + 1.1)
    for i in range(100):
        memory.put(engine, f"f{i}", 4096)
    assert "d" in memory.names(engine)


def test_the_timer_reaps_before_slots_are_out(memory: Memory) -> None:
    pool, engine = memory.pool, top(memory)
    for i in range(50):
        memory.put(pool.mkdir(engine, f"d{i}").ino, "block", 4096)
    pool.evict(EVERYTHING)
    time.sleep(AFTER_S + 1.1)
    pool.tick()
    assert reaped(memory) == 0
    made = 0
    while pool.statfs()["inodes"] - pool.statfs()["inodes_used"] >= 10:
        pool.mknod(ROOT, f"f{made}", 0o100644)
        made += 1
    assert reaped(memory) == 0
    before = -1
    while reaped(memory) > before:  # some at a time where few metadata pages are free
        before = reaped(memory)
        pool.tick()
    numbers = pool.statfs()
    assert numbers["inodes"] - numbers["inodes_used"] >= numbers["inodes"] // 16
    assert len(memory.names(engine)) == 50 - before


def test_nor_with_evict_none(memory: Memory) -> None:
    pool, engine = memory.pool, top(memory)
    memory.put(pool.mkdir(engine, "d").ino, "block", 4096)
    pool.evict(EVERYTHING)
    memory.attach = {"evict": "none", "reap_after_s": AFTER_S}
    memory.rejoin()
    time.sleep(AFTER_S + 1.1)
    fill_slots(memory, ROOT)
    assert memory.names(engine) == {"d"}


@pytest.mark.parametrize("clean", [True, False])
def test_they_are_known_after_a_remount(memory: Memory, clean: bool) -> None:
    pool, engine = memory.pool, top(memory)
    for i in range(5):
        memory.put(pool.mkdir(engine, f"d{i}").ino, "block", 4096)
    pool.evict(EVERYTHING)
    memory.rejoin(clean)
    time.sleep(AFTER_S + 1.1)
    fill_slots(memory, ROOT)
    assert reaped(memory) == 5
    assert memory.names(engine) == set()


@pytest.mark.parametrize("how", ["lookup", "getattr", "miss inside"])
def test_who_comes_by_keeps_a_directory_for_a_while(memory: Memory, how: str) -> None:
    """A path that leads through it, as of makedirs(exist_ok=True), and then time for a create."""
    pool, engine = memory.pool, top(memory)
    inos = {f"d{i}": pool.mkdir(engine, f"d{i}").ino for i in range(6)}
    for ino in inos.values():
        memory.put(ino, "block", 4096)
    pool.evict(EVERYTHING)
    time.sleep(AFTER_S + 1.1)
    if how == "lookup":
        pool.lookup(engine, "d3")
    elif how == "getattr":
        pool.getattr(inos["d3"])
    else:  # as of a process that keeps the directory open, and looks for blocks
        with pytest.raises(OSError) as caught:
            pool.lookup(inos["d3"], "block")
        assert caught.value.errno == errno.ENOENT
    fill_slots(memory, ROOT)
    assert memory.names(engine) == {"d3"}
    assert reaped(memory) == 5
    pool.unlink(ROOT, "fill0")
    memory.put(inos["d3"], "block", 4096)  # the create finds its directory
    with pytest.raises(OSError) as caught:
        pool.create(inos["d0"], "block")
    assert caught.value.errno == errno.ESTALE  # the kernel looks the name up, and says ENOENT


def test_an_open_directory_stays(memory: Memory) -> None:
    pool, engine = memory.pool, top(memory)
    inos = {f"d{i}": pool.mkdir(engine, f"d{i}").ino for i in range(40)}
    for ino in inos.values():
        memory.put(ino, "block", 4096)
    held = [f"d{i}" for i in range(0, 40, 2)]
    for name in held:
        pool.opendir(inos[name])
    pool.opendir(inos["d0"])
    pool.evict(EVERYTHING)
    time.sleep(AFTER_S + 1.1)
    fill_slots(memory, ROOT)
    assert memory.names(engine) == set(held)
    for name in held:
        pool.releasedir(inos[name])
    time.sleep(AFTER_S + 1.1)
    fill_slots(memory, ROOT, "more")
    assert memory.names(engine) == {"d0"}
    pool.releasedir(inos["d0"])
    with pytest.raises(OSError) as caught:
        pool.opendir(inos["d2"])
    assert caught.value.errno == errno.ESTALE
    with pytest.raises(OSError) as caught:
        pool.opendir(pool.lookup(ROOT, "fill0").ino)
    assert caught.value.errno == errno.ENOTDIR


@pytest.mark.parametrize("how", ["mknod", "create", "mkdir"])
@pytest.mark.parametrize("wait_s", [0.0, AFTER_S + 1.1], ids=["young", "due"])
def test_the_directory_that_a_file_is_being_made_in_is_not_taken_for_its_slot(
    memory: Memory, wait_s: float, how: str
) -> None:
    pool, engine = memory.pool, top(memory)
    last = pool.mkdir(engine, "last").ino
    memory.put(last, "block", 4096)
    assert pool.evict(EVERYTHING) == 1
    fill_free_slots(memory)
    time.sleep(wait_s)
    with pytest.raises(OSError) as caught:
        getattr(pool, how)(last, "f", 0o100644)
    assert caught.value.errno == errno.ENOSPC
    assert memory.names(engine) == {"last"}
    pool.mknod(ROOT, "f", 0o100644)  # from elsewhere it goes
    assert memory.names(engine) == set()


@pytest.mark.parametrize(("inodes", "most"), [(256, 1), (5000, 4)])
def test_few_blocks_go_for_a_slot(inodes: int, most: int) -> None:
    memory = Memory(size_bytes=64 << 20, inodes=inodes)
    pool = memory.pool
    for i in range(pool.statfs()["inodes"] - pool.statfs()["inodes_used"]):
        memory.put(ROOT, f"b{i}", 1)
    assert pool.statfs()["evicted_blocks"] == 0
    for made in range(1, 20):
        pool.mknod(ROOT, f"f{made}", 0o100644)
        assert made <= pool.statfs()["evicted_blocks"] < made + most
    memory.close()


def test_blocks_with_a_directory_each_come_and_go_at_any_speed(memory: Memory) -> None:
    """A thousand a second, where a few hundred fit, and every directory is too young to go: no
    store fails, and blocks have most of the slots all the while."""
    pool, engine = memory.pool, top(memory)
    for i in range(3000):
        memory.put(pool.mkdir(engine, f"d{i}").ino, "block", 4096)
        if i > 400 and i % 100 == 0:
            assert pool.statfs()["nblocks"] > 80
    left = {f"d{i}" for i in range(2925, 3000)}
    assert memory.names(engine) >= left
    assert all(memory.names(pool.lookup(engine, name).ino) for name in left)


def test_young_directories_go_when_nothing_else_is_left(memory: Memory) -> None:
    """In the order in which they were emptied; not those that are open, that somebody has come by
    since, or that are wanted for another reason."""
    pool, engine = memory.pool, top(memory)
    inos = {f"d{i:02}": pool.mkdir(engine, f"d{i:02}").ino for i in range(20)}
    for ino in inos.values():
        memory.put(ino, "block", 4096)
    pool.opendir(inos["d03"])
    for name in inos:  # one by one: so is the order
        assert pool.evict(1) == 1, name
    pool.lookup(engine, "d05")
    pool.getattr(inos["d06"])
    with pytest.raises(OSError):
        pool.lookup(inos["d07"], "block")
    pool.setattr(inos["d08"], mode=0o700)
    stay = {"d03", "d05", "d06", "d07", "d08"}
    fill_free_slots(memory)
    for number, name in enumerate(sorted(inos.keys() - stay)):
        assert name in memory.names(engine)
        pool.mknod(ROOT, f"g{number}", 0o100644)
        assert name not in memory.names(engine)
    with pytest.raises(OSError) as caught:
        pool.mknod(ROOT, "h", 0o100644)
    assert caught.value.errno == errno.ENOSPC
    assert memory.names(engine) == stay
    pool.releasedir(inos["d03"])
    time.sleep(AFTER_S + 1.1)
    fill_slots(memory, ROOT, "i")
    assert memory.names(engine) == {"d08"}


def test_makedirs_and_create_never_fail_beside_reaping() -> None:
    """Engines that make a directory for each block, check it by name, and create in it, while
    slots are always out."""
    memory = Memory(inodes=256, attach={"reap_after_s": AFTER_S})
    pool, engine = memory.pool, top(memory)
    stop = time.monotonic() + 6
    failures: list[BaseException] = []

    def life(seed: int) -> None:
        rng = random.Random(seed)
        try:
            while time.monotonic() < stop:
                name = f"{seed}-{rng.randrange(600)}"
                try:
                    d = pool.lookup(engine, name).ino
                except OSError as error:
                    if error.errno != errno.ENOENT:
                        raise
                    try:
                        d = pool.mkdir(engine, name).ino
                    except OSError as error:
                        if error.errno != errno.ENOSPC:
                            raise
                        time.sleep(0.05)  # every directory is too young to go
                        continue
                time.sleep(0.002)
                try:
                    memory.put(d, f"{time.monotonic_ns()}", 4096)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=life, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    print(f"{reaped(memory)} directories reaped")
    assert reaped(memory) > 100
    memory.close()

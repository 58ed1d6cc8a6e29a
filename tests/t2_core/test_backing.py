"""Directory pools: writers that the core doesn't see, crashes, and the two directions in which
backing files and objects can fail to fit."""

from __future__ import annotations

import errno
import mmap
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from core_memory import MIB, ROOT, Memory, Writer, content, directory_pool, native

CHUNK = 256 << 10
EVERYTHING = 1 << 40


@pytest.fixture
def memory() -> Iterator[Memory]:
    memory = Memory(kind="directory")
    yield memory
    memory.close()


def xattr(memory: Memory, ino: int, name: str) -> str:
    return str(memory.pool.getxattr(ino, f"user.beluga.{name}").decode())


def problems(memory: Memory, **how: Any) -> tuple[dict[str, int], list[tuple[int, str]]]:
    found: list[tuple[int, str]] = []
    counts = native.fsck(
        memory.fd,
        memory.size_bytes,
        True,
        lambda level, code, text: found.append((level, code)),
        data_fd=memory.data_fd,
        host_uuid=b"h" * 16,
        boot_id=b"b" * 16,
        **how,
    )
    return counts, found


# ---- writers that the core doesn't see ---------------------------------------------------------


def test_size_and_times_are_those_of_the_backing_file(memory: Memory) -> None:
    writer = Writer(memory)
    writer.write(0, b"x" * 300_000)
    attr = memory.pool.getattr(writer.ino)
    assert (attr.size, attr.granules) == (300_000, 74)
    before = attr.mtime_ns
    time.sleep(0.02)
    writer.write(300_000, b"y")
    attr = memory.pool.getattr(writer.ino)
    assert attr.size == 300_001
    assert attr.mtime_ns > before
    assert memory.pool.lookup(ROOT, "f").size == 300_001
    writer.close()
    assert memory.pool.getattr(writer.ino).size == 300_001
    assert content(memory, writer.ino) == b"x" * 300_000 + b"y"


def test_the_last_close_makes_the_sums(memory: Memory) -> None:
    writer = Writer(memory)
    writer.write(0, os.urandom(700_000))
    assert memory.pool.verify(writer.ino)["unchecked_bytes"] == 700_000
    writer.close()
    assert xattr(memory, writer.ino, "state") == "sealed"
    assert xattr(memory, writer.ino, "class") == "block"
    assert memory.pool.verify(writer.ino)["checked_bytes"] == 700_000


@pytest.mark.parametrize("end", ["unmapped", "clean detach", "crash"])
def test_a_mapping_that_outlives_the_close(memory: Memory, end: str) -> None:
    """Stored into after the close, verified: never damage, never verified before it is gone; also
    across the end of the daemon."""
    writer = Writer(memory)
    writer.write(0, b"a" * 600_000)
    mapping = writer.map()
    writer.close()
    for step in range(3):
        mapping[step * CHUNK] = 98 + step
        memory.pool.tick()
        found = memory.pool.verify(writer.ino)
        assert (found["checked_bytes"], found["bad_chunks"]) == (0, 0)
        assert content(memory, writer.ino)[step * CHUNK] == 98 + step
        assert "unverified" in xattr(memory, writer.ino, "state")
        if end != "unmapped":
            memory.rejoin(clean=end == "clean detach")
    assert memory.pool.evict(EVERYTHING) == 0  # it is in use
    mapping.close()
    memory.pool.tick()
    found = memory.pool.verify(writer.ino)
    assert (found["checked_bytes"], found["bad_chunks"]) == (600_000, 0)
    assert xattr(memory, writer.ino, "state") == "sealed"
    assert xattr(memory, writer.ino, "class") == "block"
    assert memory.pool.statfs()["corrupt"] == 0
    assert memory.pool.evict(EVERYTHING) > 0


def test_opened_for_writing_and_left_as_it_was(memory: Memory) -> None:
    """It is what it was before: version, class, sums."""
    ino = memory.put(ROOT, "f", 600_000)
    version, state = xattr(memory, ino, "version"), xattr(memory, ino, "state")
    writer = Writer(memory, ino)
    assert xattr(memory, ino, "state") == "dirty"
    writer.close()
    assert xattr(memory, ino, "state") == state == "sealed"
    assert xattr(memory, ino, "version") == version
    assert xattr(memory, ino, "class") == "block"
    assert memory.pool.verify(ino)["checked_bytes"] == 600_000


@pytest.mark.parametrize("how", ["write", "map"])
def test_written_again_is_ordinary_and_has_new_sums(memory: Memory, how: str) -> None:
    ino = memory.put(ROOT, "f", 600_000)
    writer = Writer(memory, ino)
    if how == "write":
        writer.write(300_000, b"again")
    else:
        with writer.map() as mapping:
            mapping[300_000:300_005] = b"again"
    writer.close()
    assert xattr(memory, ino, "state") == "sealed"
    assert xattr(memory, ino, "class") == "ordinary"
    assert xattr(memory, ino, "version") == "2"
    assert memory.pool.verify(ino)["checked_bytes"] == 600_000
    assert content(memory, ino)[300_000:300_005] == b"again"


@pytest.mark.parametrize("adds", [True, False])
def test_a_file_that_is_put_together_in_several_openings(memory: Memory, adds: bool) -> None:
    """A block once it has another name, if each opening only added to it."""
    first = Writer(memory, name="f.tmp")
    first.write(0, b"first" * 60_000)
    first.close()
    ino = first.ino
    writer = Writer(memory, ino)
    writer.write(300_000 if adds else 299_999, b"more" * 100_000)
    writer.close()
    memory.pool.rename(ROOT, "f.tmp", ROOT, "f")
    assert xattr(memory, ino, "class") == ("block" if adds else "ordinary")
    assert memory.pool.verify(ino)["unchecked_bytes"] == 0


def test_synced_and_then_written_on_is_ordinary(memory: Memory) -> None:
    writer = Writer(memory)
    writer.write(0, b"journal")
    memory.pool.fsync(writer.fh)
    time.sleep(0.02)
    writer.write(7, b" goes on")
    writer.close()
    assert xattr(memory, writer.ino, "class") == "ordinary"


def test_two_writers_and_the_core(memory: Memory) -> None:
    """One goes on after the other's close, and the core stores, too: the sums are of all."""
    first = Writer(memory)
    second = Writer(memory, first.ino)
    first.write(0, b"1" * 300_000)
    first.close()
    assert memory.pool.verify(first.ino)["checked_bytes"] == 0
    second.write(300_000, b"2" * 300_000)
    assert memory.pool.write(second.fh, 100_000, b"core") == 4
    second.write(100_004, b"second")
    second.close()
    found = memory.pool.verify(first.ino)
    assert (found["checked_bytes"], found["bad_chunks"]) == (600_000, 0)
    assert content(memory, first.ino)[99_999:100_011] == b"1coresecond1"


def test_truncated_while_somebody_writes(memory: Memory) -> None:
    writer = Writer(memory)
    writer.write(0, b"x" * 500_000)
    memory.pool.setattr(writer.ino, size=100_000, fh=writer.fh)
    assert memory.pool.getattr(writer.ino).size == 100_000
    writer.write(200_000, b"end")
    writer.close()
    assert content(memory, writer.ino) == b"x" * 100_000 + bytes(100_000) + b"end"
    assert memory.pool.verify(writer.ino)["bad_chunks"] == 0


@pytest.mark.parametrize("mode", [0, 1, 2 | 1, 16, 16 | 1])
def test_room_is_asked_for_while_somebody_writes(memory: Memory, mode: int) -> None:
    """The size is the backing file's of now, whatever the core has heard of it: nothing is cut."""
    writer = Writer(memory)
    data = random.Random(mode).randbytes(300_000)
    writer.write(0, data)
    memory.pool.fallocate(writer.fh, mode, 0, 4096)
    kept = bytes(4096) + data[4096:] if mode & ~1 else data
    writer.close()
    assert memory.pool.getattr(writer.ino).size == len(data)
    assert content(memory, writer.ino) == kept


def test_a_writer_that_is_killed(memory: Memory) -> None:
    writer = Writer(memory)
    writer.write(0, b"half")
    writer.close(killed=True)
    memory.pool.tick()
    assert xattr(memory, writer.ino, "state") == "abandoned"
    assert content(memory, writer.ino) == b"half"
    ino = memory.put(ROOT, "g", 4096)
    assert memory.pool.evict(1) == 1
    assert memory.pool.getattr(ino).size == 4096


def test_unlinked_while_mapped(memory: Memory) -> None:
    """The mapping keeps its bytes, whatever comes after; its pages count until it goes."""
    before = memory.pool.statfs()["used_granules"]
    writer = Writer(memory)
    writer.write(0, b"k" * MIB)
    mapping = writer.map()
    writer.close()
    memory.pool.unlink(ROOT, "f")
    for i in range(30):
        memory.put(ROOT, f"g{i}", MIB)
        memory.pool.tick()
    assert mapping[:] == b"k" * MIB
    mapping[0] = 0
    memory.pool.evict(EVERYTHING)
    assert memory.pool.statfs()["used_granules"] == before + MIB // 4096
    mapping.close()
    assert memory.pool.statfs()["used_granules"] == before
    assert memory.pool.statfs()["norphans"] == 0


def test_evicted_while_mapped_for_reading(memory: Memory) -> None:
    ino = memory.put(ROOT, "f", MIB)
    fh = memory.pool.open(ino, os.O_RDONLY)
    mapping = mmap.mmap(memory.pool.backing_fd(fh), MIB, prot=mmap.PROT_READ)
    memory.pool.release(fh)
    assert memory.pool.evict(EVERYTHING) == MIB // 4096
    for i in range(30):
        memory.put(ROOT, f"g{i}", MIB)
    assert mapping[:] == bytes(MIB)
    mapping.close()


def test_many_mappings_do_not_keep_others_from_being_settled(memory: Memory) -> None:
    mappings = []
    for i in range(150):
        writer = Writer(memory, name=f"f{i}")
        writer.write(0, b"x" * 5000)
        mappings.append((writer.ino, writer.map()))
        writer.close()
    for ino, mapping in mappings[100:]:
        mapping.close()
        del ino
    for _ in range(20):
        memory.pool.tick()
    checked = [memory.pool.verify(ino)["checked_bytes"] for ino, _ in mappings]
    assert checked == [0] * 100 + [5000] * 50
    for _, mapping in mappings[:100]:
        mapping.close()


def test_descriptors_are_closed(memory: Memory) -> None:
    before = len(os.listdir("/proc/self/fd"))
    handles = []
    for i in range(100):
        ino = memory.put(ROOT, f"f{i}", 100)
        handles.append(memory.pool.open(ino, os.O_RDONLY))
        assert memory.pool.backing_fd(handles[-1]) == memory.pool.backing_fd(handles[-1])
    assert len(os.listdir("/proc/self/fd")) == before + 100
    for fh in handles:
        memory.pool.release(fh)
    assert len(os.listdir("/proc/self/fd")) == before


def test_refusals(memory: Memory) -> None:
    ino = memory.put(ROOT, "f", 100)
    fh = memory.pool.open(ino, os.O_RDONLY)
    with pytest.raises(OSError) as caught:
        memory.pool.backing_fd(fh, True)
    assert caught.value.errno == errno.EBADF
    memory.pool.release(fh)
    flat = Memory()
    fh = flat.pool.open(flat.put(ROOT, "f", 100), os.O_RDONLY)
    with pytest.raises(OSError) as caught:
        flat.pool.backing_fd(fh)
    assert caught.value.errno == errno.EOPNOTSUPP
    flat.pool.release(fh)
    flat.close()


def test_metadata_alone_is_no_pool_and_a_flat_pool_no_directory(memory: Memory) -> None:
    memory.pool.close()
    for fd, size, data_fd, words in [
        (memory.fd, memory.size_bytes, -1, "name the directory"),
        (Memory().fd, 24 << 20, memory.data_fd, "flat pool"),
    ]:
        with pytest.raises(OSError, match=words):
            native.Pool(fd, size, host_uuid=b"h" * 16, boot_id=b"b" * 16, data_fd=data_fd)


def test_added_to_before_the_kernel_has_let_go(memory: Memory) -> None:
    """It says that the last one has closed, and has the backing file open for a moment yet: who
    only adds to the file then still leaves a block."""
    pool = memory.pool
    writer = Writer(memory)
    writer.write(0, b"a" * MIB)
    pool.flush(writer.fh)
    pool.release(writer.fh)
    closing = threading.Timer(0.005, os.close, [writer.fd])
    closing.start()
    again = Writer(memory, ino=writer.ino)
    again.write(MIB, b"b" * MIB)
    again.close()
    closing.join()
    assert pool.settle() == 0
    pool.rename(ROOT, "f", ROOT, "g")
    assert xattr(memory, writer.ino, "class") == "block"
    assert content(memory, writer.ino) == b"a" * MIB + b"b" * MIB


@pytest.mark.parametrize("how", ["unlink", "rename"])
def test_removed_while_it_is_still_mapped(memory: Memory, how: str) -> None:
    """Closed, and not finished, since somebody may store into it: its inode comes back with the
    call that removes it, its space with the mapping."""
    pool = memory.pool
    before = pool.statfs()
    writer = Writer(memory)
    writer.write(0, b"x" * MIB)
    mapping = writer.map()
    writer.close()
    assert pool.settle() == 1
    if how == "unlink":
        pool.unlink(ROOT, "f")
    else:
        memory.put(ROOT, "other", 0)
        pool.rename(ROOT, "other", ROOT, "f")
        pool.unlink(ROOT, "f")
    now = pool.statfs()
    assert now["inodes_used"] == before["inodes_used"]
    assert now["norphans"] == now["open_files"] == 0
    assert pool.settle() == 0
    assert mapping[MIB - 1] == ord("x")
    mapping.close()
    assert pool.statfs()["used_granules"] == before["used_granules"]


# ---- crashes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize(
    ("what", "state"),
    [("new", None), ("synced", "sealed"), ("dirty", "sealed,unverified"), ("closed", "sealed")],
)
def test_what_a_crash_leaves(memory: Memory, what: str, state: str | None, foreign: bool) -> None:
    pool = memory.pool
    if what == "dirty":
        ino = memory.put(ROOT, "f", 300_000)
        fh = pool.open(ino, os.O_RDWR)
    else:
        attr, fh = pool.create(ROOT, "f", flags=os.O_RDWR)
        ino = attr.ino
    if foreign:
        with open(f"/proc/self/fd/{pool.backing_fd(fh, True)}", "r+b") as file:
            file.write(b"z" * 400_000)
    else:
        pool.write(fh, 0, b"z" * 400_000)
    if what == "synced":
        pool.fsync(fh)
    if what == "closed":
        pool.flush(fh)
    memory.rejoin(clean=False)
    if state is None:
        assert memory.names(ROOT) == set()
        return
    assert xattr(memory, ino, "state") == state
    assert content(memory, ino) == b"z" * 400_000
    checked = 0 if "unverified" in state else 400_000
    assert memory.pool.verify(ino)["checked_bytes"] == checked


def test_stored_into_behind_a_sync_is_not_verified_after_a_crash(memory: Memory) -> None:
    writer = Writer(memory)
    writer.write(0, b"s" * 300_000)
    memory.pool.fsync(writer.fh)
    time.sleep(0.02)
    writer.write(0, b"later")
    os.close(writer.fd)
    memory.rejoin(clean=False)
    assert xattr(memory, writer.ino, "state") == "sealed,unverified"
    assert content(memory, writer.ino)[:6] == b"laters"


CHILD = """
import os, random, sys
from belugafs import _native
fd, data_fd, size, seed = map(int, sys.argv[1:])
pool = _native.Pool(fd, size, host_uuid=b"h" * 16, boot_id=b"b" * 16, data_fd=data_fd)
rng = random.Random(seed)
for i in range(100000):
    name = f"f{rng.randrange(30)}"
    length = rng.randrange(1, 600_000)
    kind = rng.randrange(4)
    data = bytes([i % 256]) * length
    print(f"begin {name} {i % 256} {length} {kind}", flush=True)
    if kind == 3:
        try:
            pool.unlink(1, name)
        except FileNotFoundError:
            pass
    else:
        attr, fh = pool.create(1, f"{name}.tmp{i}", flags=os.O_RDWR)
        if kind == 1:
            backing = os.open(f"/proc/self/fd/{pool.backing_fd(fh, True)}", os.O_RDWR)
            os.pwrite(backing, data, 0)
            pool.flush(fh)
            os.close(backing)
        else:
            pool.write(fh, 0, data)
            pool.flush(fh)
        pool.release(fh)
        pool.rename(1, f"{name}.tmp{i}", 1, name)
    print(f"end {name} {i % 256} {length} {kind}", flush=True)
    if i % 16 == 0:
        pool.tick()
"""


@pytest.mark.parametrize("seed", range(8))
def test_killed_at_any_time(seed: int) -> None:
    """What was acknowledged is there and whole, nothing else is damaged, and no backing file is
    left without its object."""
    rng = random.Random(seed)
    fd, data_fd, size_bytes = directory_pool(48 << 20, inodes=512)
    there: dict[str, tuple[int, int]] = {}
    for round_ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, *map(str, (fd, data_fd, size_bytes, seed * 10 + round_))],
            pass_fds=(fd, data_fd),
            stdout=subprocess.PIPE,
            cwd=Path(__file__).resolve().parents[2],
        )
        assert child.stdout is not None
        assert select.select([child.stdout], [], [], 30)[0], "the child doesn't begin"
        time.sleep(rng.random() * 0.4)
        child.send_signal(signal.SIGKILL)
        lines = child.stdout.read().decode().splitlines()
        child.wait()
        doubt = ""
        for line in lines:
            verb, name, byte, length, kind = line.split()
            doubt = name if verb == "begin" else ""
            if verb == "end" and kind == "3":
                there.pop(name, None)
            elif verb == "end":
                there[name] = (int(byte), int(length))
        pool = native.Pool(fd, size_bytes, host_uuid=b"h" * 16, boot_id=b"b" * 16, data_fd=data_fd)
        assert pool.statfs()["backing_lost"] == 0
        found = {
            name.decode(): ino for name, _, ino, _ in pool.readdir(ROOT, 0, 4096)
        }  # fmt: skip
        for name, ino in found.items():
            assert pool.verify(ino)["bad_chunks"] == 0
            if name != doubt and ".tmp" not in name:
                byte, length = there[name]
                fh = pool.open(ino, os.O_RDONLY)
                assert pool.read(fh, 0, MIB) == bytes([byte]) * length, name
                pool.release(fh)
            elif name == doubt:
                there.pop(name, None)
        assert {name for name in there if name not in found} <= {doubt}
        there = {name: what for name, what in there.items() if name in found}
        for name in list(found):
            if name == doubt or ".tmp" in name:
                pool.unlink(ROOT, name)
                there.pop(name, None)
        files = sum(len(os.listdir(f"/proc/self/fd/{data_fd}/{d}")) for d in os.listdir(data_fd))
        assert files == len(pool.readdir(ROOT, 0, 4096))
        pool.close()
    os.close(fd)
    os.close(data_fd)


# ---- damage -------------------------------------------------------------------------------------


def test_a_backing_file_that_is_gone(memory: Memory) -> None:
    """A miss, said and counted; fsck -n names it, -y forgets the object."""
    lost, kept = memory.put(ROOT, "lost", 300_000), memory.put(ROOT, "kept", 300_000)
    os.unlink(memory.backing(lost))
    with pytest.raises(OSError, match="is gone") as caught:
        memory.pool.open(lost, os.O_RDONLY)
    assert caught.value.errno == errno.ENOENT
    assert memory.pool.statfs()["backing_lost"] == 1
    memory.pool.close()
    counts, found = problems(memory)
    assert (counts["problems"], found) == (1, [(1, "backing-missing")])
    counts, found = problems(memory, repair=True)
    assert (counts["left"], counts["dropped"]) == (0, 1)
    assert problems(memory)[1] == []
    memory.pool = memory.join()
    assert memory.names(ROOT) == {"kept"}
    assert content(memory, kept) == bytes(300_000)


def test_a_backing_file_of_another_size(memory: Memory) -> None:
    for name, by in (("longer", 1), ("shorter", -1)):
        ino = memory.put(ROOT, name, 300_000)
        os.truncate(memory.backing(ino), 300_000 + by)
    memory.put(ROOT, "kept", 300_000)
    memory.pool.close()
    codes = {code for level, code in problems(memory)[1] if level}
    assert "backing-size" in codes
    counts, _ = problems(memory, repair=True)
    assert counts["left"] == 0
    assert problems(memory)[1] == []
    memory.pool = memory.join()
    assert memory.names(ROOT) == {"kept"}


@pytest.mark.parametrize("how", ["fsck", "attach after a crash"])
def test_backing_files_without_an_object(memory: Memory, how: str) -> None:
    kept = memory.put(ROOT, "kept", 300_000)
    where = os.path.dirname(os.path.dirname(memory.backing(kept)))
    os.makedirs(f"{where}/07", exist_ok=True)
    for name in ("07/00000107.00000000", "07/00000007.00000009", "07/what", "02/00000007.00000000"):
        Path(where, name).write_bytes(b"left" * 2000)
    if how == "fsck":
        memory.pool.close()
        counts, found = problems(memory)
        assert counts["problems"] == 0
        assert [code for _, code in found] == ["backing-leftover"] * 4
        counts, found = problems(memory, repair=True)
        assert (counts["left"], counts["changed"]) == (0, 4)
        assert problems(memory)[1] == []
        memory.pool = memory.join()
    else:
        memory.pool.close(clean=False)
        memory.pool = memory.join()
        # in a directory that its name doesn't lead to: fsck's to find
        assert memory.pool.statfs()["backing_swept"] >= 3
    assert os.listdir(f"{where}/07") == []
    assert content(memory, kept) == bytes(300_000)


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR])
@pytest.mark.parametrize("verify", ["first", "always", "off"])
def test_damage_is_told_to_who_is_going_to_read_past_the_core(verify: str, flags: int) -> None:
    """Who is going to write it, too: he can read it, and his writing would hide it."""
    writes = flags == os.O_RDWR
    memory = Memory(kind="directory", attach={"verify": verify})
    ino = memory.put(ROOT, "f", 3 * CHUNK)
    memory.rejoin()
    with open(memory.backing(ino), "r+b") as file:
        file.seek(2 * CHUNK)
        file.write(b"!")
    fh = memory.pool.open(ino, flags)
    if verify == "off":
        assert os.pread(memory.pool.backing_fd(fh, writes), 1, 2 * CHUNK) == b"!"
    else:
        with pytest.raises(OSError) as caught:
            memory.pool.backing_fd(fh, writes)
        assert caught.value.errno == errno.EIO
        assert memory.pool.read(fh, 0, 2 * CHUNK) == bytes(2 * CHUNK)
        with pytest.raises(OSError):
            memory.pool.read(fh, 2 * CHUNK, 1)
    with open(memory.backing(ino), "r+b") as file:
        file.seek(2 * CHUNK)
        file.write(b"\0")
    assert memory.pool.backing_fd(fh, writes) >= 0
    memory.pool.release(fh)
    memory.close()


def test_damage_is_dropped_by_a_repair_that_reads(memory: Memory) -> None:
    bad, good = memory.put(ROOT, "bad", 3 * CHUNK), memory.put(ROOT, "good", 3 * CHUNK)
    with open(memory.backing(bad), "r+b") as file:
        file.seek(2 * CHUNK)
        file.write(b"!")
    memory.pool.close()
    counts, found = problems(memory)
    assert (1, "data") in found
    assert counts["blocks_bad"] == 1
    counts, _ = problems(memory, repair=True)
    assert counts["left"] == 0
    memory.pool = memory.join()
    assert memory.names(ROOT) == {"good"}
    assert memory.pool.verify(good)["bad_chunks"] == 0


@pytest.mark.parametrize("seed", range(6))
def test_random_damage_to_the_metadata(memory: Memory, seed: int) -> None:
    """Repaired, it is clean and serves: each file that is there has its content, and no backing
    file is left without one."""
    rng = random.Random(seed)
    sizes = {}
    for d in range(4):
        where = memory.pool.mkdir(ROOT, f"d{d}").ino
        for i in range(25):
            sizes[f"d{d}/f{i}"] = size = rng.randrange(1, 60_000)
            memory.put(where, f"f{i}", size)
    memory.pool.close()
    start = native.peek(memory.fd, memory.size_bytes)["meta_off"]
    for _ in range(3):
        page = start + 4096 * rng.randrange(1, 80)
        os.pwrite(memory.fd, rng.randbytes(8), page + rng.randrange(4000))
    counts, _ = problems(memory, repair=True)
    assert counts["left"] == 0
    assert problems(memory)[1] == []
    memory.pool = memory.join()
    files = 0
    todo = [(ROOT, "")]
    while todo:
        where, path = todo.pop()
        for name, _, ino, kind in memory.pool.readdir(where, 0, 4096):
            if kind == 4:
                todo.append((ino, f"{path}{name.decode()}/"))
                continue
            files += 1
            whole = content(memory, ino)
            assert whole == bytes(len(whole))
            if (name := path + name.decode()) in sizes:
                assert len(whole) == sizes[name]
    data = f"/proc/self/fd/{memory.data_fd}"
    assert sum(len(os.listdir(f"{data}/{name}")) for name in os.listdir(data)) == files

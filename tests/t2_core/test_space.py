"""Space is counted four times: by the pool's own counters (df), by the files (du, st_blocks), by
the objects that there are (df -i), and by fsck, which adds up what it finds. After any
operations they agree to the byte."""

from __future__ import annotations

import errno
import os
import stat
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

sys.path.insert(0, os.path.dirname(__file__))
from core_memory import KINDS, Memory, native
from reference import KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE

ROOT = native.ROOT_INO
GRANULE = native.GRANULE_BYTES
NAMES = [f"n{i}" for i in range(6)]

# Sizes of interest: within a granule, a checksum chunk, a region, and just beside them.
size_s = st.one_of(
    st.integers(0, 3 * GRANULE), st.integers(250 << 10, 260 << 10), st.integers(0, 1 << 20)
)
FULL = (errno.ENOSPC,)


class Tree:
    """All objects that can be reached by a name or by an open handle."""

    def __init__(self, pool: Any, handles: dict[int, int]) -> None:
        self.dirs: list[int] = [ROOT]
        self.files: set[int] = set(handles.values())
        self.others: set[int] = set()
        self.entries: list[tuple[int, str, int]] = []
        self.granules = 0
        todo = [ROOT]
        while todo:
            where, after = todo.pop(), 0
            while found := pool.readdir(where, after, 16):
                for name, cookie, ino, kind in found:
                    after = cookie
                    if kind == stat.S_IFDIR >> 12:
                        todo.append(ino)
                        # Prefixes of keys are made up, and cost nothing.
                        if not ino >> 63:
                            self.dirs.append(ino)
                    elif kind == stat.S_IFREG >> 12:
                        self.files.add(ino)
                    else:
                        self.others.add(ino)
                    if not (where | ino) >> 63:
                        self.entries.append((where, name.decode(), ino))
        self.granules = sum(pool.getattr(ino).granules for ino in self.files)

    @property
    def objects(self) -> int:
        return len(self.dirs) + len(self.files) + len(self.others)


class Space(RuleBasedStateMachine):
    kind = "flat"

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory(size_bytes=12 << 20, inodes=128, region_granules=64, kind=self.kind)
        self.pool = self.memory.pool
        self.ns = self.pool.ns_create("blocks")
        self.handles: dict[int, int] = {}  # handle: inode
        self.look()

    def look(self) -> None:
        self.tree = Tree(self.pool, self.handles)

    def teardown(self) -> None:
        self.memory.close()

    def allow(self, *numbers: int) -> Any:
        """A call that may fail with one of these, and then leaves nothing."""

        class Allowed:
            def __enter__(self) -> None: ...

            def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
                return isinstance(error, OSError) and error.errno in numbers

        return Allowed()

    def pick(self, data: st.DataObject, what: list[int]) -> int:
        return data.draw(st.sampled_from(sorted(what)))

    def ordinary_dirs(self) -> list[int]:
        return [d for d in self.tree.dirs if d != self.ns]

    # ---- names ------------------------------------------------------------------------------

    @rule(data=st.data(), name=st.sampled_from(NAMES), pieces=st.lists(size_s, max_size=3))
    def store(self, data: st.DataObject, name: str, pieces: list[int]) -> None:
        """create, sequential writes, close."""
        where = self.pick(data, self.ordinary_dirs())
        with self.allow(errno.EEXIST, *FULL):
            _, fh = self.pool.create(where, name, flags=os.O_RDWR | os.O_EXCL)
            off = 0
            with self.allow(*FULL):
                for size in pieces:
                    off += self.pool.write(fh, off, bytes([7]) * size) if size else 0
            with self.allow(*FULL):
                self.pool.flush(fh, killed=data.draw(st.booleans()) and off % 5 == 0)
            self.pool.release(fh)

    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def create(self, data: st.DataObject, name: str) -> None:
        where = self.pick(data, self.ordinary_dirs())
        with self.allow(errno.EEXIST, *FULL):
            attr, fh = self.pool.create(where, name, flags=os.O_RDWR | os.O_EXCL)
            self.handles[fh] = attr.ino

    @rule(data=st.data(), name=st.sampled_from(NAMES), kind=st.sampled_from("dlfn"))
    def make(self, data: st.DataObject, name: str, kind: str) -> None:
        where = self.pick(data, self.ordinary_dirs())
        with self.allow(errno.EEXIST, *FULL):
            if kind == "d":
                self.pool.mkdir(where, name)
            elif kind == "l":
                self.pool.symlink(where, name, b"x" * data.draw(st.sampled_from([1, 80, 81, 4000])))
            else:
                fmt = stat.S_IFIFO if kind == "f" else stat.S_IFREG
                self.pool.mknod(where, name, fmt | 0o644)

    @precondition(lambda self: len(self.tree.entries) > 1)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        where, name, _ = data.draw(st.sampled_from(self.tree.entries))
        with self.allow(errno.EISDIR, *FULL):
            self.pool.unlink(where, name)
            return
        with self.allow(errno.ENOTEMPTY):
            if name != "blocks":
                self.pool.rmdir(where, name)

    @precondition(lambda self: self.tree.entries)
    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def rename(self, data: st.DataObject, name: str) -> None:
        where, old, _ = data.draw(st.sampled_from(self.tree.entries))
        to = self.pick(data, self.ordinary_dirs())
        allowed = (errno.EINVAL, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.EXDEV)
        with self.allow(*allowed, errno.ENOENT, errno.EBUSY, *FULL):
            if old != "blocks":
                self.pool.rename(where, old, to, name)

    @precondition(lambda self: self.tree.files)
    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def link(self, data: st.DataObject, name: str) -> None:
        with self.allow(errno.EEXIST, errno.EPERM, errno.ENOENT, errno.EBUSY, *FULL):
            self.pool.link(
                self.pick(data, list(self.tree.files)), self.pick(data, self.ordinary_dirs()), name
            )

    # ---- files ------------------------------------------------------------------------------

    @precondition(lambda self: self.tree.files)
    @rule(data=st.data(), flags=st.sampled_from([os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_TRUNC]))
    def open(self, data: st.DataObject, flags: int) -> None:
        ino = self.pick(data, list(self.tree.files))
        with self.allow(errno.ENOENT, errno.ESTALE, *FULL):
            self.handles[self.pool.open(ino, flags)] = ino

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), off=st.integers(0, 2 << 20), size=size_s)
    def write(self, data: st.DataObject, off: int, size: int) -> None:
        with self.allow(errno.EBADF, *FULL):
            self.pool.write(self.pick(data, list(self.handles)), off, bytes(size))

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), size=st.integers(0, 2 << 20), by_handle=st.booleans())
    def truncate(self, data: st.DataObject, size: int, by_handle: bool) -> None:
        fh = self.pick(data, list(self.handles))
        with self.allow(errno.EBADF, *FULL):
            self.pool.setattr(self.handles[fh], size=size, fh=fh if by_handle else 0)

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), size=st.integers(0, 2 << 20))
    def reserve(self, data: st.DataObject, size: int) -> None:
        with self.allow(errno.EBADF, *FULL):
            self.pool.reserve(self.pick(data, list(self.handles)), size)

    @precondition(lambda self: self.handles)
    @rule(
        data=st.data(),
        mode=st.sampled_from(
            [0, KEEP_SIZE, ZERO_RANGE, PUNCH_HOLE | KEEP_SIZE, PUNCH_HOLE | KEEP_SIZE]
        ),
        off=st.integers(0, 2 << 20),
        size=st.one_of(size_s, st.integers(1, 2 << 20)),
    )
    def fallocate(self, data: st.DataObject, mode: int, off: int, size: int) -> None:
        """What has room afterwards is written without an error, in however full a pool."""
        fh = self.pick(data, list(self.handles))
        promised = False
        with self.allow(errno.EBADF, errno.EINVAL, *FULL):
            self.pool.fallocate(fh, mode, off, size)
            promised = not mode & PUNCH_HOLE
        if promised:
            assert self.pool.write(fh, off, bytes([9]) * size) == size

    @rule(data=st.data(), name=st.sampled_from(NAMES), size=size_s, named=st.booleans())
    def tmpfile(self, data: st.DataObject, name: str, size: int, named: bool) -> None:
        where = self.pick(data, self.ordinary_dirs())
        with self.allow(*FULL):
            attr, fh = self.pool.tmpfile(where)
            with self.allow(errno.EEXIST, *FULL):
                self.pool.write(fh, 0, bytes([5]) * size)
                if named:
                    self.pool.link(attr.ino, where, name)
            with self.allow(*FULL):
                self.pool.flush(fh)
            self.pool.release(fh)

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def fsync(self, data: st.DataObject) -> None:
        self.pool.fsync(self.pick(data, list(self.handles)))

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), killed=st.booleans())
    def close(self, data: st.DataObject, killed: bool) -> None:
        fh = self.pick(data, list(self.handles))
        del self.handles[fh]
        with self.allow(*FULL):
            self.pool.flush(fh, killed=killed)
        self.pool.release(fh)

    # ---- blocks and the whole ------------------------------------------------------------------

    @rule(key=st.integers(0, 9), size=size_s)
    def put(self, key: int, size: int) -> None:
        with self.allow(errno.EEXIST, *FULL):
            self.pool.block_put(self.ns, bytes([key]) * 16, bytes(size))

    @rule(key=st.integers(0, 9))
    def delete(self, key: int) -> None:
        with self.allow(errno.ENOENT):
            self.pool.block_delete(self.ns, bytes([key]) * 16)

    @rule(granules=st.integers(1, 400))
    def evict(self, granules: int) -> None:
        before = self.pool.statfs()["used_granules"]
        freed = self.pool.evict(granules)
        assert self.pool.statfs()["used_granules"] == before - freed

    @rule()
    def tick(self) -> None:
        self.pool.tick()

    @rule(clean=st.booleans())
    def rejoin(self, clean: bool) -> None:
        self.handles.clear()
        self.memory.rejoin(clean)
        self.pool = self.memory.pool
        # what died with its host gave its space back
        numbers = self.pool.statfs()
        assert numbers["nunsealed"] == sum(
            self.pool.getattr(ino).state == 4 for ino in Tree(self.pool, {}).files
        )
        assert numbers["norphans"] == 0

    @invariant()
    def all_agree(self) -> None:
        self.look()
        numbers = self.pool.statfs()
        assert numbers["used_granules"] == self.tree.granules
        assert numbers["inodes_used"] == self.tree.objects
        found = self.memory.fsck()
        assert found["used_granules"] == self.tree.granules
        assert found["objects"] == self.tree.objects
        assert found["quarantined_granules"] == numbers["quarantined_granules"]
        assert (
            numbers["used_granules"] + numbers["quarantined_granules"] <= numbers["data_granules"]
        )


SETTINGS = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


class SpaceOfDirectory(Space):
    """The same in a directory pool."""

    kind = "directory"


Space.TestCase.settings = SETTINGS
SpaceOfDirectory.TestCase.settings = SETTINGS
test_df_du_and_fsck_agree = Space.TestCase
test_df_du_and_fsck_agree_in_a_directory_pool = SpaceOfDirectory.TestCase


@pytest.mark.parametrize("kind", KINDS)
def test_all_space_comes_back(kind: str) -> None:
    """Whatever was done: with everything removed and closed, a pool is as empty as a new one,
    before and after a remount."""
    memory = Memory(kind=kind)
    pool = memory.pool
    fresh = pool.statfs()
    d = pool.mkdir(ROOT, "d").ino
    for i in range(50):
        ino = memory.put(d, f"f{i}", 50_000)
        fh = pool.open(ino, os.O_RDWR)
        pool.write(fh, 30_000, bytes(100_000))
        if i % 3 == 0:
            pool.unlink(d, f"f{i}")
        if i % 3 == 1:
            pool.setattr(ino, size=5, fh=fh)
        pool.flush(fh)
        pool.release(fh)
        if i % 3:
            pool.unlink(d, f"f{i}")
    pool.rmdir(ROOT, "d")
    for _ in range(2):
        pool.apply_scan()
        pool.reclaim()
        numbers = pool.statfs()
        for key in ("used", "quarantined", "largest_free"):
            assert numbers[f"{key}_granules"] == fresh[f"{key}_granules"], key
        assert numbers["inodes_used"] == fresh["inodes_used"]
        memory.rejoin()
        pool = memory.pool
    memory.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["write", "reserve", "truncate"])
def test_enospc_leaves_everything_as_it_was(how: str, kind: str) -> None:
    """What doesn't fit is refused; what the file had is there, and can be written again."""
    memory = Memory(attach={"evict": "none"}, kind=kind)
    pool = memory.pool
    ino = memory.put(ROOT, "f", 100_000)
    with pytest.raises(OSError) as caught:
        for i in range(1000):
            memory.put(ROOT, f"fill{i}", 1 << 20)
    assert caught.value.errno == errno.ENOSPC
    pool.unlink(ROOT, "fill0")
    pool.apply_scan()
    pool.reclaim()
    before = pool.statfs()["used_granules"]
    fh = pool.open(ino, os.O_RDWR)
    if how == "truncate":  # growing costs nothing
        pool.setattr(ino, size=1 << 40, fh=fh)
        pool.setattr(ino, size=100_000, fh=fh)
    else:
        with pytest.raises(OSError) as caught:
            if how == "write":
                pool.write(fh, 0, bytes(24 << 20))
            else:
                pool.reserve(fh, 24 << 20)
        assert caught.value.errno == errno.ENOSPC
    assert pool.getattr(ino).size == 100_000
    assert pool.read(fh, 0, 200_000) == bytes(100_000)
    assert pool.write(fh, 0, b"again") == 5
    pool.flush(fh)
    pool.release(fh)
    assert pool.statfs()["used_granules"] <= before + 25
    memory.close()

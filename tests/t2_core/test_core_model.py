"""The core, without FUSE, against the reference model: random sequences that shrink, with
clean and unclean ends in between, and the same from eight threads at once."""

from __future__ import annotations

import errno
import os
import random
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

sys.path.insert(0, os.path.dirname(__file__))
from core_memory import KINDS, Memory
from core_memory import native as _native
from reference import KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE, Node, Reference, Refused

NAMES = [b"a", b"b", b"c", b"dir", b"x" * 255, "K\u00e4se".encode(), b"\xff\xfe", b"d.tmp"]
name_s = st.sampled_from(NAMES)
FALLOCATE_MODES = [0, KEEP_SIZE, PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE]


def outcome(call: Callable[[], Any]) -> tuple[int, Any]:
    """(errno or 0, result) of the core's or of the model's call."""
    try:
        return 0, call()
    except Refused as refused:
        return refused.errno, None
    except OSError as error:
        assert error.errno is not None
        return error.errno, None


class Twin:
    """Core and model side by side, below one directory. Every call is made on both."""

    def __init__(self, pool: Any, top: int) -> None:
        self.pool = pool
        self.model = Reference()
        self.top = top
        self.inode: dict[int, int] = {id(self.model.root): top}

    def ino(self, node: Node) -> int:
        return self.inode[id(node)]

    def both(self, core: Callable[[], Any], model: Callable[[], Any]) -> tuple[Any, Any] | None:
        code, theirs = outcome(core)
        expected, ours = outcome(model)
        assert code == expected, (
            f"core says {errno.errorcode.get(code, code)}, "
            f"model {errno.errorcode.get(expected, expected)}"
        )
        return None if code else (theirs, ours)

    def made(self, pair: tuple[Any, Any] | None) -> None:
        if pair:
            self.inode[id(pair[1])] = pair[0].ino

    def mkdir(self, d: Node, name: bytes) -> None:
        self.made(
            self.both(lambda: self.pool.mkdir(self.ino(d), name), lambda: self.model.mkdir(d, name))
        )

    def symlink(self, d: Node, name: bytes, target: bytes) -> None:
        self.made(
            self.both(
                lambda: self.pool.symlink(self.ino(d), name, target),
                lambda: self.model.symlink(d, name, target),
            )
        )

    def create(self, d: Node, name: bytes, pieces: list[tuple[int, bytes]]) -> None:
        pair = self.both(
            lambda: self.pool.create(self.ino(d), name, flags=os.O_RDWR | os.O_EXCL),
            lambda: self.model.create(d, name),
        )
        if not pair:
            return
        (attr, fh), node = pair
        self.inode[id(node)] = attr.ino
        for off, data in pieces:
            assert self.pool.write(fh, off, data) == len(data)
            self.model.write(node, off, data)
            assert self.pool.getattr(attr.ino).size == len(node.data)
        assert self.pool.read(fh, 0, 1 << 20) == bytes(node.data)
        self.pool.flush(fh)
        self.pool.release(fh)

    def modify(self, node: Node, off: int, data: bytes, flags: int, fsync: bool) -> None:
        fh = self.pool.open(self.ino(node), os.O_RDWR | flags)
        if flags & os.O_TRUNC:
            self.model.truncate(node, 0)
        if flags & os.O_APPEND:
            off = len(node.data)
        assert self.pool.write(fh, off, data) == len(data)
        self.model.write(node, off, data)
        if fsync:
            self.pool.fsync(fh)
        assert self.pool.read(fh, max(0, off - 5000), 20000) == bytes(
            node.data[max(0, off - 5000) :][:20000]
        )
        self.pool.flush(fh)
        self.pool.release(fh)

    def fallocate(self, node: Node, steps: list[tuple[int, int, int]], fsync: bool) -> None:
        """Steps are (mode, offset, length), through one handle."""
        fh = self.pool.open(self.ino(node), os.O_RDWR)
        for mode, off, length in steps:
            self.pool.fallocate(fh, mode, off, length)
            self.model.fallocate(node, mode, off, length)
            assert self.pool.read(fh, 0, 1 << 20) == bytes(node.data)
            self.holes(fh, node)
        if fsync:
            self.pool.fsync(fh)
        self.pool.flush(fh)
        self.pool.release(fh)

    def holes(self, fh: int, node: Node) -> None:
        """Data and holes take turns to the end, and what is called a hole is zeros."""
        at, size = 0, len(node.data)
        while at < size:
            code, data = outcome(lambda at=at: self.pool.seek(fh, at, os.SEEK_DATA))
            assert code in (0, errno.ENXIO)
            start = size if code else data
            assert at <= start <= size and not any(node.data[at:start])
            if start == size:
                break
            at = self.pool.seek(fh, start, os.SEEK_HOLE)
            assert start < at <= size
        assert outcome(lambda: self.pool.seek(fh, size, os.SEEK_HOLE))[0] == errno.ENXIO

    def tmpfile(self, d: Node, name: bytes, data: bytes, named: bool) -> None:
        attr, fh = self.pool.tmpfile(self.ino(d))
        node = self.model.tmpfile()
        self.inode[id(node)] = attr.ino
        assert attr.nlink == 0
        assert self.pool.write(fh, 0, data) == len(data)
        self.model.write(node, 0, data)
        if named:
            self.both(
                lambda: self.pool.link(attr.ino, self.ino(d), name),
                lambda: self.model.link(node, d, name),
            )
        assert self.pool.read(fh, 0, 1 << 20) == data
        self.pool.flush(fh)
        self.pool.release(fh)
        if not node.nlink:
            assert outcome(lambda: self.pool.getattr(attr.ino))[0] == errno.ESTALE

    def truncate(self, node: Node, size: int) -> None:
        self.pool.setattr(self.ino(node), size=size)
        self.model.truncate(node, size)

    def compare(self) -> None:
        """Every name, byte, link count and attribute; and nothing else is there."""
        todo = [self.model.root]
        while todo:
            node = todo.pop()
            ino = self.ino(node)
            attr = self.pool.getattr(ino)
            if node is not self.model.root:
                assert attr.nlink == node.nlink
            if node.kind == "dir":
                listed, after = {}, 0
                while batch := self.pool.readdir(ino, after, 7):
                    for name, cookie, child, _ in batch:
                        assert cookie > after
                        after = cookie
                        listed[name] = child
                assert listed == {n: self.ino(c) for n, c in node.names.items()}
                todo += node.names.values()
                for name, child in node.names.items():
                    assert self.pool.lookup(ino, name).ino == self.ino(child)
            elif node.kind == "link":
                assert stat.S_ISLNK(attr.mode) and self.pool.readlink(ino) == node.target
            else:
                assert attr.size == len(node.data)
                fh = self.pool.open(ino, os.O_RDONLY)
                assert self.pool.read(fh, 0, 1 << 20) == bytes(node.data)
                assert self.pool.read(fh, len(node.data), 10) == b""
                self.pool.release(fh)
            for key, value in node.xattrs.items():
                assert self.pool.getxattr(ino, key) == value


class CoreAgainstModel(RuleBasedStateMachine):
    kind = "flat"

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory(kind=self.kind)
        self.twin = Twin(self.memory.pool, _native.ROOT_INO)

    def teardown(self) -> None:
        self.twin.compare()
        self.memory.close()

    def dirs(self) -> list[Node]:
        return [
            self.twin.model.root,
            *(n for n in self.twin.model.walk().values() if n.kind == "dir"),
        ]

    def files(self) -> list[Node]:
        return [n for n in self.twin.model.walk().values() if n.kind == "file"]

    @rule(data=st.data(), name=name_s)
    def mkdir(self, data: st.DataObject, name: bytes) -> None:
        self.twin.mkdir(data.draw(st.sampled_from(self.dirs())), name)

    @rule(
        data=st.data(),
        name=name_s,
        to=st.binary(min_size=1, max_size=200).filter(lambda b: b"\0" not in b),
    )
    def symlink(self, data: st.DataObject, name: bytes, to: bytes) -> None:
        self.twin.symlink(data.draw(st.sampled_from(self.dirs())), name, to)

    pieces = st.lists(st.tuples(st.integers(0, 40000), st.binary(max_size=9000)), max_size=4)

    @rule(data=st.data(), name=name_s, pieces=pieces)
    def create(self, data: st.DataObject, name: bytes, pieces: list[tuple[int, bytes]]) -> None:
        self.twin.create(data.draw(st.sampled_from(self.dirs())), name, pieces)

    @precondition(lambda self: self.files())
    @rule(
        data=st.data(),
        off=st.integers(0, 60000),
        piece=st.binary(min_size=1, max_size=9000),
        flags=st.sampled_from([0, os.O_TRUNC, os.O_APPEND]),
        fsync=st.booleans(),
    )
    def modify(self, data: st.DataObject, off: int, piece: bytes, flags: int, fsync: bool) -> None:
        self.twin.modify(data.draw(st.sampled_from(self.files())), off, piece, flags, fsync)

    @precondition(lambda self: self.files())
    @rule(data=st.data(), size=st.integers(0, 70000))
    def truncate(self, data: st.DataObject, size: int) -> None:
        self.twin.truncate(data.draw(st.sampled_from(self.files())), size)

    steps = st.lists(
        st.tuples(
            st.sampled_from(FALLOCATE_MODES), st.integers(0, 60000), st.integers(1, 40000)
        ).map(lambda s: s if s[1] % 3 else (s[0], s[1] & ~4095, (s[2] | 4095) + 1)),
        min_size=1,
        max_size=4,
    )

    @precondition(lambda self: self.files())
    @rule(data=st.data(), steps=steps, fsync=st.booleans())
    def fallocate(
        self, data: st.DataObject, steps: list[tuple[int, int, int]], fsync: bool
    ) -> None:
        self.twin.fallocate(data.draw(st.sampled_from(self.files())), steps, fsync)

    @rule(data=st.data(), name=name_s, piece=st.binary(max_size=9000), named=st.booleans())
    def tmpfile(self, data: st.DataObject, name: bytes, piece: bytes, named: bool) -> None:
        self.twin.tmpfile(data.draw(st.sampled_from(self.dirs())), name, piece, named)

    @rule(data=st.data(), name=name_s)
    def unlink(self, data: st.DataObject, name: bytes) -> None:
        d = data.draw(st.sampled_from(self.dirs()))
        self.twin.both(
            lambda: self.twin.pool.unlink(self.twin.ino(d), name),
            lambda: self.twin.model.unlink(d, name),
        )

    @rule(data=st.data(), name=name_s)
    def rmdir(self, data: st.DataObject, name: bytes) -> None:
        d = data.draw(st.sampled_from(self.dirs()))
        self.twin.both(
            lambda: self.twin.pool.rmdir(self.twin.ino(d), name),
            lambda: self.twin.model.rmdir(d, name),
        )

    @rule(data=st.data(), name=name_s, name2=name_s)
    def rename(self, data: st.DataObject, name: bytes, name2: bytes) -> None:
        d, d2 = (data.draw(st.sampled_from(self.dirs())) for _ in range(2))
        self.twin.both(
            lambda: self.twin.pool.rename(self.twin.ino(d), name, self.twin.ino(d2), name2),
            lambda: self.twin.model.rename(d, name, d2, name2),
        )

    @precondition(lambda self: self.files())
    @rule(data=st.data(), name=name_s)
    def link(self, data: st.DataObject, name: bytes) -> None:
        node, d = data.draw(st.sampled_from(self.files())), data.draw(st.sampled_from(self.dirs()))
        self.twin.both(
            lambda: self.twin.pool.link(self.twin.ino(node), self.twin.ino(d), name),
            lambda: self.twin.model.link(node, d, name),
        )

    @rule(
        data=st.data(), key=st.sampled_from([b"user.a", b"user.bb"]), value=st.binary(max_size=5000)
    )
    def set_xattr(self, data: st.DataObject, key: bytes, value: bytes) -> None:
        node = data.draw(st.sampled_from(self.dirs()[:1] + self.files()))
        self.twin.pool.setxattr(self.twin.ino(node), key, value)
        self.twin.model.set_xattr(node, key, value)

    @rule(clean=st.booleans())
    def rejoin(self, clean: bool) -> None:
        # everything is closed here, so nothing may be lost however the host ends
        self.memory.rejoin(clean)
        self.twin.pool = self.memory.pool
        self.twin.compare()

    @invariant()
    def ticks(self) -> None:
        self.memory.pool.tick()


SETTINGS = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


class CoreAgainstModelOfDirectory(CoreAgainstModel):
    """The same in a directory pool."""

    kind = "directory"


CoreAgainstModel.TestCase.settings = SETTINGS
CoreAgainstModelOfDirectory.TestCase.settings = SETTINGS
test_core_against_model = CoreAgainstModel.TestCase
test_core_against_model_in_a_directory_pool = CoreAgainstModelOfDirectory.TestCase


def run_thread(memory: Memory, top: int, seed: int, steps: int) -> Iterator[None]:
    """A random life below one directory; yields nothing, raises what fails."""
    rng = random.Random(seed)
    twin = Twin(memory.pool, top)
    for _ in range(steps):
        everything = list(twin.model.walk().values())
        dirs = [twin.model.root, *(n for n in everything if n.kind == "dir")]
        files = [n for n in everything if n.kind == "file"]
        d, d2, name, name2 = (
            rng.choice(dirs),
            rng.choice(dirs),
            rng.choice(NAMES),
            rng.choice(NAMES),
        )
        kind = rng.randrange(11)
        if kind == 0:
            twin.mkdir(d, name)
        elif kind in (1, 2, 3):
            twin.create(d, name, [(rng.randrange(20000), rng.randbytes(rng.randrange(1, 9000)))])
        elif kind == 4 and files:
            twin.modify(
                rng.choice(files),
                rng.randrange(30000),
                rng.randbytes(3000),
                rng.choice([0, os.O_TRUNC]),
                False,
            )
        elif kind == 5 and files:
            twin.truncate(rng.choice(files), rng.randrange(40000))
        elif kind == 6 and files:
            steps = [
                (rng.choice(FALLOCATE_MODES), rng.randrange(30000), rng.randrange(1, 20000))
                for _ in range(3)
            ]
            twin.fallocate(rng.choice(files), steps, rng.random() < 0.3)
        elif kind == 7:
            twin.tmpfile(d, name, rng.randbytes(rng.randrange(9000)), rng.random() < 0.7)
        elif kind == 8:
            twin.both(
                lambda d=d, n=name: memory.pool.unlink(twin.ino(d), n),
                lambda d=d, n=name: twin.model.unlink(d, n),
            )
        elif kind == 9:
            twin.both(
                lambda d=d, n=name, e=d2, m=name2: memory.pool.rename(
                    twin.ino(d), n, twin.ino(e), m
                ),
                lambda d=d, n=name, e=d2, m=name2: twin.model.rename(d, n, e, m),
            )
        else:
            twin.both(
                lambda d=d, n=name: memory.pool.rmdir(twin.ino(d), n),
                lambda d=d, n=name: twin.model.rmdir(d, n),
            )
        yield
    twin.compare()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_eight_threads_each_against_its_model(seed: int, kind: str) -> None:
    """Eight threads below a directory each, with look-ups of a shared one and a timer thread;
    afterwards each finds what its model has, and fsck finds nothing."""
    memory = Memory(kind=kind)
    shared = memory.pool.mkdir(_native.ROOT_INO, "shared").ino
    failures: list[BaseException] = []
    stop = threading.Event()

    def life(i: int) -> None:
        try:
            top = memory.pool.mkdir(_native.ROOT_INO, f"thread{i}").ino
            for step, _ in enumerate(run_thread(memory, top, seed * 100 + i, 150)):
                memory.pool.mknod(shared, f"{i}-{step}", stat.S_IFREG | 0o644)
                assert len(memory.pool.readdir(shared, 0, 64)) > 0
        except BaseException as failure:
            failures.append(failure)

    def timer() -> None:
        while not stop.wait(0.002):
            memory.pool.tick()

    threads = [threading.Thread(target=life, args=(i,)) for i in range(8)]
    ticker = threading.Thread(target=timer)
    for thread in [ticker, *threads]:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    ticker.join()
    if failures:
        raise failures[0]
    memory.close()

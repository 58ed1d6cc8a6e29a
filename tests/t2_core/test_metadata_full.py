"""A pool without free metadata pages: what gives pages back always works, and gives them back."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import random
import stat
import sys
from collections.abc import Callable

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from core_memory import KINDS, Memory, native

ROOT = native.ROOT_INO


def _full(call: Callable[[], object]) -> bool:
    """Whether there is no room for it. Whatever else goes wrong is raised."""
    try:
        call()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return True
    return False


class Tree:
    """Directories, files and symbolic links with long names and attributes."""

    def __init__(self, memory: Memory, seed: int) -> None:
        self.memory = memory
        self.random = random.Random(seed)
        self.names: dict[tuple[int, str], int] = {}  # of those with content, their directory too
        self.directories = [ROOT]
        self.made = 0

    def add(self) -> None:
        pool, where = self.memory.pool, self.random.choice(self.directories)
        self.made += 1
        name = f"{self.made}".ljust(self.random.choice((8, 250)), "x")
        if self.random.random() < 0.1:
            self.directories.append(pool.mkdir(where, name).ino)
            self.names[where, name] = self.directories[-1]
        elif self.random.random() < 0.5:
            self.names[where, name] = pool.symlink(where, name, "t" * 2000).ino
        else:
            attr, fh = pool.create(where, name, flags=os.O_RDWR)
            self.names[where, name] = attr.ino
            try:
                pool.write(fh, 0, b"content")
                pool.flush(fh)
            finally:
                pool.release(fh)

    def change(self) -> None:
        pool = self.memory.pool
        (where, name), ino = self.random.choice(list(self.names.items()))
        if self.random.random() < 0.5:
            if not stat.S_ISLNK(pool.getattr(ino).mode):
                pool.setxattr(ino, "user.x", bytes(self.random.choice((10, 3000, 20_000))))
            return
        self.made += 1
        other, new = self.random.choice(self.directories), f"{self.made}".ljust(200, "y")
        with contextlib.suppress(OSError):  # a directory into itself; no room
            pool.rename(where, name, other, new)
            self.names[other, new] = self.names.pop((where, name))

    def remove(self) -> None:
        pool = self.memory.pool
        where, name = self.random.choice(list(self.names))
        try:
            if self.names[where, name] in self.directories:
                pool.rmdir(where, name)
                self.directories.remove(self.names[where, name])
            else:
                pool.unlink(where, name)
        except OSError as error:
            assert error.errno == errno.ENOTEMPTY, error
            return
        del self.names[where, name]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("inodes", [50, 100])
def test_it_can_always_be_emptied(seed: int, inodes: int) -> None:
    """Filled, and kept full by a mix of changes that fail and removals; then all of it goes, and
    there is room again."""
    memory = Memory(inodes=inodes, attach={"evict": "none"})
    try:
        tree = Tree(memory, seed)
        full = 0
        tree.add()
        for step in range(1500):
            if not tree.names:
                tree.add()
            full += _full(tree.random.choice((tree.add, tree.change, tree.change)))
            if full and step % 6 == 0:
                tree.remove()
        assert full > 30
        for _ in range(100_000):
            if tree.names:
                tree.remove()
        memory.pool.tick()  # closes what could not be closed for want of a page
        now = memory.pool.statfs()
        assert now["inodes_used"] == 1
        assert now["meta_pages_used"] - now["meta_pages_waiting"] < now["meta_pages"] // 2
    finally:
        memory.close()


def test_what_was_not_made_leaves_no_backing_file() -> None:
    """Of a directory pool: a file that finds no room leaves nothing behind, whatever is made in
    its place."""
    memory = Memory(inodes=600, kind="directory", attach={"evict": "none"})
    try:
        pool = memory.pool
        large = [pool.mkdir(ROOT, f"large{number}").ino for number in range(300)]
        for ino in large:
            _full(functools.partial(pool.setxattr, ino, "user.x", bytes(20_000)))
        failed = 0
        for number in range(300):
            filled = [
                _full(functools.partial(pool.setxattr, ino, f"user.{number}", bytes(3000)))
                for ino in large[-5:]
            ]
            if all(filled):
                name = f"f{number}".ljust(250, "x")
                failed += _full(functools.partial(pool.create, ROOT, name))
            if number % 10 == 0:
                pool.rmdir(ROOT, f"large{number // 10}")
                with contextlib.suppress(OSError):
                    pool.mkdir(ROOT, f"d{number}")
        assert failed > 10
        place = f"/proc/self/fd/{memory.data_fd}/"
        files = [name for _, _, names in os.walk(place) for name in names]
        kept = pool.readdirplus(ROOT, 0, 4096)
        assert len(files) == sum(stat.S_ISREG(attr.mode) for _, _, attr in kept)
    finally:
        memory.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_blocks_go_for_their_pages(seed: int, kind: str) -> None:
    """Where data and slots are left but no metadata pages, what is new finds room all the same, and
    many may be evicted at a time, however far apart what is said of them lies."""
    memory = Memory(inodes=600, kind=kind)
    rng = random.Random(seed)
    try:
        pool = memory.pool
        directories = [pool.mkdir(ROOT, f"{n}").ino for n in range(50)]
        pages = pool.statfs()["meta_pages"]
        used = []
        for number in range(3000):
            where, name = rng.choice(directories), f"{number}".ljust(250, "x")
            pool.setxattr(memory.put(where, name), "user.x", bytes(9000))
            used.append(pool.statfs()["meta_pages_used"])
            if number % 300 == 299:
                assert pool.evict(rng.randrange(1, 300)) > 0
        assert max(used) > pages * 9 // 10
        assert pool.statfs()["inodes_used"] < 500
        pool.evict(1 << 40)
        assert pool.statfs()["nblocks"] == 0
        for number in range(50):
            pool.rmdir(ROOT, f"{number}")
    finally:
        memory.close()


def test_open_blocks_can_be_closed() -> None:
    """All blocks are open, so none can go for pages, though each is wanted: ENOSPC, and closing
    them ends."""
    memory = Memory(inodes=600)
    try:
        pool = memory.pool
        handles: list[int] = []

        def add() -> None:
            ino = memory.put(ROOT, f"{len(handles)}".ljust(250, "x"))
            handles.append(pool.open(ino, os.O_RDONLY))
            pool.setxattr(ino, "user.x", bytes(9000))

        while not _full(add):
            assert len(handles) < 1000
        for handle in handles:
            pool.release(handle)
        assert pool.evict(1) > 0
    finally:
        memory.close()


@pytest.mark.parametrize("evict", ["lru", "none"])
def test_what_is_not_a_block_stays(evict: str) -> None:
    """Ordinary files, and blocks where nothing may be evicted, don't go for pages: ENOSPC, and all
    of them are there."""
    memory = Memory(inodes=100, attach={"evict": evict})
    try:
        pool = memory.pool
        made = 0
        while not _full(functools.partial(_put, memory, ROOT, f"{made}", evict == "none")):
            made += 1
            assert made < 3000
        assert made > 20
        for number in range(made):
            assert pool.lookup(ROOT, f"{number}".ljust(250, "x")).ino
    finally:
        memory.close()


def _put(memory: Memory, where: int, name: str, block: bool) -> None:
    """A file with attributes, so that metadata is what there is too little of."""
    if block:
        memory.pool.setxattr(memory.put(where, name.ljust(250, "x")), "user.x", bytes(9000))
    else:
        memory.pool.symlink(where, name.ljust(250, "x"), "t" * 2000)

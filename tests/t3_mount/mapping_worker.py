"""One of several processes that map, evict and rewrite the same files, and look at every byte.

``mapping_worker.py TOP NUMBER SECONDS``: says what it did, as JSON; ends with a traceback at the
first byte that is wrong.

Each file names itself: its first eight bytes follow from its name, the next eight are the number of
this version, and all the others follow from both. So a mapping that shows another file's bytes, or
two versions at once, is found out whatever it was.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import hashlib
import json
import mmap
import os
import random
import sys
import time
from pathlib import Path

import numpy as np

SIZE = 192 << 10  # two of them fit into no multiple of a checksummed chunk
NAMES = 300
HELD = 4  # mappings that a process keeps at a time


def _number(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "little") | 1


def body(name: str, version: int) -> np.ndarray:
    """All of a file."""
    words = np.arange(SIZE // 8, dtype=np.uint64) * np.uint64(_number(name, version))
    words[:2] = _number(name), version
    return words


def check(data: bytes | mmap.mmap, name: str, version: int | None = None) -> int:
    """The version that these bytes are, all of them."""
    words = np.frombuffer(data, dtype=np.uint64)
    assert len(words) == SIZE // 8, (name, len(words) * 8)
    found = int(words[1]) if version is None else version
    wrong = np.flatnonzero(words != body(name, found))
    assert not len(wrong), f"{name}, version {found}: {len(wrong)} words, from {wrong[0]} on"
    return found


class Worker:
    def __init__(self, top: Path, number: int) -> None:
        self.top = top
        self.number = number
        self.random = random.Random(number)
        self.versions = 0
        self.held: list[tuple[mmap.mmap, str, int]] = []
        self.done: collections.Counter[str] = collections.Counter()

    def any_name(self) -> str:
        return f"k{self.random.randrange(NAMES)}"

    def new_version(self) -> int:
        self.versions += 1
        return self.number << 32 | self.versions

    # -- what it does, over and over --

    def map(self) -> None:
        """Look at it now, and once more when it may have been evicted, replaced or removed."""
        name = self.any_name()
        try:
            fd = os.open(self.top / name, os.O_RDONLY)
        except FileNotFoundError:
            self.done["miss"] += 1
            return
        flags = self.random.choice((mmap.MAP_SHARED, mmap.MAP_PRIVATE))
        mapping = mmap.mmap(fd, SIZE, flags=flags, prot=mmap.PROT_READ)
        os.close(fd)
        self.held.append((mapping, name, check(mapping, name)))
        if len(self.held) > HELD:
            self.drop(self.random.randrange(len(self.held)))
        self.done["map"] += 1

    def drop(self, index: int) -> None:
        mapping, name, version = self.held.pop(index)
        check(mapping, name, version)
        mapping.close()

    def read(self) -> None:
        name = self.any_name()
        with contextlib.suppress(FileNotFoundError):
            check((self.top / name).read_bytes(), name)
            self.done["read"] += 1

    def replace(self) -> None:
        """A new file under the name, by write or by stores into a mapping."""
        name, version = self.any_name(), self.new_version()
        temporary = self.top / f"t{self.number}"
        fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        if self.random.random() < 0.5:
            assert os.write(fd, body(name, version)) == SIZE
            os.close(fd)
        else:
            os.posix_fallocate(fd, 0, SIZE)
            with mmap.mmap(fd, SIZE) as mapping:
                os.close(fd)
                mapping[:] = body(name, version).tobytes()
        try:
            os.rename(temporary, self.top / name)
        except FileNotFoundError:  # closed, and nobody came by while the whole pool was replaced
            self.done["lost"] += 1
        self.done["replace"] += 1

    def rewrite(self) -> None:
        """The own file in place, its halves in two ways; everybody else waits for the lock."""
        name, version = f"own{self.number}", self.new_version()
        fd = os.open(self.top / name, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        data, half = body(name, version).tobytes(), SIZE // 2
        if os.fstat(fd).st_size < SIZE:
            os.posix_fallocate(fd, 0, SIZE)
        with mmap.mmap(fd, SIZE) as mapping:
            if self.random.random() < 0.5:
                mapping[:half] = data[:half]
                assert os.pwrite(fd, data[half:], half) == half
            else:
                assert os.pwrite(fd, data[:half], 0) == half
                mapping[half:] = data[half:]
            check(mapping, name, version)
            check((self.top / name).read_bytes(), name, version)
        check(os.pread(fd, SIZE, 0), name, version)
        os.close(fd)
        self.done["rewrite"] += 1

    def look_at_rewritten(self) -> None:
        name = f"own{self.random.randrange(16)}"
        try:
            fd = os.open(self.top / name, os.O_RDONLY)
        except FileNotFoundError:
            return
        fcntl.flock(fd, fcntl.LOCK_SH)
        if os.fstat(fd).st_size:
            with mmap.mmap(fd, SIZE, prot=mmap.PROT_READ) as mapping:
                check(mapping, name, check(os.pread(fd, SIZE, 0), name))
            self.done["look"] += 1
        os.close(fd)

    def unlink(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self.top / self.any_name()).unlink()
            self.done["unlink"] += 1

    def evict(self) -> None:
        """What was used longest ago: in a pool that is nearly empty, what has just been made."""
        room = os.statvfs(self.top)
        if room.f_bfree * 2 > room.f_blocks:
            return
        fd = os.open(self.top / ".beluga/control", os.O_RDWR)
        os.write(fd, b"evict %d\n" % (4 * SIZE))
        self.done["evicted"] += int(json.loads(os.read(fd, 4096))["blocks"])
        os.close(fd)

    def run(self, seconds: float) -> None:
        works = [self.map] * 10 + [self.replace] * 5 + [self.read] * 3
        works += [self.rewrite, self.look_at_rewritten, self.unlink, self.evict]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.random.choice(works)()
        while self.held:
            self.drop(0)


def main() -> None:
    worker = Worker(Path(sys.argv[1]), int(sys.argv[2]))
    worker.run(float(sys.argv[3]))
    print(json.dumps(worker.done))


if __name__ == "__main__":
    main()

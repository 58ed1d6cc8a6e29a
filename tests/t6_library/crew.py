"""Processes that use a mounted pool by the library, as hard as they can, until they are killed.

    python crew.py MOUNT_POINT COUNTS

reads "reader" or "writer" from its standard input, starts such a process, and answers with its
id. They end with it. COUNTS is a file of eight numbers that all of them count in: a process that is
killed can't report.

Every block says itself what is in it: its number, from which size and bytes follow. So whoever
reads it can tell whether it is the one that he asked for, whole.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import signal
import sys
from typing import Any

import numpy as np

import belugafs

NUMBERS = 600
SIZES = (32 << 10, 100_000, 200_000, 288 << 10)
READ, MISSED, STORED, EXISTED, FULL, DROPPED, WRONG, CRASHED = range(8)
_PR_SET_PDEATHSIG = 1


def key(number: int) -> bytes:
    return number.to_bytes(8, "little") * 4


def size_of(number: int) -> int:
    return SIZES[number % len(SIZES)]


def words_of(number: int) -> Any:
    words = np.arange(size_of(number) // 8, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    words ^= np.uint64(number * 0xD1B54A32D192ED03 % 2**64)
    words[0] = number
    return words


class Counts:
    def __init__(self, path: str) -> None:
        self._file = open(path, "r+b")  # noqa: SIM115
        self._words = np.frombuffer(mmap.mmap(self._file.fileno(), 64), np.uint64)

    def add(self, which: int, n: int = 1) -> None:
        self._words[which] += np.uint64(n)  # one that gets lost now and then does no harm

    def __getitem__(self, which: int) -> int:
        return int(self._words[which])


def read(ns: belugafs.Namespace, counts: Counts, rng: random.Random) -> None:
    numbers = [rng.randrange(NUMBERS) for _ in range(rng.randrange(1, 12))]
    with ns.read([key(number) for number in numbers]) as blocks:
        for number, block in zip(numbers, blocks, strict=True):
            counts.add(READ if block.present else MISSED)
            if block.present and not np.array_equal(block.numpy(np.uint64), words_of(number)):
                counts.add(WRONG)
                print(f"block {number} has other bytes", file=sys.stderr, flush=True)


def write(ns: belugafs.Namespace, counts: Counts, rng: random.Random) -> None:
    first = rng.randrange(NUMBERS)
    what = rng.random()
    if what < 0.1:
        ns.delete([key(rng.randrange(NUMBERS)) for _ in range(4)])
        return
    try:
        if what < 0.3:
            number = rng.randrange(NUMBERS)
            counts.add(STORED if ns.put(key(number), words_of(number)) else EXISTED)
            return
        # Blocks of one size.
        numbers = [(first + len(SIZES) * i) % NUMBERS for i in range(rng.randrange(1, 7))]
        half = size_of(first) // 16
        with ns.reserve([key(number) for number in numbers], size_of(first)) as new:
            for number, block in zip(numbers, new, strict=True):
                block.numpy(np.uint64)[:half] = words_of(number)[:half]
            if what < 0.4:
                new.drop()
                counts.add(DROPPED)
                return
            for number, block in zip(numbers, new, strict=True):
                block.numpy(np.uint64)[half:] = words_of(number)[half:]
        counts.add(STORED, sum(new.stored))
        counts.add(EXISTED, len(new) - sum(new.stored))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        counts.add(FULL)


def work(kind: str, mount_point: str, counts: Counts) -> None:
    rng = random.Random(os.getpid())
    with belugafs.connect(mount_point, patience_s=60) as pool:
        ns = pool.namespace("crew", create=kind == "writer")
        while True:
            (read if kind == "reader" else write)(ns, counts, rng)


def main() -> None:
    mount_point, counts = sys.argv[1], Counts(sys.argv[2])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            try:
                work(line.strip(), mount_point, counts)
            except BaseException as error:
                # One that starts while the mount is away has nothing to connect to.
                if not os.path.exists(os.path.join(mount_point, ".beluga/config")):
                    os._exit(3)
                counts.add(CRASHED)
                print(f"{line.strip()}: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
        print(pid, flush=True)


if __name__ == "__main__":
    main()

"""kill -9 of the daemon, of processes that write, or of both, over and over: each mount heals,
what was published, closed or synced is whole, what a killed writer left half is marked, fsck is
clean before and after, nothing leaks."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

MIB = 1 << 20

# Prints a line for each change: + name, it has got its name; = name, it was synced or closed under
# its temporary one; - name, it is about to go; ? name, it may have this name from now on. Ends with
# the mount.
WRITER = r"""
import hashlib, os, random, sys
top, seed = sys.argv[1], int(sys.argv[2])
rng = random.Random(seed)
def content(name):
    size = int.from_bytes(hashlib.sha256(name.encode()).digest()[:3], "little") % 400_000 + 1
    return hashlib.shake_128(name.encode()).digest(size)
mine = []
try:
    os.makedirs(f"{top}/w{seed}", exist_ok=True)
    for number in range(10**9):
        name = f"w{seed}/{number % 7}/{number}"
        os.makedirs(os.path.dirname(f"{top}/{name}"), exist_ok=True)
        fd = os.open(f"{top}/{name}.tmp", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        data = content(name)
        done = 0
        while done < len(data):  # in pieces, sometimes
            step = len(data) if rng.random() < 0.7 else rng.randrange(1, 100_000)
            done += os.write(fd, data[done:done + step])
        if rng.random() < 0.2:
            os.fsync(fd)
            print("=", name, flush=True)
        os.close(fd)
        print("=", name, flush=True)
        print("?", name, flush=True)
        os.rename(f"{top}/{name}.tmp", f"{top}/{name}")
        print("+", name, flush=True)
        mine.append(name)
        if rng.random() < 0.3:
            with open(f"{top}/w{seed}/log", "ab", buffering=0) as log: log.write(b"line\n")
        if len(mine) > 20 or rng.random() < 0.2:
            name = mine.pop(rng.randrange(len(mine)))
            print("-", name, flush=True)
            os.unlink(f"{top}/{name}")
        if mine and rng.random() < 0.1:
            name = mine.pop()
            print("-", name, flush=True)
            print("?", name + "r", flush=True)
            os.rename(f"{top}/{name}", f"{top}/{name}r")
            os.rename(f"{top}/{name}r", f"{top}/{name}")
            print("+", name, flush=True)
            mine.append(name)
except OSError as error:
    print("!", error.errno, flush=True)
"""


def content(name: str) -> bytes:
    import hashlib

    key = name.removesuffix("r")
    size = int.from_bytes(hashlib.sha256(key.encode()).digest()[:3], "little") % 400_000 + 1
    return hashlib.shake_128(key.encode()).digest(size)


@dataclass
class Expected:
    """What the writers said."""

    published: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)
    """Synced or closed under the temporary name, and no rename has begun."""
    unsure: set[str] = field(default_factory=set)

    def read(self, text: str) -> None:
        # Without its end, a line is what a writer was killed in the middle of.
        for line in text[: text.rfind("\n") + 1].splitlines():
            mark, _, name = line.partition(" ")
            if mark == "+":
                self.published.add(name)
            elif mark == "-":
                self.published.discard(name)
                self.unsure.add(name)
            elif mark == "=":
                self.closed.add(name)
            elif mark == "?":
                self.closed.discard(name)
                self.unsure.add(name)


Victims = Literal["daemon", "writers", "both"]


def crash_round(
    mounted_pool: Any, records: Path, seed: int, run_s: float, victims: Victims, pause_s: float
) -> None:
    """Write from two processes, kill in the middle, check, mount, check again."""
    writers = []
    for number in range(2):
        with open(records / str(number), "wb") as record:
            command = [sys.executable, "-c", WRITER, str(mounted_pool.path), f"{seed}{number}"]
            writers.append(subprocess.Popen(command, stdout=record))
    while not all(b"+" in (records / str(number)).read_bytes() for number in range(2)):
        time.sleep(0.01)
    time.sleep(run_s)
    if victims != "daemon":
        for writer in writers:
            writer.kill()
            time.sleep(pause_s)  # the other one goes on, or the daemon does
    if victims != "writers":
        mounted_pool.kill9()
    for writer in writers:
        writer.wait(20)
    expected = Expected()
    for number in range(2):
        expected.read((records / str(number)).read_text())
    if victims == "writers":
        check(mounted_pool, expected, victims)
        mounted_pool.umount()
    mounted_pool.assert_clean()
    mounted_pool.mount()
    check(mounted_pool, expected, victims)


def check(mounted_pool: Any, expected: Expected, victims: Victims) -> None:
    top = mounted_pool.path
    if victims == "writers":  # the kernel lets go of files in the background
        deadline = time.monotonic() + 10
        while mounted_pool.stats()["open_for_write"] != "0":
            assert time.monotonic() < deadline
            time.sleep(0.01)
    for name in expected.published:
        assert (top / name).read_bytes() == content(name), f"{name} was published"
    for name in expected.closed:
        assert (top / f"{name}.tmp").read_bytes() == content(name), f"{name}.tmp was closed"
    for directory, _, names in os.walk(top):
        for name in names:
            path = Path(directory) / name
            relative = str(path.relative_to(top))
            data = path.read_bytes()
            if os.getxattr(path, "user.beluga.state") == b"abandoned":
                assert victims != "daemon"
                assert name.endswith(".tmp")
                assert content(relative.removesuffix(".tmp")).startswith(data)
            elif name.endswith(".tmp"):
                # Closed, and not renamed yet: whole. Not closed, and the daemon is gone: gone.
                assert data == content(relative.removesuffix(".tmp"))
            elif name == "log":
                assert data.replace(b"line\n", b"") == b""
            else:
                assert data == content(relative)
                assert relative in expected.published | expected.unsure


def used(mounted_pool: Any) -> tuple[int, int]:
    """(granules, inodes) in use; quarantine is given back within moments, and so is what the
    kernel has open yet: it tells of a close in the background."""
    deadline = time.monotonic() + 5
    while True:
        stats = mounted_pool.stats()
        waiting = sum(int(stats[key]) for key in ("quarantined_granules", "open_files", "norphans"))
        if not waiting or time.monotonic() > deadline:
            used = int(stats["used_granules"]) + int(stats["quarantined_granules"])
            return used, int(stats["inodes_used"])
        time.sleep(0.05)


def rounds(
    mounted_pool: Any, records: Path, count: int, longest_s: float, victims: Sequence[Victims]
) -> None:
    fresh = used(mounted_pool)
    rng = random.Random(count)
    for seed in range(count):
        run_s, pause_s = rng.uniform(0.05, longest_s), rng.choice([0, rng.uniform(0, 0.05)])
        victim = victims[seed] if count == len(victims) else rng.choice(victims)
        crash_round(mounted_pool, records, seed, run_s, victim, pause_s)
        for name in os.listdir(mounted_pool.path):
            subprocess.run(["rm", "-r", str(mounted_pool.path / name)], check=True, timeout=60)
        assert used(mounted_pool) == fresh, f"round {seed}, kill of {victim}, leaked"
    mounted_pool.umount()


@pytest.mark.parametrize("unmounted_pool", [256 * MIB], indirect=True)
def test_a_few_rounds(mounted_pool: Any, tmp_path: Path) -> None:
    rounds(mounted_pool, tmp_path, 5, 0.6, ["daemon", "writers", "both", "both", "daemon"])


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("unmounted_pool", [256 * MIB], indirect=True)
def test_fifty_rounds(mounted_pool: Any, tmp_path: Path) -> None:
    rounds(mounted_pool, tmp_path, 50, 1.5, ["daemon", "writers", "both"])


@pytest.mark.full_size
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("unmounted_pool", [256 * MIB], indirect=True)
def test_three_hundred_rounds(mounted_pool: Any, tmp_path: Path) -> None:
    rounds(mounted_pool, tmp_path, 300, 1.5, ["daemon", "writers", "both"])


@pytest.mark.parametrize("unmounted_pool", [256 * MIB], indirect=True)
def test_killed_while_detaching_and_attaching(
    mounted_pool: Any, make_pool: Callable[..., Path]
) -> None:
    """The daemon is killed at a random moment of its own beginning or end."""
    rng = random.Random(1)
    for number in range(6):
        for name in range(10):
            (mounted_pool.path / f"f{number}-{name}").write_bytes(b"x" * 10_000)
        subprocess.run(["umount", str(mounted_pool.path)], check=True, timeout=20)
        time.sleep(rng.uniform(0, 0.01))
        mounted_pool.kill9_if_running()
        mounted_pool.assert_clean()
        mounted_pool.mount()
        assert len(os.listdir(mounted_pool.path)) == 10 * (number + 1)

"""Many processes read and store by the library at once, over a full pool, and are killed at
random, as is the daemon: no wrong byte, nothing leaked, fsck finds nothing."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from crew import (
    CRASHED,
    EXISTED,
    MISSED,
    NUMBERS,
    READ,
    STORED,
    WRONG,
    Counts,
    key,
    words_of,
)

import belugafs

pytestmark = pytest.mark.flat_pool

CREW = Path(__file__).with_name("crew.py")


class Crew:
    """The processes of ``crew.py``."""

    def __init__(self, mounted: Any, directory: Path) -> None:
        counts = directory / "counts"
        counts.write_bytes(bytes(64))
        self.counts = Counts(str(counts))
        self._errors = directory / "errors"
        self._process = subprocess.Popen(
            [sys.executable, str(CREW), str(mounted.path), str(counts)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors.open("w"),
            text=True,
        )
        self.pids: dict[str, list[int]] = {"reader": [], "writer": []}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self, kind: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(kind + "\n")
        self._process.stdin.flush()
        self.pids[kind].append(int(self._process.stdout.readline()))

    def kill(self, kind: str, rng: random.Random) -> None:
        pids = self.pids[kind]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids.pop(rng.randrange(len(pids))), signal.SIGKILL)

    def stop(self) -> None:
        """Kill all of them; whoever has had something to complain about is heard."""
        for pids in self.pids.values():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            pids.clear()
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.communicate(timeout=10)

    def assert_well(self) -> None:
        text = self._errors.read_text()
        assert self.counts[WRONG] == 0, text
        assert self.counts[CRASHED] == 0, text


@pytest.fixture
def mounted(unmounted_pool: Any) -> Any:
    unmounted_pool.mount()
    with belugafs.connect(unmounted_pool.path) as pool:
        pool.namespace("crew", create=True)
    return unmounted_pool


@pytest.fixture
def crew(mounted: Any, tmp_path: Path) -> Iterator[Crew]:
    with Crew(mounted, tmp_path) as crew:
        yield crew


def assert_nothing_is_left(mounted: Any) -> None:
    """Of processes that are dead: no reader, no reservation, no extent that waits for them."""
    for name in ("readers", "rings", "reservations", "reserved_granules", "reader_granules"):
        mounted.await_stat(name, 0)
    mounted.await_stat("quarantined_granules", 0)
    # What is in use is what can be seen.
    mounted.await_stat("norphans", 0)
    granules = 0
    with belugafs.connect(mounted.path) as pool:
        ns = pool.namespace("crew")
        keys = [key(number) for number in range(NUMBERS)]
        with ns.read(keys) as blocks:
            for number, block in enumerate(blocks):
                if block.present:
                    granules += -(-block.size_bytes // 4096)
                    assert block.view == memoryview(words_of(number)).cast("B")
    assert int(mounted.stats()["used_granules"]) == granules


@pytest.mark.parametrize(
    "seconds",
    [4, pytest.param(60, marks=[pytest.mark.full_size, pytest.mark.timeout(200)])],
)
def test_eight_readers_and_four_writers_over_a_full_pool(
    mounted: Any, crew: Crew, seconds: int
) -> None:
    for _ in range(8):
        crew.start("reader")
    for _ in range(4):
        crew.start("writer")
    deadline = time.monotonic() + seconds
    most = deadline + 60
    while time.monotonic() < deadline or (
        time.monotonic() < most and int(mounted.stats()["evicted_blocks"]) < 20
    ):
        time.sleep(0.2)
        crew.assert_well()
    evicted = int(mounted.stats()["evicted_blocks"])
    crew.stop()
    crew.assert_well()
    counts = crew.counts
    print(
        f"{counts[READ]} blocks read, {counts[MISSED]} missed, {counts[STORED]} stored, "
        f"{counts[EXISTED]} there already, {evicted} evicted in {seconds} s"
    )
    assert evicted >= 20
    assert min(counts[READ], counts[MISSED], counts[STORED]) > 50
    assert_nothing_is_left(mounted)


def umount_between_connects(mounted: Any, limit_s: float = 20) -> None:
    """Who connects has a file of the mount open for a moment, and that keeps it busy."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            return mounted.umount()
        except AssertionError as error:
            if "busy" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(8, marks=pytest.mark.timeout(180)),
        pytest.param(500, marks=[pytest.mark.full_size, pytest.mark.timeout(3600)]),
    ],
)
def test_readers_writers_and_the_daemon_killed_at_random(
    mounted: Any, crew: Crew, rounds: int
) -> None:
    rng = random.Random(rounds)
    victims = {"reader": 0, "writer": 0, "daemon": 0}
    for kind in ("reader", "writer", "writer", "reader"):
        crew.start(kind)
    for turn in range(rounds):
        time.sleep(rng.random() * 0.4)
        victim = ("reader", "writer", "daemon")[turn % 3 if turn < 6 else rng.randrange(3)]
        victims[victim] += 1
        if victim == "daemon":
            mounted.kill9()
            if rng.random() < 0.3:
                # Somebody who dies while nobody is there to notice.
                kind = rng.choice(["reader", "writer"])
                crew.kill(kind, rng)
                mounted.mount()
                crew.start(kind)
            else:
                mounted.mount()
        else:
            crew.kill(victim, rng)
            crew.start(victim)
        crew.assert_well()
        if turn % 50 == 49:
            # With readers and half-filled reservations: in order, too.
            umount_between_connects(mounted)
            mounted.mount()
    deadline = time.monotonic() + 60  # on a slow machine hardly anything may have been done so far
    while min(crew.counts[STORED], crew.counts[READ]) < 20 and time.monotonic() < deadline:
        time.sleep(0.1)
    crew.stop()
    crew.assert_well()
    print(f"killed: {victims}; {crew.counts[READ]} blocks read, {crew.counts[STORED]} stored")
    assert crew.counts[STORED] >= 20
    assert crew.counts[READ] >= 20
    assert_nothing_is_left(mounted)
    mounted.umount()
    mounted.assert_clean()

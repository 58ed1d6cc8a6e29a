"""Rows: the same work in several places, measured in turn, round after round."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

LIBRARY = "library"
_SAMPLE_S = 0.02
_RUNS_MAX = 50
GB = 1e9


@dataclass
class Work:
    """What is timed in one place. ``before`` and ``after`` stand around each run and aren't timed;
    what ``run`` returns is given to ``after``, and is alive until then."""

    run: Callable[[], Any]
    before: Callable[[], Any] | None = None
    after: Callable[[Any], Any] | None = None
    cpu_s: Callable[[], float] | None = None
    """Processor time of other processes that do some of it, so far."""
    runs_max: int = _RUNS_MAX
    count: int | None = None
    """Operations of one run, where it does fewer than the row says."""
    tells: bool = False
    """``run`` returns what is to be counted, in seconds, since not all of it is."""


@dataclass
class Measured:
    """A place's part of a row: a figure for each round."""

    seconds: list[float] = field(default_factory=list)
    """Of as many operations as the row has."""
    cpu_seconds: list[float] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)


@dataclass
class Row:
    """``count`` operations that move ``size_bytes`` in all; 0: none. ``limit`` names the place
    that bounds the speed (a memcpy, a hash, itself at another time)."""

    name: str
    text: str
    count: int
    size_bytes: int
    works: dict[str, Work]
    limit: str = ""
    ratio_goal: float | None = None
    """Of the speed of ``limit``, at least."""
    time_goal_s: float | None = None
    """Of one run, at most."""
    rate_goal: float | None = None
    """Operations a second, at least."""
    places: dict[str, Measured] = field(default_factory=dict)

    def ratio(self, other: str) -> float | None:
        """The library's speed over another place's: the median of the rounds' ratios."""
        if other not in self.places or LIBRARY not in self.places or other == LIBRARY:
            return None
        pairs = zip(self.places[other].seconds, self.places[LIBRARY].seconds, strict=False)
        ratios = [theirs / ours for theirs, ours in pairs if ours > 0]
        return statistics.median(ratios) if ratios else None

    def cpu_s_per_gb(self, place: str) -> float | None:
        """Processor seconds for 10^9 bytes; None where no bytes are moved."""
        if not self.size_bytes or place not in self.places:
            return None
        return statistics.mean(self.places[place].cpu_seconds) / self.size_bytes * GB

    def cpu_us_per_operation(self, place: str) -> float:
        """Processor time of one key or block."""
        return statistics.mean(self.places[place].cpu_seconds) / self.count * 1e6

    @property
    def met(self) -> bool | None:
        """Whether all goals are; None without any."""
        if LIBRARY not in self.places:
            return None
        took_s = self.places[LIBRARY].median_s
        found = []
        if self.ratio_goal is not None:
            ratio = self.ratio(self.limit)
            found.append(ratio is not None and ratio >= self.ratio_goal)
        if self.time_goal_s is not None:
            found.append(took_s <= self.time_goal_s)
        if self.rate_goal is not None:
            found.append(self.count / took_s >= self.rate_goal)
        return all(found) if found else None

    @property
    def goal(self) -> str:
        """In words; empty without any."""
        texts = []
        if self.ratio_goal is not None:
            texts.append(f">= {self.ratio_goal:g} of {self.limit}")
        if self.time_goal_s is not None:
            texts.append(f"< {self.time_goal_s * 1e6:g} us")
        if self.rate_goal is not None:
            texts.append(f">= {self.rate_goal / 1e6:g} M/s")
        return ", ".join(texts)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "text": self.text,
            "count": self.count,
            "bytes": self.size_bytes,
            "limit": self.limit or None,
            "goal": self.goal or None,
            "met": self.met,
            "ratios": {place: self.ratio(place) for place in self.places if place != LIBRARY},
            "places": {
                place: {
                    "median_us": measured.median_s * 1e6,
                    "operations_per_s": self.count / measured.median_s,
                    "gb_per_s": self.size_bytes / measured.median_s / GB
                    if self.size_bytes
                    else None,
                    "cpu_s_per_gb": self.cpu_s_per_gb(place),
                    "cpu_us_per_operation": self.cpu_us_per_operation(place),
                    "rounds_us": [seconds * 1e6 for seconds in measured.seconds],
                }
                for place, measured in self.places.items()
            },
        }


def measure(
    rows: Sequence[Row], *, rounds: int, budget_s: float, step: Callable[[str], None]
) -> int:
    """All rows in each of at most ``rounds`` rounds; none begins that wouldn't end within
    ``budget_s``, beside the first. How many there were."""
    started = time.monotonic()
    for done in range(1, rounds + 1):
        for row in rows:
            step(f"{row.name}, round {done}")
            for place, work in row.works.items():
                scale = row.count / (work.count or row.count)
                seconds, cpu_s = _sample(work)
                measured = row.places.setdefault(place, Measured())
                measured.seconds.append(seconds * scale)
                measured.cpu_seconds.append(cpu_s * scale)
        if (time.monotonic() - started) * (done + 1) / done > budget_s:
            return done
    return rounds


@contextmanager
def _no_collection() -> Iterator[None]:
    """The collector would look at thousands of objects that others have made."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _sample(work: Work) -> tuple[float, float]:
    """Seconds of a run (the median of as many as there is time for), and processor seconds."""
    times: list[float] = []
    spent_s, cpu_s = 0.0, 0.0
    with _no_collection():
        while not times or (spent_s < _SAMPLE_S and len(times) < work.runs_max):
            if work.before is not None:
                work.before()
            others_s = work.cpu_s() if work.cpu_s is not None else 0.0
            cpu, start = time.process_time(), time.perf_counter()
            result = work.run()
            took_s = result if work.tells else time.perf_counter() - start
            cpu_s += time.process_time() - cpu
            if work.cpu_s is not None:
                cpu_s += work.cpu_s() - others_s
            if work.after is not None:
                work.after(result)
            del result
            times.append(took_s)
            spent_s += took_s
    return statistics.median(times), cpu_s / len(times)

"""Own kernel, ``cudaMemcpyAsync`` or ``cudaMemcpyBatchAsync``: which for which sizes.

The copy engines (cudaMemcpy) take no processor of the GPU and reach the link's full rate, but each
copy costs its start. The own kernel starts once for a list of any length, but occupies processors
that the model could use. So: large pieces to the copy engines, many small ones to the kernel.

:data:`DEFAULT` is reasoned, not measured: no GPU was at hand (docs/gpu.md). :func:`measure` finds a
machine's own figures.
"""

from __future__ import annotations

import enum
import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple, Self


class Method(enum.Enum):
    KERNEL = "kernel"
    MEMCPY = "memcpy"
    BATCH = "batch"


NEVER = 1 << 62
"""A threshold that no size reaches."""


@dataclass(frozen=True)
class Thresholds:
    """Of one direction. ``one_min_bytes``: a single piece from that size on by cudaMemcpyAsync.
    ``each_min_bytes``: several pieces of that mean size by one cudaMemcpyAsync each;
    ``batch_min_bytes``: by cudaMemcpyBatchAsync, where there is one. All else by the own kernel."""

    one_min_bytes: int
    each_min_bytes: int
    batch_min_bytes: int

    def choose(self, npieces: int, nbytes: int, *, batch: bool) -> Method:
        """For ``npieces`` pieces of together ``nbytes``; ``batch``: whether that call can be
        used."""
        if npieces <= 1:
            return Method.MEMCPY if nbytes >= self.one_min_bytes else Method.KERNEL
        mean_bytes = nbytes // npieces
        if batch and mean_bytes >= self.batch_min_bytes:
            return Method.BATCH
        return Method.MEMCPY if mean_bytes >= self.each_min_bytes else Method.KERNEL


@dataclass(frozen=True)
class Choice:
    """For both directions, and where the figures are from."""

    to_pool: Thresholds
    from_pool: Thresholds
    source: str

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """ValueError: not written by :meth:`to_json`."""
        try:
            data = json.loads(text)
            sides = {name: Thresholds(**data[name]) for name in ("to_pool", "from_pool")}
            return cls(**sides, source=str(data["source"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"no thresholds: {error}") from error


_REASONED = Thresholds(
    # Below this a cudaMemcpy from uncacheable memory takes 1.2 ms, as the paper measured.
    one_min_bytes=24 << 10,
    # About 2 us to start a copy: 5 % of 2 MiB at 50 GB/s.
    each_min_bytes=2 << 20,
    # A batch starts each of its copies for about a quarter of that.
    batch_min_bytes=512 << 10,
)
DEFAULT = Choice(_REASONED, _REASONED, "reasoned, not measured")


class Sample(NamedTuple):
    method: Method
    npieces: int
    piece_bytes: int
    seconds: float


def fit(samples: Iterable[Sample]) -> Thresholds:
    """Thresholds from measured times of one direction: the smallest size from which on a method
    was at least as fast as the others, at that size and at every larger one measured. Lists are
    judged at each size by the longest one measured. A method without samples is never taken, and
    the kernel is taken where nothing else was faster."""
    times: dict[tuple[bool, int], dict[Method, tuple[int, float]]] = {}
    for method, npieces, piece_bytes, seconds in samples:
        at = times.setdefault((npieces > 1, piece_bytes), {})
        if method not in at or at[method][0] <= npieces:
            at[method] = npieces, seconds

    def threshold(many: bool, method: Method, rivals: set[Method]) -> int:
        found = NEVER
        for size in sorted((s for m, s in times if m == many), reverse=True):
            here = {m: t for m, (_, t) in times[many, size].items() if m in rivals or m is method}
            if method not in here or here[method] > min(here.values()):
                break
            found = size
        return found

    others = {Method.KERNEL, Method.MEMCPY}
    return Thresholds(
        threshold(False, Method.MEMCPY, {Method.KERNEL}),
        threshold(True, Method.MEMCPY, {Method.KERNEL}),
        threshold(True, Method.BATCH, others),
    )


SIZES = tuple(4096 << n for n in range(0, 13, 2))
COUNTS = (1, 128)


def measure(
    run: Callable[[Method, bool, int, int], float],
    *,
    methods: Sequence[Method],
    source: str,
    sizes: Sequence[int] = SIZES,
    counts: Sequence[int] = COUNTS,
    rounds: int = 5,
) -> Choice:
    """Time all methods in turn, in rounds, and fit. ``run(method, to_pool, npieces, piece_bytes)``
    does one transfer and returns its seconds (``CudaMover.time_one``); the first of each is not
    counted.
    ``source`` names the machine: card and link."""
    sides = []
    for to_pool in (True, False):
        samples = []
        for npieces in counts:
            for size in sizes:
                times: dict[Method, list[float]] = {method: [] for method in methods}
                for number in range(rounds + 1):
                    for method in methods:
                        seconds = run(method, to_pool, npieces, size)
                        if number:
                            times[method].append(seconds)
                samples += [
                    Sample(method, npieces, size, statistics.median(found))
                    for method, found in times.items()
                ]
        sides.append(fit(samples))
    return Choice(sides[0], sides[1], source)

"""How fast the request ring is (docs/ring.md): ``python -m belugafs.ring_bench``.

A process of its own serves a ring with one thread, this one asks: one request at a time, both sides
polling; then many at a time. What is asked is a ping, so the figures are the ring's alone. On a
machine that has other work to do they say little: both sides need a processor for themselves.
"""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from dataclasses import dataclass

import click

from belugafs import _native

PAPER_ROUND_TRIP_US = 2.11
PAPER_REQUESTS_PER_S = 12.13e6
"""CXL-RPC of the Beluga paper (arXiv 2511.20172), through a CXL switch, one server thread."""

_SERVER = """
import os, sys
from belugafs import _native
ring, bell, alive, ready, stop = map(int, sys.argv[1:6])
server = _native.RingServer(None, spin_us=1e5)
server.add(ring, bell, alive)
os.write(ready, b"!")
os.close(ready)
os.read(stop, 1)
server.stop()
"""


@dataclass(frozen=True)
class Result:
    """Of one run. Times in microseconds."""

    calls: int
    median_us: float
    p99_us: float
    in_flight: int
    requests_per_s: float
    load: float
    """Processes that wanted a processor, of the last minute (load average)."""
    processors: int


def measure(calls: int = 200_000, many: int = 2_000_000, in_flight: int = 128) -> Result:
    """Ping a server process: ``calls`` one at a time, then ``many``, ``in_flight`` at a time.

    Raises OSError (ETIMEDOUT) where the server gets no processor for minutes.
    """
    client = _native.RingClient(slots=256 if in_flight > 128 else 128, spin_us=1e5)
    ring, bell, _ = client.fds()
    own = os.pidfd_open(os.getpid())
    said, ready = os.pipe()
    hold, stop = os.pipe()
    descriptors = (ring, bell, own, ready, hold)
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER, *map(str, descriptors)], pass_fds=descriptors
    )
    try:
        os.close(ready)
        if os.read(said, 1) != b"!":
            raise RuntimeError("the server process has not started")
        client.measure(min(calls, 10_000), 1, 0)
        each, _ = client.measure(calls, 1, 0)
        _, total_ns = client.measure(many, in_flight, 0)
    finally:
        for fd in (own, said, hold, stop):
            os.close(fd)
        client.close()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
    ns = sorted(array("I", each))
    return Result(
        calls=calls,
        median_us=ns[len(ns) // 2] / 1e3,
        p99_us=ns[len(ns) * 99 // 100] / 1e3,
        in_flight=in_flight,
        requests_per_s=many / total_ns * 1e9,
        load=os.getloadavg()[0],
        processors=len(os.sched_getaffinity(0)),
    )


def lines(result: Result) -> list[str]:
    """The result in words."""
    median, p99, rate = result.median_us, result.p99_us, result.requests_per_s / 1e6
    paper = PAPER_REQUESTS_PER_S / 1e6
    alone = f"round trip, both sides polling: median {median:.2f} us, 99 % within {p99:.2f} us"
    many = f"one service thread, {result.in_flight} requests in flight: {rate:.2f} M/s"
    out = [
        f"{alone}   (paper: {PAPER_ROUND_TRIP_US} us)",
        f"{many}   (paper: {paper:.2f} M/s)",
    ]
    # The two processes of this run count themselves.
    if result.processors < 2 or result.load > result.processors + 0.5:
        out.append(
            f"{result.processors} processors, load {result.load:.1f}: others were running, "
            "and polling needs a processor for each side. An indication, no result."
        )
    return out


@click.command()
@click.option("--calls", default=200_000, show_default=True, type=click.IntRange(1, 100_000_000))
@click.option("--many", default=2_000_000, show_default=True, type=click.IntRange(1, 100_000_000))
@click.option("--in-flight", default=128, show_default=True, type=click.IntRange(2, 256))
def main(calls: int, many: int, in_flight: int) -> None:
    """Measure round trip and throughput of a request ring between two processes."""
    for line in lines(measure(calls, many, in_flight)):
        click.echo(line)


if __name__ == "__main__":
    main()

"""Which way of copying for which sizes, from measured times."""

import pytest

from belugafs.kernels.choice import (
    DEFAULT,
    NEVER,
    Choice,
    Method,
    Sample,
    Thresholds,
    fit,
    measure,
)

KIB = 1 << 10


def test_what_is_chosen() -> None:
    sizes = Thresholds(one_min_bytes=100, each_min_bytes=1000, batch_min_bytes=500)

    def choose(npieces: int, piece_bytes: int, batch: bool = True) -> Method:
        return sizes.choose(npieces, npieces * piece_bytes, batch=batch)

    assert choose(1, 99) is Method.KERNEL
    assert choose(1, 100) is Method.MEMCPY
    assert choose(2, 499) is Method.KERNEL
    assert choose(2, 500) is Method.BATCH
    assert choose(2, 500, batch=False) is Method.KERNEL
    assert choose(2, 1000, batch=False) is Method.MEMCPY
    assert choose(0, 0) is Method.KERNEL


@pytest.mark.parametrize("side", [DEFAULT.to_pool, DEFAULT.from_pool])
def test_the_defaults_at_the_sizes_that_matter(side: Thresholds) -> None:
    """A 16-token block of a 64-layer model goes by the kernel, a whole block in one piece by
    copy."""
    assert side.choose(128, 128 * 20 * KIB, batch=True) is Method.KERNEL
    assert side.choose(1, 16 * KIB, batch=True) is Method.KERNEL
    assert side.choose(1, 2560 * KIB, batch=True) is Method.MEMCPY
    assert side.choose(938, 938 * 2560 * KIB, batch=True) is Method.BATCH
    assert side.choose(938, 938 * 2560 * KIB, batch=False) is Method.MEMCPY


def seconds(method: Method, npieces: int, piece_bytes: int) -> float:
    """A machine: starts cost 10 us a kernel, 2 us a copy, 0.5 us one of a batch (5 us the batch
    itself); the kernel gets 20 GB/s, the copy engine 40."""
    copied = npieces * piece_bytes
    return {
        Method.KERNEL: 10e-6 + copied / 20e9,
        Method.MEMCPY: npieces * 2e-6 + copied / 40e9,
        Method.BATCH: 5e-6 + npieces * 0.5e-6 + copied / 40e9,
    }[method]


def test_thresholds_are_those_of_the_machine() -> None:
    samples = [
        Sample(method, npieces, size, seconds(method, npieces, size))
        for method in Method
        for npieces in (1, 128)
        for size in (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB)
    ]
    found = fit(samples)
    assert found == Thresholds(4 * KIB, 256 * KIB, 64 * KIB)
    # Each choice is the fastest of the measured ones.
    for npieces in (1, 128):
        for size in (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB):
            chosen = found.choose(npieces, npieces * size, batch=True)
            rivals = [m for m in Method if npieces > 1 or m is not Method.BATCH]
            best = min(rivals, key=lambda m: seconds(m, npieces, size))
            assert chosen is best, (npieces, size)


def test_a_lucky_time_of_a_small_size_counts_for_nothing() -> None:
    samples = [Sample(Method.KERNEL, 1, size, 2.0) for size in (4 * KIB, 16 * KIB, 64 * KIB)] + [
        Sample(Method.MEMCPY, 1, 4 * KIB, 1.0),
        Sample(Method.MEMCPY, 1, 16 * KIB, 3.0),
        Sample(Method.MEMCPY, 1, 64 * KIB, 1.0),
    ]
    assert fit(samples) == Thresholds(64 * KIB, NEVER, NEVER)
    assert fit([]) == Thresholds(NEVER, NEVER, NEVER)


def test_measuring_goes_round_and_drops_the_first() -> None:
    calls = []

    def run(method: Method, to_pool: bool, npieces: int, size: int) -> float:
        calls.append((method, to_pool, npieces, size))
        first = calls.count(calls[-1]) == 1
        return 100.0 if first else seconds(method, npieces, size) / (1 if to_pool else 2)

    choice = measure(
        run, methods=list(Method), source="a card", sizes=(16 * KIB, 64 * KIB), rounds=3
    )
    assert choice.source == "a card"
    assert choice.to_pool == Thresholds(16 * KIB, NEVER, 64 * KIB)
    assert calls[:4] == [(m, True, 1, 16 * KIB) for m in (*Method, Method.KERNEL)]
    assert len(calls) == 2 * 2 * 2 * 4 * 3
    assert Choice.from_json(choice.to_json()) == choice


@pytest.mark.parametrize("text", ["{}", "[]", "nothing", '{"to_pool": {"a": 1}}'])
def test_a_file_that_holds_no_thresholds(text: str) -> None:
    with pytest.raises(ValueError):
        Choice.from_json(text)

"""Copies by the processor, against numpy and the xxhash package."""

import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import xxhash
from geometry import Case, cases, check_gather, check_scatter
from hypothesis import given, settings
from hypothesis import strategies as st

from belugafs.kernels import CpuMover, _copy

ISAS = _copy.isas()


@pytest.fixture(autouse=True)
def same_loops_afterwards() -> Iterator[None]:
    before = _copy.isa(), _copy.stream_min()
    yield
    _copy.set_isa(before[0])
    _copy.set_stream_min(before[1])


def sums_of(data: bytes, sum_bytes: int) -> list[int]:
    """As docs/format.md has them: XXH3-64, seed 0, 0 stored as 1."""
    starts = range(0, len(data), sum_bytes)
    return [xxhash.xxh3_64_intdigest(data[at : at + sum_bytes]) or 1 for at in starts]


movers = st.builds(
    CpuMover,
    threads=st.integers(0, 3),
    around_cache=st.sampled_from([None, True, False]),
    fresh=st.booleans(),
    sum_bytes=st.sampled_from([0, 64, 256, 4096]),
)


@settings(max_examples=70, deadline=None)
@given(cases(), movers, st.sampled_from(ISAS), st.sampled_from([0, 1 << 20]))
def test_gather_and_scatter(case: Case, mover: CpuMover, isa: str, stream_min: int) -> None:
    _copy.set_isa(isa)
    _copy.set_stream_min(stream_min)
    before = case.pool.copy()
    ticket = mover.gather_write(case.cache, case.pages, case.blocks)
    assert ticket.done
    check_gather(case, before)
    if mover.sum_bytes:
        want = [sums_of(case.block(n), mover.sum_bytes) for n in range(len(case.offsets))]
        assert ticket.sums.tolist() == want

    case.pool[:] = case.pool[::-1].copy()
    untouched = case.untouched()
    ticket = mover.scatter_read(case.cache, case.pages, case.blocks)
    check_scatter(case, untouched)
    if mover.sum_bytes:
        want = [sums_of(case.block(n), mover.sum_bytes) for n in range(len(case.offsets))]
        assert ticket.sums.tolist() == want


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 5000),
    st.integers(0, 130),
    st.integers(0, 130),
    st.sampled_from(ISAS),
    st.booleans(),
    st.booleans(),
)
def test_a_copy_at_any_alignment_writes_nothing_else(
    nbytes: int, to: int, start: int, isa: str, around_cache: bool, to_pool: bool
) -> None:
    _copy.set_isa(isa)
    source = np.random.default_rng(nbytes).integers(0, 256, nbytes + 130, np.uint8)
    target = np.full(nbytes + 260, 7, np.uint8)
    want = target.copy()
    want[to : to + nbytes] = source[start : start + nbytes]
    mover = CpuMover(around_cache=around_cache, sum_bytes=1024)
    sums = mover.copy(target[to : to + nbytes], source[start : start + nbytes], to_pool=to_pool)
    np.testing.assert_array_equal(target, want)
    assert sums.tolist() == sums_of(source[start : start + nbytes].tobytes(), 1024)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("nbytes", [0, 1, 240, 241, 256 << 10, (256 << 10) + 1, 5 << 19])
def test_the_checksum_is_the_pools(isa: str, nbytes: int) -> None:
    """All instruction sets, at lengths where XXH3 changes its way; beside the copy and alone."""
    _copy.set_isa(isa)
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8).tobytes()
    unit = 256 << 10
    alone = np.zeros(-(-nbytes // unit), np.uint64)
    _copy.sum_chunks(data, unit, alone)
    beside = CpuMover(sum_bytes=unit).copy(bytearray(nbytes), data, to_pool=True)
    assert alone.tolist() == beside.tolist() == sums_of(data, unit)


def test_many_threads_share_one_transfer() -> None:
    """More parts than threads, and calls from several threads at once."""
    source = np.random.default_rng(1).integers(0, 256, 5 << 20, np.uint8)
    targets = [np.zeros_like(source) for _ in range(3)]

    def copy(target) -> None:
        for _ in range(8):
            target[:] = 0
            CpuMover(threads=4).copy(target, source, to_pool=True)
            assert (target == source).all()

    threads = [threading.Thread(target=copy, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((target == source).all() for target in targets)


FORKED = """
import os
from belugafs.kernels import CpuMover
source = os.urandom(3 << 20)
def copy():
    target = bytearray(len(source))
    CpuMover(threads=3).copy(target, source, to_pool=True)
    assert target == source
copy()
child = os.fork()
copy()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_child_of_fork_has_threads_of_its_own() -> None:
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=60)


LOST = """
import mmap, os, sys
from belugafs.kernels import CpuMover, _copy
path = sys.argv[1]
fd = os.open(path, os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 4 << 20)
pool = mmap.mmap(fd, 4 << 20)
os.ftruncate(fd, 1 << 20)
_copy.guard_install()
for threads in (1, 3):
    for to_pool in (True, False):
        buffer = bytearray(4 << 20)
        pair = (pool, buffer) if to_pool else (buffer, pool)
        try:
            CpuMover(threads=threads).copy(*pair, to_pool=to_pool)
        except OSError as error:
            print(error.errno, error.strerror)
CpuMover(threads=3).copy(memoryview(pool)[: 1 << 20], bytes(1 << 20), to_pool=True)
print("alive")
pool[3 << 20]
"""


def test_a_page_that_is_gone_is_an_error_and_other_faults_still_end_the_process(pool_dir) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOST, str(pool_dir / "lost")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 5, done.stderr
    assert all(line.startswith("5 memory failed during a copy") for line in lines[:4])
    assert lines[4] == "alive"
    assert done.returncode == -7  # SIGBUS of a read that isn't a copy


def test_tables_that_do_not_fit() -> None:
    pool, engine = np.zeros(256, np.uint8), np.zeros(256, np.uint8)
    here, there = pool.ctypes.data, engine.ctypes.data

    def move(blocks, pieces, **options) -> None:
        _copy.move(np.array(blocks, np.uint64), np.array(pieces, np.uint64), **options)

    block = [[here, 256, 2]]
    whole = [[there, here, 128], [there + 128, here + 128, 128]]
    move(block, whole)
    with pytest.raises(ValueError, match="without gaps"):
        move(block, [whole[0], [there, here + 129, 128]])
    with pytest.raises(ValueError, match="without gaps"):
        move(block, [whole[0], [there, here + 128, 127]])
    with pytest.raises(ValueError, match="block 0: not enough pieces"):
        move(block, whole[:1])
    with pytest.raises(ValueError, match="block 0: not enough sums"):
        move(block, whole, sum_bytes=64, sums=np.zeros(3, np.uint64))
    with pytest.raises(ValueError, match="multiple of 64"):
        move(block, whole, sum_bytes=100, sums=np.zeros(9, np.uint64))
    with pytest.raises(ValueError, match="rows of 3 words of 8 bytes"):
        move([[here, 256]], whole)
    with pytest.raises(ValueError, match="at most one"):
        _copy.copy(pool, engine, flags=_copy.STREAM | _copy.CACHED)
    with pytest.raises(ValueError, match="255 bytes don't fit 256"):
        _copy.copy(pool, engine[1:])
    with pytest.raises(ValueError, match="one word for each"):
        _copy.sum_chunks(engine, 64, np.zeros(3, np.uint64))
    with pytest.raises(ValueError, match="no such loops"):
        _copy.set_isa("avx1024")
    with pytest.raises(ValueError, match="takes no stream"):
        CpuMover().gather_write(None, [], None, stream=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="multiple of 64"):
        CpuMover(sum_bytes=100)


def test_the_best_loops_are_taken_and_any_can_be() -> None:
    assert ISAS[-1] == "portable"
    assert _copy.isa() == ISAS[0]
    for isa in ISAS:
        _copy.set_isa(isa)
        assert _copy.isa() == isa
    with open("/proc/cpuinfo") as file:
        flags = next((line for line in file if line.startswith("flags")), "").split()
    assert ("avx2" in ISAS) == ("avx2" in flags)
    assert ("avx512" in ISAS) == ("avx512f" in flags)

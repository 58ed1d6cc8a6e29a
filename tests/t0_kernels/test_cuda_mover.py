"""Transfers by the GPU, up to the GPU: launches, streams, lifetimes. Kernels run on the CPU."""

from types import SimpleNamespace

import numpy as np
import pytest
from fake_cuda import FakeCuda, Stream
from geometry import Case, cases, check_gather, check_scatter
from hypothesis import given, settings
from hypothesis import strategies as st

from belugafs.kernels import cuda
from belugafs.kernels.choice import NEVER, Choice, Method, Thresholds
from belugafs.kernels.cuda import CudaMover, kernel_source
from belugafs.kernels.layout import Blocks, Layout, PagedCache
from belugafs.kernels.registration import PoolRegistration, RegistrationError

PAGE = 4096

BY = {
    Method.KERNEL: Thresholds(NEVER, NEVER, NEVER),
    Method.MEMCPY: Thresholds(0, 0, NEVER),
    Method.BATCH: Thresholds(NEVER, NEVER, 0),
}


def mover_for(pool: np.ndarray, method: Method, fake: FakeCuda, **options) -> CudaMover:
    """The mapping that is registered begins on the page that holds the array's start."""
    start = pool.ctypes.data // PAGE * PAGE
    end = pool.ctypes.data + pool.nbytes
    registration = PoolRegistration(fake.runtime, start, end - start, chunk_bytes=PAGE, **options)
    choice = Choice(BY[method], BY[method], "test")
    return CudaMover(registration, fake.runtime, choice=choice, cupy=fake.cupy)


@settings(max_examples=50, deadline=None)
@given(cases(), st.sampled_from(Method), st.integers(1, 3))
def test_gather_and_scatter(case: Case, method: Method, ctas: int) -> None:
    """All three ways; with chunks of one page, pieces cross from one into the next."""
    fake = FakeCuda()
    mover = mover_for(case.pool, method, fake)
    mover._ctas = ctas
    stream = Stream(fake)
    before = case.pool.copy()
    ticket = mover.gather_write(case.cache, case.pages, case.blocks, stream=stream)
    # A single piece isn't a list: no batch.
    assert ticket.method is method or method is Method.BATCH
    assert not ticket.done
    np.testing.assert_array_equal(case.pool, before)
    ticket.wait()
    assert ticket.done
    check_gather(case, before)

    case.pool[:] = case.pool[::-1].copy()
    untouched = case.untouched()
    mover.scatter_read(case.cache, case.pages, case.blocks, stream=stream)
    mover.close()
    check_scatter(case, untouched)
    low = case.pool.ctypes.data
    for dst, src, nbytes in fake.copies:
        at = dst if low <= dst < low + case.pool.nbytes else src
        assert at // PAGE == (at + nbytes - 1) // PAGE, "crosses two registrations"


@settings(max_examples=30, deadline=None)
@given(cases(), st.sampled_from(Method))
def test_a_list_of_any_pieces(case: Case, method: Method) -> None:
    fake = FakeCuda()
    mover = mover_for(case.pool, Method.KERNEL, fake)
    stream = Stream(fake)
    before = case.pool.copy()
    transfer = case.cache.transfer(case.pages, case.blocks)
    mover.run(transfer, to_pool=True, stream=stream, method=method).wait()
    check_gather(case, before)
    case.pool[:] = case.pool[::-1].copy()
    untouched = case.untouched()
    mover.run(transfer, to_pool=False, stream=stream, method=method).wait()
    check_scatter(case, untouched)


def small(npages: int = 8) -> tuple[PagedCache, np.ndarray, Blocks]:
    layout = Layout(2, 2, 2, 16, 4, 2)
    tensors = [np.random.default_rng(1).random((2, npages, 4, 2, 16)).astype("f2") for _ in "12"]
    cache = PagedCache.from_tensors(layout, tensors, "kpthd")
    cache.tensors = tensors  # type: ignore[attr-defined]
    pool = np.zeros(4 * layout.block_bytes, np.uint8)
    return cache, pool, Blocks.of(pool.reshape(4, -1))


def test_dropped_tickets_keep_their_tables_until_the_stream_has_passed() -> None:
    """And no longer: nothing is held for a transfer that is over when the next one comes."""
    cache, pool, blocks = small()
    fake = FakeCuda()
    mover = mover_for(pool, Method.KERNEL, fake)
    stream = Stream(fake)
    for _ in range(20):
        mover.gather_write(cache, [1, 2, 3, 4], blocks, stream=stream)
    assert len(fake.live) == 21  # the parts of the cache are one
    stream.synchronize()
    mover.gather_write(cache, [1, 2, 3, 4], blocks, stream=stream).wait()
    assert len(fake.live) == 2
    mover.close()
    assert not fake.live


def test_work_goes_into_the_stream_that_was_given() -> None:
    """CuPy's, torch's, a bare address; without one, CuPy's current stream."""
    cache, pool, blocks = small()
    fake = FakeCuda()
    mover = mover_for(pool, Method.KERNEL, fake)
    stream = Stream(fake)
    torchs = SimpleNamespace(cuda_stream=stream.ptr)
    for given_stream in (stream, torchs, stream.ptr):
        before = len(stream.queue)
        mover.gather_write(cache, [0, 1, 2, 3], blocks, stream=given_stream)
        assert len(stream.queue) == before + 2  # kernel, event
        assert fake.current == [fake.streams[0]]
    with stream:
        mover.gather_write(cache, [0, 1, 2, 3], blocks)
    assert len(stream.queue) == 8
    mover.gather_write(cache, [0, 1, 2, 3], blocks)
    assert len(fake.streams[0].queue) == 2
    mover.close()


def test_no_batch_where_cuda_has_none() -> None:
    cache, pool, blocks = small()
    for fake, stream_number in ((FakeCuda(batch=False), None), (FakeCuda(), 0)):
        mover = mover_for(pool, Method.BATCH, fake)
        stream = fake.streams[0] if stream_number == 0 else Stream(fake)
        assert Method.BATCH not in mover.methods(stream)
        ticket = mover.gather_write(cache, [0, 1, 2, 3], blocks, stream=stream)
        assert ticket.method is Method.KERNEL
        mover.close()


def test_an_empty_transfer_is_done_by_nobody() -> None:
    cache, pool, _ = small()
    fake = FakeCuda()
    mover = mover_for(pool, Method.KERNEL, fake)
    none = Blocks(np.zeros(0, np.uint64), cache.layout.block_bytes)
    for method in Method:
        transfer = cache.transfer([], none)
        mover.run(transfer, to_pool=True, method=method, stream=Stream(fake)).wait()
    mover.gather_write(cache, [], none).wait()
    assert not fake.registered
    assert not [name for name in fake.launched if name.startswith("bfk")]


def test_blocks_outside_of_the_mapping_are_refused() -> None:
    cache, pool, blocks = small()
    mover = mover_for(pool[:64], Method.KERNEL, FakeCuda())
    with pytest.raises(ValueError, match="outside of the mapping"):
        mover.gather_write(cache, [0, 1, 2, 3], blocks)


def test_a_gpu_with_other_addresses_is_refused() -> None:
    cache, pool, blocks = small()
    fake = FakeCuda(pointer_shift=1 << 40)
    with pytest.raises(RegistrationError, match="unified addressing"):
        mover_for(pool, Method.KERNEL, fake).gather_write(cache, [0, 1, 2, 3], blocks)
    assert not fake.registered


def test_a_time_is_of_a_transfer_that_is_done() -> None:
    cache, pool, blocks = small()
    fake = FakeCuda()
    mover = mover_for(pool, Method.KERNEL, fake)
    stream = Stream(fake)
    transfer = cache.transfer([0, 1, 2, 3], blocks)
    for method in Method:
        assert mover.time_one(transfer, method, True, stream) > 0
        assert not stream.queue


def test_the_source_is_one_piece() -> None:
    source = kernel_source()
    assert "#include" not in source
    for name in ("gather_write", "scatter_read"):
        for kind in ("pieces", "paged"):
            assert f"bfk_{name}_{kind}" in source
    assert cuda.TILE_BYTES % 16 == 0

"""Transfers on a real GPU. Skipped where there is none; so far that was everywhere."""

from __future__ import annotations

import mmap
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from geometry import Case, cases, check_gather, check_scatter
from hypothesis import given, settings
from hypothesis import strategies as st

from belugafs.kernels.choice import NEVER, Choice, Method, Thresholds
from belugafs.kernels.cuda import CudaMover
from belugafs.kernels.cudart import Cudart
from belugafs.kernels.layout import Blocks, Layout, PagedCache
from belugafs.kernels.registration import PoolRegistration, RegistrationError

BY = {
    Method.KERNEL: Thresholds(NEVER, NEVER, NEVER),
    Method.MEMCPY: Thresholds(0, 0, NEVER),
    Method.BATCH: Thresholds(NEVER, NEVER, 0),
}


class OnGpu:
    """The engine's memory of a case, copied to the GPU; the same views of it."""

    def __init__(self, cupy: Any, case: Case) -> None:
        self.case = case
        self.arenas = [cupy.asarray(arena) for arena in case.arenas]
        tensors = []
        for arena, here, tensor in zip(case.arenas, self.arenas, case.tensors, strict=True):
            offset = tensor.ctypes.data - arena.ctypes.data
            face = {
                "typestr": f"|V{tensor.itemsize}",
                "shape": tensor.shape,
                "strides": tensor.strides,
                "data": (int(here.data.ptr) + offset, False),
                "version": 3,
            }
            tensors.append(SimpleNamespace(__cuda_array_interface__=face))
        self.cache = PagedCache.from_tensors(case.layout, tensors, case.axes)

    def back(self) -> None:
        for arena, here in zip(self.case.arenas, self.arenas, strict=True):
            arena[:] = here.get()


@settings(max_examples=150, deadline=None)
@given(case=cases(), method=st.sampled_from(Method))
def test_any_geometry(gpu: tuple[Any, Cudart], case: Case, method: Method) -> None:
    cupy, runtime = gpu
    pages = -(-case.pool.nbytes // mmap.PAGESIZE)
    mapping = mmap.mmap(-1, pages * mmap.PAGESIZE, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    pool = np.frombuffer(mapping, np.uint8)[: case.pool.nbytes]
    pool[:] = case.pool
    case.pool = pool
    before = pool.copy()
    there = OnGpu(cupy, case)
    stream = cupy.cuda.Stream(non_blocking=True)
    # Chunks of a page: every way of cutting pieces.
    registration = PoolRegistration(
        runtime, pool.ctypes.data, len(mapping), chunk_bytes=mmap.PAGESIZE
    )
    with registration:
        choice = Choice(BY[method], BY[method], "test")
        mover = CudaMover(registration, runtime, choice=choice, cupy=cupy)
        mover.gather_write(there.cache, case.pages, case.blocks, stream=stream).wait()
        check_gather(case, before)
        pool[:] = pool[::-1].copy()
        untouched = case.untouched()
        mover.scatter_read(there.cache, case.pages, case.blocks, stream=stream).wait()
        there.back()
        check_scatter(case, untouched)
        mover.close()


def test_a_transfer_comes_after_what_was_in_its_stream(gpu: tuple[Any, Cudart]) -> None:
    """The engine fills its pages and says nothing; the gather of the same stream sees it."""
    cupy, runtime = gpu
    mapping = mmap.mmap(-1, 64 << 20, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    pool = np.frombuffer(mapping, np.uint8)
    layout = Layout(16, 2, 8, 128, 16, 2)
    tensor = cupy.zeros((16, 2, 64, 16, 8, 128), np.uint16)
    cache = PagedCache.from_tensors(layout, [tensor], "lkpthd")
    blocks = Blocks.of(pool[: 64 * layout.block_bytes].reshape(64, -1))
    stream = cupy.cuda.Stream(non_blocking=True)
    with PoolRegistration(runtime, pool.ctypes.data, pool.nbytes) as registration:
        mover = CudaMover(registration, runtime, cupy=cupy)
        for number in range(1, 30):
            with stream:
                tensor[...] = number
            mover.gather_write(cache, np.arange(64), blocks, stream=stream).wait()
            assert (pool.view(np.uint16) == number).all()


def test_memory_that_cannot_be_pinned_is_an_error_and_the_next_call_works(
    gpu: tuple[Any, Cudart],
) -> None:
    cupy, runtime = gpu
    nothing = 1 << 46  # no mapping there
    with pytest.raises(RegistrationError):
        PoolRegistration(runtime, nothing, 1 << 20).ensure(np.array([nothing], np.uint64), 1)
    assert int(cupy.arange(10).sum()) == 45

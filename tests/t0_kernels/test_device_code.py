"""The GPU's code, compiled for the CPU and run lane by lane, against numpy.

Nothing here runs on a GPU. What the code of a lane computes is the same on both; that a GPU runs
lanes and warps at once can make no difference, since no lane reads what another one writes. The
twin refuses an access that isn't aligned to its size, on which a GPU faults (tests/native/kernels
shows that it does). That nvcc compiles it: make cuda.
"""

from pathlib import Path

import numpy as np
import pytest
from geometry import Case, cases, check_gather, check_scatter
from hypothesis import given, settings
from hypothesis import strategies as st

from belugafs.kernels import Layout, PagedCache, _copy
from belugafs.kernels.layout import PART

KERNELS = Path(__file__).parents[2] / "kernels"

grids = st.tuples(
    st.integers(1, 5),  # workers: warps
    st.sampled_from([1, 2, 3, 32]),  # lanes
    st.sampled_from([16, 48, 256, 2048]),  # bytes of a tile
)


def run_paged(case: Case, grid: tuple[int, int, int], to_pool: bool) -> None:
    workers, lanes, tile_bytes = grid
    parts, blocks = case.cache.parts, case.blocks
    pages = case.cache.page_numbers(case.pages, blocks)
    rows_max, row_bytes_max = int(parts["rows"].max()), int(parts["row_bytes"].max())
    _copy.twin_paged(
        parts.ctypes.data, len(parts), pages.ctypes.data, case.cache.pages_per_block,
        blocks.addresses.ctypes.data, len(blocks.addresses), rows_max,
        -(-row_bytes_max // tile_bytes), tile_bytes, to_pool, workers, lanes,
    )  # fmt: skip


def run_pieces(case: Case, grid: tuple[int, int, int], to_pool: bool) -> None:
    workers, lanes, tile_bytes = grid
    pieces = case.cache.transfer(case.pages, case.blocks).pieces
    tiles = -(-int(pieces["nbytes"].max()) // tile_bytes)
    _copy.twin_pieces(pieces.ctypes.data, len(pieces), tiles, tile_bytes, to_pool, workers, lanes)


@pytest.mark.parametrize("run", [run_paged, run_pieces])
@settings(max_examples=70, deadline=None)
@given(case=cases(), grid=grids)
def test_any_geometry(run, case: Case, grid: tuple[int, int, int]) -> None:
    before = case.pool.copy()
    run(case, grid, True)
    check_gather(case, before)

    case.pool[:] = case.pool[::-1].copy()
    untouched = case.untouched()
    run(case, grid, False)
    check_scatter(case, untouched)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 700), st.integers(0, 40), st.integers(0, 40), grids)
def test_any_alignment(nbytes: int, to: int, start: int, grid: tuple[int, int, int]) -> None:
    workers, lanes, tile_bytes = grid
    source = np.random.default_rng(nbytes).integers(0, 256, 800, np.uint8)
    target = np.full(800, 7, np.uint8)
    want = target.copy()
    want[to : to + nbytes] = source[start : start + nbytes]
    piece = np.array([source.ctypes.data + start, target.ctypes.data + to, nbytes], np.uint64)
    tiles = -(-nbytes // tile_bytes)
    _copy.twin_pieces(piece.ctypes.data, 1, tiles, tile_bytes, True, workers, lanes)
    np.testing.assert_array_equal(target, want)


@pytest.mark.parametrize("to_pool", [True, False])
def test_parts_of_different_sizes(to_pool: bool) -> None:
    """Layers that aren't alike: the grid is that of the largest part, and nobody goes beyond his
    own."""
    engine = np.random.default_rng(1).integers(0, 256, 4000, np.uint8)
    pool = np.random.default_rng(2).integers(0, 256, 600, np.uint8)
    sizes = [(3, 40), (1, 100), (5, 16)]  # rows, row_bytes
    parts = np.zeros(len(sizes), PART)
    wanted_engine, wanted_pool = engine.copy(), pool.copy()
    start, base = 10, 0
    for part, (rows, row_bytes) in zip(parts, sizes, strict=True):
        page_stride, pitch = rows * (row_bytes + 7), row_bytes + 7
        part["engine"] = engine.ctypes.data + base
        part["page_stride"], part["row_pitch"] = page_stride, pitch
        part["pool_offset"], part["pool_page_stride"] = start, rows * row_bytes
        part["rows"], part["row_bytes"] = rows, row_bytes
        for row in range(rows):
            there = slice(start + row * row_bytes, start + (row + 1) * row_bytes)
            here = base + 2 * page_stride + row * pitch
            if to_pool:
                wanted_pool[there] = engine[here : here + row_bytes]
            else:
                wanted_engine[here : here + row_bytes] = pool[there]
        start += rows * row_bytes + 5
        base += 4 * page_stride
    pages, blocks = np.array([2], np.uint32), np.array([pool.ctypes.data], np.uint64)
    _copy.twin_paged(
        parts.ctypes.data, 3, pages.ctypes.data, 1, blocks.ctypes.data, 1, 5, 3, 48,
        to_pool, 4, 32,
    )  # fmt: skip
    np.testing.assert_array_equal(pool, wanted_pool)
    np.testing.assert_array_equal(engine, wanted_engine)


@pytest.mark.parametrize(("apart", "unit"), [(0, 16), (8, 8), (4, 4), (2, 2), (1, 1), (12, 4)])
def test_accesses_are_as_wide_as_the_addresses_allow(apart: int, unit: int) -> None:
    raw = np.zeros(3 * 4096 + 64, np.uint8)
    base = -raw.ctypes.data % 16 + raw.ctypes.data
    piece = np.array([base + apart, base + 8192, 4096], np.uint64)
    wide, narrow = _copy.twin_pieces(piece.ctypes.data, 1, 2, 2048, True, 4, 32)
    assert (wide if unit == 16 else narrow) == 4096 // unit
    assert (narrow if unit == 16 else wide) == 0


def test_a_usual_cache_is_copied_by_16_bytes_alone() -> None:
    layout = Layout(2, 2, 5, 128, 16, 2)
    raw = np.zeros(2 * 6 * layout.chunk_bytes * 2 + 16, np.uint8)
    start = -raw.ctypes.data % 16
    shape = (2, 2, 6, 16, 5, 128)
    tensor = np.ndarray(shape, np.float16, raw, start)
    cache = PagedCache.from_tensors(layout, [tensor], "lkpthd")
    block = np.zeros(layout.block_bytes + 16, np.uint8)
    address = np.array([block.ctypes.data + -block.ctypes.data % 16], np.uint64)
    pages = np.array([3], np.uint32)
    counted = _copy.twin_paged(
        cache.parts.ctypes.data, 4, pages.ctypes.data, 1, address.ctypes.data, 1, 1,
        10, 2048, True, 8, 32,
    )  # fmt: skip
    assert counted == (layout.block_bytes // 16, 0)


def test_the_built_module_has_the_source_of_the_tree() -> None:
    """Else: make build."""
    assert _copy.cuda_source() == tuple(
        (KERNELS / name).read_text() for name in ("transfer.h", "transfer.cu")
    )

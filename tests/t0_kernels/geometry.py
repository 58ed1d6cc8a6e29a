"""Random paged caches, and what a block of one must contain, by numpy alone."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from belugafs.kernels.layout import Blocks, Layout, PagedCache

AXES = "lkpthd"


@dataclass
class Case:
    layout: Layout
    axes: str
    arenas: list[np.ndarray[Any, Any]]
    """All memory of the engine's side; a tensor is a view into one, with other bytes around."""
    tensors: list[np.ndarray[Any, Any]]
    cache: PagedCache
    pages: np.ndarray[Any, Any]
    """(blocks, pages of a block), no page twice."""
    pool: np.ndarray[Any, Any]
    offsets: list[int]
    """Of the blocks in ``pool``."""

    @property
    def blocks(self) -> Blocks:
        base = self.pool.ctypes.data
        addresses = np.array([base + offset for offset in self.offsets], np.uint64)
        return Blocks(addresses, self.layout.block_bytes)

    def block(self, number: int) -> bytes:
        """Content of a block by the documented order, from the tensors as they are now."""
        inner = "".join(axis for axis in self.cache.order if axis in "thd")
        parts = []
        for layer, kv in itertools.product(range(self.layout.layers), range(self.layout.kv)):
            for page in self.pages[number]:
                parts.append(self._page(layer, kv, int(page), inner))
        return b"".join(parts)

    def _page(self, layer: int, kv: int, page: int, inner: str) -> bytes:
        index = (0 if "l" in self.axes else layer) * (1 if "k" in self.axes else self.layout.kv)
        tensor = self.tensors[index + (0 if "k" in self.axes else kv)]
        at = {"l": layer, "k": kv, "p": page}
        view = tensor[tuple(at.get(axis, slice(None)) for axis in self.axes)]
        left = [axis for axis in self.axes if axis in "thd"]
        # Axes of size 1 aren't in the order; where they stand changes nothing.
        wanted = [axis for axis in inner if axis in left]
        wanted = [axis for axis in left if axis not in wanted] + wanted
        return view.transpose([left.index(axis) for axis in wanted]).tobytes()

    def untouched(self) -> list[bytes]:
        """Engine memory with the blocks' pages blanked: what a transfer must not change."""
        copies = [arena.copy() for arena in self.arenas]
        for arena, copy, tensor in zip(self.arenas, copies, self.tensors, strict=True):
            offset = tensor.ctypes.data - arena.ctypes.data
            twin = np.ndarray(tensor.shape, tensor.dtype, copy, offset, tensor.strides)
            index: list[Any] = [slice(None)] * len(self.axes)
            for page in self.pages.reshape(-1):
                index[self.axes.index("p")] = int(page)
                twin[tuple(index)] = np.zeros(1, tensor.dtype)[0]
        return [copy.tobytes() for copy in copies]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    def small(top: int) -> int:
        return draw(st.integers(1, top))

    dtype_bytes = draw(st.sampled_from([1, 2, 4, 8]))
    page_tokens, pages_per_block = small(4), small(3)
    dim = draw(st.one_of(st.integers(1, 9), st.sampled_from([16, 64, 128])))
    layout = Layout(small(3), small(2), small(3), dim, page_tokens * pages_per_block, dtype_bytes)
    nblocks = small(3)
    npages = nblocks * pages_per_block + draw(st.integers(0, 3))
    axes = "".join(draw(st.permutations(AXES)))
    for axis in "lk":
        if draw(st.booleans()):
            axes = axes.replace(axis, "")
    if page_tokens == 1 and draw(st.booleans()):
        axes = axes.replace("t", "")
    sizes = {
        "l": layout.layers,
        "k": layout.kv,
        "p": npages,
        "t": page_tokens,
        "h": layout.heads,
        "d": layout.head_dim,
    }
    shape = tuple(sizes[axis] for axis in axes)
    # The order in memory is another one than that of the axes, and rows may lie apart.
    memory = draw(st.permutations(range(len(axes))))
    spare = draw(st.lists(st.sampled_from([0, 0, 1, 3]), min_size=len(axes), max_size=len(axes)))
    shift = draw(st.integers(0, 16))
    count = (1 if "l" in axes else layout.layers) * (1 if "k" in axes else layout.kv)
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    strides = [0] * len(axes)
    step = dtype_bytes
    for axis in memory:
        strides[axis] = step
        step *= shape[axis] + spare[axis]
    arenas, tensors = [], []
    for _ in range(count):
        arena = random.integers(0, 256, shift + step + 16, np.uint8)
        arenas.append(arena)
        tensors.append(np.ndarray(shape, f"V{dtype_bytes}", arena, shift, strides))
    cache = PagedCache.from_tensors(layout, tensors, axes)
    pages = random.permutation(npages)[: nblocks * pages_per_block].reshape(nblocks, -1)
    gap = draw(st.integers(0, 17))
    offsets = [gap + number * (layout.block_bytes + gap) for number in range(nblocks)]
    pool = random.integers(0, 256, nblocks * (layout.block_bytes + gap) + gap, np.uint8)
    return Case(layout, axes, arenas, tensors, cache, pages, pool, offsets)


def check_gather(case: Case, before: np.ndarray[Any, Any]) -> None:
    """The pool holds the blocks, and is as ``before`` elsewhere."""
    want = before.copy()
    for number, offset in enumerate(case.offsets):
        block = np.frombuffer(case.block(number), np.uint8)
        want[offset : offset + block.size] = block
    np.testing.assert_array_equal(case.pool, want)


def check_scatter(case: Case, untouched: list[bytes]) -> None:
    """The engine's pages hold the pool's blocks, and all else is as it was."""
    for number, offset in enumerate(case.offsets):
        in_pool = case.pool[offset : offset + case.layout.block_bytes].tobytes()
        assert case.block(number) == in_pool
    assert case.untouched() == untouched

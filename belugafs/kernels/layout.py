"""The shape of a model's KV cache, and where an engine keeps its pages.

A *block* in the pool is contiguous. An engine's cache is paged: a page holds some tokens, and what
belongs to one page is scattered over as many places as the model has layers, times two. A 16-token
block of a 64-layer model is 128 chunks of 20 to 32 KiB.

:class:`Layout` is the model's part of it, :class:`PagedCache` the engine's. Which bytes of a block
are which is said by :attr:`PagedCache.order`; it belongs into the identity of a namespace, since
two engines share blocks only if it is the same for both.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from belugafs.kernels import _copy

PIECE = np.dtype([("engine", "u8"), ("pool", "u8"), ("nbytes", "u8")])
"""``struct bfk_piece``: bytes that are contiguous on both sides."""

PART = np.dtype(
    [
        ("engine", "u8"),
        ("page_stride", "u8"),
        ("row_pitch", "u8"),
        ("pool_offset", "u8"),
        ("pool_page_stride", "u8"),
        ("rows", "u4"),
        ("row_bytes", "u4"),
    ]
)
"""``struct bfk_part``: what one layer's K or V puts into a block."""

_DTYPE_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "half": 2, "bfloat16": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "fp8": 1, "int8": 1, "uint8": 1,
}  # fmt: skip


class LayoutError(ValueError):
    """A cache that doesn't have the shape it is said to have."""


@dataclass(frozen=True)
class Layout:
    """What of a model decides a block's size. ``kv`` is 2, or 1 where K and V are one (MLA)."""

    layers: int
    kv: int
    heads: int
    head_dim: int
    block_tokens: int
    dtype_bytes: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise LayoutError(f"{name} is {value}: it must be at least 1")
        if self.kv > 2:
            raise LayoutError(f"kv is {self.kv}: it is 2 (K and V) or 1 (both in one)")

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in one layer's K or V."""
        return self.heads * self.head_dim * self.dtype_bytes

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one block in one layer's K or V."""
        return self.block_tokens * self.token_bytes

    @property
    def chunks(self) -> int:
        """Chunks of a block: layers times ``kv``."""
        return self.layers * self.kv

    @property
    def block_bytes(self) -> int:
        return self.chunks * self.chunk_bytes

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        *,
        block_tokens: int,
        dtype_bytes: int | None = None,
        tensor_parallel: int = 1,
    ) -> Self:
        """From a model's ``config.json`` (as Hugging Face has it).

        ``dtype_bytes``: of a cache that is kept in another type than the weights (an fp8 cache: 1).
        ``tensor_parallel``: processes that share the heads; this is the layout of one of them.
        LayoutError: the config lacks something, or the heads can't be shared so.
        """
        config = config.get("text_config", config)

        def number(*names: str) -> int:
            for name in names:
                if config.get(name) is not None:
                    return int(config[name])
            raise LayoutError(f"the model's config has no {' or '.join(names)}")

        if dtype_bytes is None:
            name = str(config.get("torch_dtype", config.get("dtype"))).removeprefix("torch.")
            if name not in _DTYPE_BYTES:
                raise LayoutError(f"the model's config has dtype {name}: say dtype_bytes")
            dtype_bytes = _DTYPE_BYTES[name]
        layers = number("num_hidden_layers", "n_layer")
        if config.get("kv_lora_rank"):
            # MLA: one latent vector a token, the same for all heads and all processes.
            dim = number("kv_lora_rank") + number("qk_rope_head_dim")
            return cls(layers, 1, 1, dim, block_tokens, dtype_bytes)
        query_heads = number("num_attention_heads", "n_head")
        heads = int(config.get("num_key_value_heads") or query_heads)
        dim = int(config.get("head_dim") or number("hidden_size", "n_embd") // query_heads)
        if heads % tensor_parallel and tensor_parallel % heads:
            raise LayoutError(f"{heads} heads can't be shared by {tensor_parallel} processes")
        # With more processes than heads, several have a copy of the same one.
        return cls(layers, 2, max(1, heads // tensor_parallel), dim, block_tokens, dtype_bytes)


class _Array(NamedTuple):
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In bytes."""
    itemsize: int


def _array(tensor: Any) -> _Array:
    """numpy, CuPy, torch: without importing any of them, and without a copy."""
    if hasattr(tensor, "data_ptr"):
        itemsize = int(tensor.element_size())
        strides = tuple(int(n) * itemsize for n in tensor.stride())
        return _Array(int(tensor.data_ptr()), tuple(tensor.shape), strides, itemsize)
    for name in ("__cuda_array_interface__", "__array_interface__"):
        face = getattr(tensor, name, None)
        if face is not None:
            itemsize = np.dtype(face["typestr"]).itemsize
            shape = tuple(int(n) for n in face["shape"])
            strides = face.get("strides") or np.ndarray(shape, f"V{itemsize}").strides
            return _Array(int(face["data"][0]), shape, tuple(strides), itemsize)
    raise LayoutError(f"{type(tensor).__name__} is no array: give numpy, CuPy or torch arrays")


def _rows(axes: list[tuple[int, int]], itemsize: int) -> tuple[list[int], int, int, int]:
    """Axes as (size, stride in bytes), outermost first: offsets of the runs of equidistant rows
    that they are, number of rows, their pitch, bytes of a row."""
    row_bytes = itemsize
    rest = list(axes)
    while rest and rest[-1][1] == row_bytes:
        row_bytes *= rest.pop()[0]
    rows, pitch = 1, row_bytes
    if rest:
        rows, pitch = rest.pop()
        while rest and rest[-1][1] == rows * pitch:
            rows *= rest.pop()[0]
    steps = [range(0, size * stride, stride) for size, stride in rest]
    return [sum(at) for at in itertools.product(*steps)], rows, pitch, row_bytes


class PagedCache:
    """An engine's KV cache: ``npages`` pages of ``page_tokens`` tokens.

    Made by :meth:`from_tensors`. It holds addresses of the tensors, not the tensors: they must live
    as long as it is used.
    """

    def __init__(
        self, layout: Layout, parts: NDArray[Any], npages: int, page_tokens: int, order: str
    ) -> None:
        self.layout = layout
        self.parts = parts
        self.npages = npages
        self.page_tokens = page_tokens
        self.order = order
        """Axes of a block's bytes, outermost first, by the letters of ``from_tensors``, without
        those of size 1. ``lkthd``: tokens in order; ``lkp16htd``: pages of 16 tokens each."""
        self.pages_per_block = layout.block_tokens // page_tokens
        pool_starts = parts["pool_offset"]
        self._in_order = self.pages_per_block == 1 or bool(
            np.all(parts["pool_page_stride"] == parts["rows"] * parts["row_bytes"].astype("u8"))
        )
        assert np.all(np.diff(pool_starts.astype("i8")) > 0)

    @classmethod
    def from_tensors(cls, layout: Layout, tensors: Sequence[Any], axes: str) -> Self:
        """Where the pages lie, from the tensors' own shapes and strides.

        ``axes`` has a letter for each axis of a tensor: ``l`` layer, ``k`` K and V, ``p`` page,
        ``t`` token of a page, ``h`` head, ``d`` dimension of a head. Without ``l`` (or ``k``) there
        is one tensor for each layer (and each of K and V: K of a layer, V of it, then the next).
        vLLM's are ``kpthd`` or ``pkthd``, one a layer; SGLang's ``phd``: pages of one token.

        Tensors may be views: slices, transposed. LayoutError: shapes that aren't the layout's.
        """
        if len(set(axes)) != len(axes) or set(axes) - set("lkpthd") or "p" not in axes:
            raise LayoutError(
                f"axes {axes!r}: of the letters l k p t h d each at most once, with p"
            )
        arrays = [_array(tensor) for tensor in tensors]
        separate = (1 if "l" in axes else layout.layers) * (1 if "k" in axes else layout.kv)
        if len(arrays) != separate:
            raise LayoutError(f"{len(arrays)} tensors with axes {axes!r}: expected {separate}")
        want = {"l": layout.layers, "k": layout.kv, "h": layout.heads, "d": layout.head_dim}
        first = arrays[0]
        if len(first.shape) != len(axes):
            raise LayoutError(f"a tensor of shape {first.shape} doesn't have the axes {axes!r}")
        page_tokens = first.shape[axes.index("t")] if "t" in axes else 1
        npages = first.shape[axes.index("p")]
        if page_tokens < 1 or npages < 1 or layout.block_tokens % page_tokens:
            raise LayoutError(
                f"blocks of {layout.block_tokens} tokens are not whole pages of {page_tokens}"
            )
        for axis, size in want.items():
            if axis not in axes and axis in "hd" and size != 1:
                raise LayoutError(f"axes {axes!r} have no {axis}, whose size is {size}")
        shape = tuple({**want, "t": page_tokens, "p": npages}[axis] for axis in axes)
        for array in arrays:
            if array.shape != shape or array.itemsize != layout.dtype_bytes:
                raise LayoutError(
                    f"a tensor of shape {array.shape} and {array.itemsize} bytes an element: "
                    f"expected {shape} and {layout.dtype_bytes}"
                )
            for size, stride in zip(array.shape, array.strides, strict=True):
                if size > 1 and stride < layout.dtype_bytes:
                    raise LayoutError(
                        "a tensor that is reversed or repeats itself (stride below 1)"
                    )
        return cls._from_arrays(layout, arrays, axes, npages, page_tokens)

    @classmethod
    def _from_arrays(
        cls, layout: Layout, arrays: list[_Array], axes: str, npages: int, page_tokens: int
    ) -> Self:
        pages_per_block = layout.block_tokens // page_tokens
        page_bytes = page_tokens * layout.token_bytes

        def inner_order(array: _Array) -> str:
            inner = [(-array.strides[i], i) for i, axis in enumerate(axes) if axis in "thd"]
            return "".join(axes[i] for _, i in sorted(inner) if array.shape[i] > 1)

        order = inner_order(arrays[0])
        if any(inner_order(array) != order for array in arrays):
            raise LayoutError("the tensors of the layers order their axes differently in memory")
        rows: list[tuple[int, ...]] = []
        for layer, kv in itertools.product(range(layout.layers), range(layout.kv)):
            index = (0 if "l" in axes else layer) * (1 if "k" in axes else layout.kv)
            array = arrays[index + (0 if "k" in axes else kv)]
            stride = dict(zip(axes, array.strides, strict=True))
            size = dict(zip(axes, array.shape, strict=True))
            base = array.address + layer * stride.get("l", 0) + kv * stride.get("k", 0)
            start = (layer * layout.kv + kv) * layout.chunk_bytes
            inner = [(size[axis], stride[axis]) for axis in order]
            offsets, nrows, pitch, row_bytes = _rows(inner, array.itemsize)
            for i, offset in enumerate(offsets):
                at = start + i * nrows * row_bytes
                rows.append((base + offset, stride["p"], pitch, at, page_bytes, nrows, row_bytes))
        # Only where tokens come first it makes no difference how many of them a page has.
        by_page = pages_per_block > 1 and "t" in order and not order.startswith("t")
        name = "".join(axis for axis in "lk" if {"l": layout.layers, "k": layout.kv}[axis] > 1)
        name += f"p{page_tokens}{order}" if by_page else order if "t" in order else f"t{order}"
        return cls(layout, np.array(rows, PART), npages, page_tokens, name)

    def transfer(self, pages: ArrayLike, blocks: Blocks) -> Transfer:
        """The pieces that ``blocks`` are made of.

        ``pages``: numbers of the pages of each block, shape (blocks, ``pages_per_block``), or as
        many in a row; for SGLang's cache the tokens' slots. ``blocks``: where they lie in the pool.
        IndexError: a page that the cache doesn't have. LayoutError: sizes that don't fit.
        """
        ids = self.page_numbers(pages, blocks)
        per_page = int(self.parts["rows"].sum())
        pieces = np.empty(ids.size * per_page, PIECE)
        counts = np.empty(len(blocks.addresses), "u8")
        n = _copy.expand(
            self.parts, ids, self.pages_per_block, self.npages, blocks.addresses, pieces, counts
        )
        pieces = pieces[:n]
        if not self._in_order:
            block_of = np.repeat(np.arange(counts.size), counts.astype("i8"))
            pieces = pieces[np.lexsort((pieces["pool"], block_of))]
        return Transfer(pieces, blocks, counts)

    def page_numbers(self, pages: ArrayLike, blocks: Blocks) -> NDArray[np.uint32]:
        """Checked: as many as the blocks need, each of them a page of this cache."""
        given = np.asarray(pages)
        if given.size and given.dtype.kind not in "iu":
            raise LayoutError(f"page numbers of type {given.dtype}: they are integers")
        if given.size != len(blocks.addresses) * self.pages_per_block:
            raise LayoutError(
                f"{given.size} pages for {len(blocks.addresses)} blocks of {self.pages_per_block}"
            )
        if blocks.nbytes != self.layout.block_bytes:
            raise LayoutError(
                f"blocks of {blocks.nbytes} bytes: this model's have {self.layout.block_bytes}"
            )
        if given.size and (given.min() < 0 or given.max() >= self.npages):
            wrong = given.max() if given.max() >= self.npages else given.min()
            raise IndexError(f"page {wrong} is not in the cache, which has {self.npages} pages")
        return np.ascontiguousarray(given.reshape(-1), np.uint32)


class Blocks(NamedTuple):
    """Blocks of one size in the pool: addresses in this process."""

    addresses: NDArray[np.uint64]
    nbytes: int

    @classmethod
    def of(cls, views: Iterable[Any]) -> Self:
        """From buffers (memoryviews of leases or reservations). LayoutError: of unequal sizes."""
        arrays = [np.frombuffer(view, np.uint8) for view in views]
        sizes = {array.nbytes for array in arrays}
        if len(sizes) > 1:
            raise LayoutError(f"blocks of different sizes: {sorted(sizes)}")
        addresses = np.array([array.ctypes.data for array in arrays], np.uint64)
        return cls(addresses, sizes.pop() if sizes else 0)


class Transfer(NamedTuple):
    """Pieces of blocks, in the order of the pool, block after block."""

    pieces: NDArray[Any]
    blocks: Blocks
    counts: NDArray[np.uint64]
    """Pieces of each block."""

    @property
    def nbytes(self) -> int:
        return len(self.blocks.addresses) * self.blocks.nbytes

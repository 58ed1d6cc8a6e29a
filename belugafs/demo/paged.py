"""A paged KV cache whose pages may live anywhere, also in a mapped file.

A page holds one block of tokens for all layers in one contiguous piece, so that storing it is
one ``write`` and loading it is one ``readinto`` or one ``mmap``: no gather, no second copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from belugafs.demo.model import ModelConfig

Array = npt.NDArray[np.float32]
Page = npt.NDArray[np.generic]


@dataclass(frozen=True)
class PageGeometry:
    """Shape and dtype of a page, from the model and the block size."""

    layers: int
    block_tokens: int
    kv_heads: int
    head_dim: int
    dtype: str = "float16"

    @classmethod
    def of(cls, config: ModelConfig, block_tokens: int, dtype: str = "float16") -> PageGeometry:
        return cls(config.layers, block_tokens, config.kv_heads, config.head_dim, dtype)

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """(layers, 2 for keys and values, tokens, heads, head_dim)."""
        return (self.layers, 2, self.block_tokens, self.kv_heads, self.head_dim)

    @property
    def nbytes(self) -> int:
        """Bytes of one page, which is the size of a block's file."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize

    def page_on(self, buffer: bytearray | memoryview) -> Page:
        """View a buffer of exactly ``nbytes`` bytes as a page, without copying."""
        return np.frombuffer(buffer, dtype=self.dtype).reshape(self.shape)


class PagedCache:
    """The pages of one sequence. Grows at its end; loaded pages are never written.

    Not for use by several threads.
    """

    def __init__(self, geometry: PageGeometry) -> None:
        self.geometry = geometry
        self.pages: list[Page] = []
        self.length = 0  # tokens held, all layers
        self._writable = 0  # pages before this index are loaded and may be read-only

    def adopt(self, pages: Sequence[Page]) -> None:
        """Take over full pages as the first tokens of an empty cache."""
        if self.pages:
            raise ValueError("pages can be adopted by an empty cache only")
        for page in pages:
            if page.shape != self.geometry.shape:
                raise ValueError(f"page has shape {page.shape}, expected {self.geometry.shape}")
        self.pages = list(pages)
        self.length = len(pages) * self.geometry.block_tokens
        self._writable = len(pages)

    def put(self, layer: int, keys: Array, values: Array) -> None:
        """Write one layer's keys and values, (tokens, kv_heads, head_dim), at the end.

        All layers write the same tokens, then ``advance`` makes them part of the cache.
        """
        size = self.geometry.block_tokens
        done, count = 0, len(keys)
        while done < count:
            index, offset = divmod(self.length + done, size)
            while index >= len(self.pages):
                self.pages.append(np.zeros(self.geometry.shape, self.geometry.dtype))
            if index < self._writable:
                raise ValueError(f"page {index} was loaded and is read-only")
            step = min(size - offset, count - done)
            page = self.pages[index]
            page[layer, 0, offset : offset + step] = keys[done : done + step]
            page[layer, 1, offset : offset + step] = values[done : done + step]
            done += step

    def advance(self, tokens: int) -> None:
        """Count ``tokens`` that every layer has put."""
        self.length += tokens

    def gather(self, layer: int, tokens: int) -> tuple[Array, Array]:
        """The first ``tokens`` keys and values of a layer, each (tokens, kv_heads, head_dim).

        This is the one pass over the pages that attention makes anyway; it reads them where
        they are. Includes tokens that were put and not yet counted.
        """
        used = self.pages[: -(-tokens // self.geometry.block_tokens)]
        keys, values = (
            np.concatenate([p[layer, kv] for p in used], dtype=np.float32, casting="same_kind")
            for kv in (0, 1)
        )
        return keys[:tokens], values[:tokens]

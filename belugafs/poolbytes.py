"""Bytes of a mapped pool as Python sees them, without a copy: what blocks that are read and blocks
that are being filled have in common (:mod:`belugafs.client`, :mod:`belugafs.reservation`)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

if TYPE_CHECKING:
    import torch


class PoolBytes:
    """Some bytes of the pool. Who derives from it says which, and whether they may be used now."""

    __slots__ = ("_view",)

    def __init__(self) -> None:
        self._view: memoryview | None = None

    @property
    def _name(self) -> str:
        raise NotImplementedError

    def _buffer(self) -> Any:
        """An object with the buffer protocol; ValueError, BlockMissing, BlockDamaged."""
        raise NotImplementedError

    @property
    def size_bytes(self) -> int:
        raise NotImplementedError

    def __len__(self) -> int:
        return self.size_bytes

    @property
    def view(self) -> memoryview:
        """The bytes: a memoryview of format B, shape (size_bytes,). No copy.

        Raises:
            BlockMissing, BlockDamaged: it isn't leased.
            ValueError: the lease, or the reservation, is closed.
        """
        if self._view is None:
            self._view = memoryview(self._buffer())
        return self._view

    def _release_view(self) -> None:
        view, self._view = self._view, None
        if view is not None:
            try:  # not contextlib.suppress: there may be a thousand of them
                view.release()
            except BufferError:  # an array made of the view itself still uses it
                return

    def numpy(
        self, dtype: DTypeLike = np.uint8, shape: int | Sequence[int] | None = None
    ) -> NDArray[Any]:
        """The bytes as an array; read-only, unless the block is being filled. No copy.

        Args:
            dtype: of the elements.
            shape: all of the block, in C order; by default one dimension.

        Raises:
            ValueError: the block has another size than that takes.
            BlockMissing, BlockDamaged: it isn't leased.
        """
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise ValueError(f"{kind} holds Python objects, which don't live in a pool")
        wanted = self._shape(kind.itemsize, str(kind), shape)
        return np.frombuffer(self._buffer(), kind).reshape(wanted)

    def tensor(
        self, dtype: torch.dtype | None = None, shape: int | Sequence[int] | None = None
    ) -> torch.Tensor:
        """The bytes as a torch tensor on the CPU. No copy.

        One of a block that is read must not be written to: the memory is read-only, which torch
        doesn't know, and a store ends the process.

        Args:
            dtype: of the elements; by default uint8.
            shape: all of the block, in C order; by default one dimension.

        Raises:
            ImportError: there is no torch.
            ValueError, BlockMissing, BlockDamaged: as `numpy`.
        """
        import torch

        kind = torch.uint8 if dtype is None else dtype
        wanted = self._shape(kind.itemsize, str(kind), shape)
        if not self.size_bytes:
            self._buffer()
            return torch.empty(wanted, dtype=kind)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*not writable.*")
            return torch.frombuffer(self._buffer(), dtype=kind).reshape(wanted)

    def _shape(
        self, item_bytes: int, kind: str, shape: int | Sequence[int] | None
    ) -> tuple[int, ...]:
        size = self.size_bytes
        if shape is None:
            if item_bytes == 0 or size % item_bytes:
                raise ValueError(
                    f"{self._name} has {size} bytes, no whole number of {kind} ({item_bytes} bytes)"
                )
            return (size // item_bytes,)
        wanted = (shape,) if isinstance(shape, int) else tuple(shape)
        if any(length < 0 for length in wanted):
            raise ValueError(f"a shape has no negative lengths: {wanted}")
        if math.prod(wanted) * item_bytes != size:
            raise ValueError(
                f"{self._name} has {size} bytes; {kind} in shape {wanted} takes "
                f"{math.prod(wanted) * item_bytes}"
            )
        return wanted

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            raise ValueError("an array of another type than bytes: use numpy(dtype)")
        return array.copy() if copy else array

    def __dlpack__(self, **options: Any) -> Any:
        """For ``from_dlpack`` of another library: bytes. Those of a block that is read are
        read-only, so it has to know DLPack 1.0."""
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.numpy().__dlpack_device__()

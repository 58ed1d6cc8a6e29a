"""Blocks as a GPU sees them: leased pool memory, registered, as arrays of CuPy and torch.

Nothing is copied: the GPU's loads go to the pool over its link, at each use. That pays for what
is read once, such as by a kernel that gathers; what is used again and again belongs into the GPU's
own memory (`belugafs.kernels.cuda.CudaMover`, which knows the fast ways to get it there).

This has not run on a GPU (docs/gpu.md).
"""

from __future__ import annotations

import importlib
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike

from belugafs.client import Block, Pool
from belugafs.kernels.cudart import Cudart
from belugafs.kernels.registration import CHUNK_BYTES, PoolRegistration, RegistrationError


class DeviceView:
    """A leased block's bytes by ``__cuda_array_interface__`` (version 3) and DLPack: one dimension
    of uint8. From `Gpu.view`. It keeps the block leased, and what is made of it keeps it.

    ``readonly`` is what the interface says; the memory is never writable: a kernel that stores into
    it ends the process's work on that GPU.
    """

    def __init__(self, gpu: Gpu, block: Block, readonly: bool) -> None:
        self._gpu = gpu
        self._held = block._buffer()
        self.address = block.address
        self.size_bytes = block.size_bytes
        self.readonly = readonly

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": (self.size_bytes,),
            "typestr": "|u1",
            "data": (self.address if self.size_bytes else 0, self.readonly),
            "strides": None,
            "stream": None,  # nobody writes it
        }

    def __dlpack__(self, **options: Any) -> Any:
        return self._gpu._array(self, np.dtype(np.uint8), (self.size_bytes,)).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        array = self._gpu._array(self, np.dtype(np.uint8), (self.size_bytes,))
        kind, number = array.__dlpack_device__()
        return int(kind), int(number)


class Gpu:
    """One connected pool for CuPy's current device. Safe to use from threads.

    Registers the pool's memory lazily, in chunks (`PoolRegistration`). A context manager: close it
    before the pool.

    Args:
        pool: from `belugafs.connect`.
        chunk_bytes: of one registration. A block that lies across two of them has no view.
        runtime, cupy, torch: in place of the installed ones, for tests.

    Raises:
        ImportError: there is no CUDA runtime library.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        runtime: Any = None,
        cupy: Any = None,
        torch: Any = None,
    ) -> None:
        address, size_bytes = pool._client.span
        self._cupy, self._torch = cupy, torch
        self._registration = PoolRegistration(
            Cudart() if runtime is None else runtime,
            address,
            size_bytes,
            readonly=True,
            chunk_bytes=chunk_bytes,
        )
        self._lock = threading.Lock()
        self._views: weakref.WeakSet[DeviceView] = weakref.WeakSet()
        self._closed = False

    @property
    def registration(self) -> PoolRegistration:
        """For a `CudaMover` over the same mapping: memory is registered once in a process."""
        return self._registration

    def view(self, block: Block, *, readonly: bool = True) -> DeviceView:
        """A leased block's bytes for any library that takes ``__cuda_array_interface__`` or DLPack.

        Work that reads it must have passed its stream before the last that refers to it goes, or
        the lease's end lets the pool use the memory again under it.

        Args:
            readonly: what the interface says. torch takes nothing that says so.

        Raises:
            BlockMissing, BlockDamaged: it isn't leased.
            ValueError: the lease is closed.
            RegistrationError: the GPU can't reach it; the text says why.
        """
        view = DeviceView(self, block, readonly)
        with self._lock:
            if self._closed:
                raise RegistrationError("the registration of this pool was closed")
            self._reach(view)
            self._views.add(view)
        return view

    def _reach(self, view: DeviceView) -> None:
        if not view.size_bytes:
            return
        chunk_bytes = self._registration.chunk_bytes
        start = view.address - self._registration.address
        if start // chunk_bytes != (start + view.size_bytes - 1) // chunk_bytes:
            raise RegistrationError(
                f"this block of {view.size_bytes} bytes lies across two registrations of "
                f"{chunk_bytes} bytes, which a copy by CUDA can't cross: use CudaMover, which "
                "cuts it, or a larger chunk_bytes"
            )
        addresses = np.array([view.address], np.uint64)
        self._registration.ensure(addresses, view.size_bytes)

    def cupy(
        self, block: Block, dtype: DTypeLike = np.uint8, shape: int | Sequence[int] | None = None
    ) -> Any:
        """A leased block as a CuPy array on the current device. No copy; not to be written to.

        Args:
            dtype: of the elements.
            shape: all of the block, in C order; by default one dimension.

        Raises:
            ImportError: there is no CuPy.
            ValueError: the block has another size than that takes; or the lease is closed.
            BlockMissing, BlockDamaged, RegistrationError: as `view`.
        """
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise ValueError(f"{kind} holds Python objects, which don't live in a pool")
        wanted = block._shape(kind.itemsize, str(kind), shape)
        return self._array(self.view(block), kind, wanted)

    def _array(self, view: DeviceView, kind: np.dtype[Any], shape: tuple[int, ...]) -> Any:
        if self._cupy is None:
            self._cupy = importlib.import_module("cupy")
        cuda = self._cupy.cuda
        device = cuda.Device().id
        memory = cuda.UnownedMemory(view.address, view.size_bytes, view, device)
        return self._cupy.ndarray(shape, dtype=kind, memptr=cuda.MemoryPointer(memory, 0))

    def tensor(
        self,
        block: Block,
        dtype: Any = None,
        shape: int | Sequence[int] | None = None,
        *,
        device: Any = "cuda",
    ) -> Any:
        """A leased block as a torch tensor on the GPU. No copy. It must not be written to: torch
        doesn't know read-only memory.

        Args:
            dtype: torch's, of the elements; by default uint8.
            shape: all of the block, in C order; by default one dimension.
            device: a CUDA device, torch's.

        Raises:
            ImportError: there is no torch.
            ValueError: the block has another size than that takes; no CUDA device; the lease is
                closed.
            BlockMissing, BlockDamaged, RegistrationError: as `view`.
        """
        if self._torch is None:
            self._torch = importlib.import_module("torch")
        torch = self._torch
        if torch.device(device).type != "cuda":
            raise ValueError(f"{device} is no CUDA device: for the CPU use block.tensor()")
        kind = torch.uint8 if dtype is None else dtype
        wanted = block._shape(kind.itemsize, str(kind), shape)
        if not block.size_bytes:
            block._buffer()  # is it leased?
            return torch.empty(wanted, dtype=kind, device=device)
        view = self.view(block, readonly=False)
        flat = torch.as_tensor(view, dtype=torch.uint8, device=device)
        return flat.view(kind).reshape(wanted)

    def close(self) -> None:
        """Give the registrations back.

        Raises:
            RuntimeError: arrays of it are still in use; nothing has changed.
            CudaError: CUDA refuses; all of them were tried.
        """
        with self._lock:
            alive = len(self._views)
            if alive:
                raise RuntimeError(
                    f"{alive} arrays or views of this pool are still in use: drop them first"
                )
            self._closed = True
        self._registration.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except RuntimeError:
            if exc_type is None:  # the first error is what counts
                raise

"""Copies by the GPU: own kernels through CuPy, and CUDA's copies, in the order of a stream.

The pool's memory must be registered (:class:`~belugafs.kernels.registration.PoolRegistration`,
which does it at the first touch), the engine's is the GPU's. Nothing here waits: a call puts work
into a stream and returns a ticket. What the engine's own kernels, earlier in that stream, wrote is
copied; what is later in that stream sees what was copied.

Tables (addresses, page numbers) lie in pinned memory that the kernel reads in place. They and the
event live in the mover until the stream has passed them, also if the ticket is dropped.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from belugafs.kernels import _copy
from belugafs.kernels.choice import DEFAULT, Choice, Method
from belugafs.kernels.cudart import Cudart
from belugafs.kernels.layout import Blocks, PagedCache, Transfer
from belugafs.kernels.registration import PoolRegistration

THREADS = 256
"""Of a CUDA block: eight warps."""

CTAS = 32
"""CUDA blocks at most. 256 warps with 2 KiB in flight each are 512 KiB: enough for the product of
rate and latency of a PCIe 5 link (55 GB/s times 1.5 us) several times over. Not measured."""

TILE_BYTES = 2048
"""What a warp copies at once: four accesses of 16 bytes for each of its lanes."""

_OPTIONS = ("-std=c++17",)
_DEFAULT_STREAMS = frozenset({0, 1, 2})


def kernel_source() -> str:
    """What is compiled: transfer.h and transfer.cu in one, since NVRTC knows no include path."""
    header, source = _copy.cuda_source()
    include = '#include "transfer.h"'
    assert source.count(include) == 1
    return source.replace(include, header)


class CudaTicket:
    """A transfer in a stream. Not safe for many threads."""

    def __init__(self, event: Any, method: Method) -> None:
        self._event = event
        self.method = method

    @property
    def done(self) -> bool:
        return bool(self._event.done)

    def wait(self) -> None:
        """Return when the stream has passed the transfer. An error of the GPU is CuPy's
        exception."""
        self._event.synchronize()


class CudaMover:
    """Transfers between one GPU (CuPy's current device at construction) and one mapping of a pool.

    ``choice``: thresholds, see :mod:`belugafs.kernels.choice`. ``cupy``: the module, for tests.
    ImportError: no CuPy; CudaMissing: no CUDA runtime library. For one thread at a time.
    """

    name = "cuda"
    needs_registration = True

    def __init__(
        self,
        pool: PoolRegistration,
        runtime: Cudart,
        *,
        choice: Choice = DEFAULT,
        ctas: int = CTAS,
        cupy: Any = None,
    ) -> None:
        if cupy is None:
            cupy = importlib.import_module("cupy")
        self._cupy = cupy
        self._pool = pool
        self._runtime = runtime
        self.choice = choice
        self._ctas = ctas
        self._module = cupy.RawModule(code=kernel_source(), options=_OPTIONS)
        self._functions: dict[str, Any] = {}
        self._under_way: deque[tuple[Any, Any]] = deque()
        self._parts: dict[int, tuple[PagedCache, Any]] = {}

    def gather_write(
        self, cache: PagedCache, pages: ArrayLike, blocks: Blocks, *, stream: Any = None
    ) -> CudaTicket:
        """GPU to pool. ``stream``: CuPy's, torch's, or the address of one; None: CuPy's current
        one.

        IndexError, LayoutError: as ``PagedCache.transfer``. RegistrationError: memory that the GPU
        can't reach. CudaError: a copy that CUDA refused."""
        return self._paged(cache, pages, blocks, True, stream)

    def scatter_read(
        self, cache: PagedCache, pages: ArrayLike, blocks: Blocks, *, stream: Any = None
    ) -> CudaTicket:
        """Pool to GPU. Hold the blocks' lease until the ticket is done."""
        return self._paged(cache, pages, blocks, False, stream)

    def _paged(
        self, cache: PagedCache, pages: ArrayLike, blocks: Blocks, to_pool: bool, stream: Any
    ) -> CudaTicket:
        ids = cache.page_numbers(pages, blocks)
        self._pool.ensure(blocks.addresses, blocks.nbytes)
        per_page = int(cache.parts["rows"].sum())
        nbytes = len(blocks.addresses) * blocks.nbytes
        with self._on(stream) as address:
            method = self._choose(to_pool, ids.size * per_page, nbytes, address)
            if method is not Method.KERNEL:
                return self._copies(method, cache.transfer(pages, blocks), to_pool, address)
            return self._launch_paged(cache, ids, blocks, to_pool)

    def run(
        self, transfer: Transfer, *, to_pool: bool, stream: Any = None, method: Method | None = None
    ) -> CudaTicket:
        """A list of pieces of any number and lengths. ``method``: that one; None: by size."""
        pieces = transfer.pieces
        self._pool.ensure(pieces["pool"], pieces["nbytes"])
        with self._on(stream) as address:
            if method is None:
                nbytes = int(pieces["nbytes"].sum())
                method = self._choose(to_pool, len(pieces), nbytes, address)
            if method is Method.KERNEL:
                return self._launch_pieces(pieces, to_pool)
            return self._copies(method, transfer, to_pool, address)

    def methods(self, stream: Any = None) -> list[Method]:
        """What can be used in that stream."""
        with self._on(stream) as address:
            return [m for m in Method if m is not Method.BATCH or self._can_batch(address)]

    def close(self) -> None:
        """Wait for all that is under way."""
        while self._under_way:
            self._under_way[0][0].synchronize()
            self._under_way.popleft()
        self._parts.clear()

    def time_one(self, transfer: Transfer, method: Method, to_pool: bool, stream: Any) -> float:
        """Seconds of one transfer, from the call until it is done: the caller's time, with the
        start."""
        begin = time.perf_counter()
        self.run(transfer, to_pool=to_pool, stream=stream, method=method).wait()
        return time.perf_counter() - begin

    # ---- streams and what lives in them ----

    @contextlib.contextmanager
    def _on(self, stream: Any) -> Iterator[int]:
        """Make it CuPy's current stream; its address."""
        cuda = self._cupy.cuda
        if stream is None:
            yield int(cuda.get_current_stream().ptr)
            return
        if not hasattr(stream, "ptr"):
            address = int(getattr(stream, "cuda_stream", stream))
            if hasattr(cuda.Stream, "from_external"):
                stream = cuda.Stream.from_external(_Foreign(address))
            else:
                stream = cuda.ExternalStream(address)
        with stream:
            yield int(stream.ptr)

    def _finish(self, method: Method, holds: Any) -> CudaTicket:
        """Note where the stream is now. ``holds`` may go when it has got there."""
        while self._under_way and self._under_way[0][0].done:
            self._under_way.popleft()
        event = self._cupy.cuda.Event(block=True, disable_timing=True)
        event.record(self._cupy.cuda.get_current_stream())
        self._under_way.append((event, holds))
        return CudaTicket(event, method)

    def _pinned(self, *tables: NDArray[Any]) -> tuple[Any, list[np.uint64]]:
        """Copies of the tables in pinned memory: what to hold, and their addresses."""
        offsets, total = [], 0
        for table in tables:
            offsets.append(total)
            total += -(-table.nbytes // 16) * 16
        memory = self._cupy.cuda.alloc_pinned_memory(max(total, 16))
        for offset, table in zip(offsets, tables, strict=True):
            target = np.frombuffer(memory, np.uint8, table.nbytes, offset)
            target[:] = np.ascontiguousarray(table).reshape(-1).view(np.uint8)
        return memory, [np.uint64(memory.ptr + offset) for offset in offsets]

    # ---- own kernels ----

    def _function(self, kind: str, to_pool: bool) -> Any:
        name = f"bfk_{'gather_write' if to_pool else 'scatter_read'}_{kind}"
        if name not in self._functions:
            self._functions[name] = self._module.get_function(name)
        return self._functions[name]

    def _grid(self, items: int) -> tuple[int]:
        return (min(self._ctas, max(1, -(-items * 32 // THREADS))),)

    def _launch_pieces(self, pieces: NDArray[Any], to_pool: bool) -> CudaTicket:
        memory, (table,) = self._pinned(pieces)
        longest = int(pieces["nbytes"].max()) if len(pieces) else 0
        tiles = -(-longest // TILE_BYTES)
        if tiles:
            self._function("pieces", to_pool)(
                self._grid(len(pieces) * tiles),
                (THREADS,),
                (table, np.uint64(len(pieces)), np.uint64(tiles), np.uint64(TILE_BYTES)),
            )
        return self._finish(Method.KERNEL, memory)

    def _launch_paged(
        self, cache: PagedCache, ids: NDArray[np.uint32], blocks: Blocks, to_pool: bool
    ) -> CudaTicket:
        memory, (addresses, numbers) = self._pinned(blocks.addresses, ids)
        parts = cache.parts
        rows_max = int(parts["rows"].max())
        tiles_max = -(-int(parts["row_bytes"].max()) // TILE_BYTES)
        items = ids.size * len(parts) * rows_max * tiles_max
        if items:
            self._function("paged", to_pool)(
                self._grid(items),
                (THREADS,),
                (
                    np.uint64(self._parts_of(cache)),
                    np.uint32(len(parts)),
                    numbers,
                    np.uint32(cache.pages_per_block),
                    addresses,
                    np.uint64(len(blocks.addresses)),
                    np.uint32(rows_max),
                    np.uint32(tiles_max),
                    np.uint64(TILE_BYTES),
                ),
            )
        return self._finish(Method.KERNEL, memory)

    def _parts_of(self, cache: PagedCache) -> int:
        """A cache's table on the GPU, made once. The copy is over before this returns, so that it
        is there for every stream."""
        if id(cache) not in self._parts:
            table = self._cupy.asarray(cache.parts.view(np.uint8))
            self._cupy.cuda.get_current_stream().synchronize()
            # With the cache itself, so that its id stays its own.
            self._parts[id(cache)] = cache, table
        return int(self._parts[id(cache)][1].data.ptr)

    # ---- CUDA's copies ----

    def _can_batch(self, stream: int) -> bool:
        return stream not in _DEFAULT_STREAMS and self._runtime.has_batch

    def _choose(self, to_pool: bool, npieces: int, nbytes: int, stream: int) -> Method:
        side = self.choice.to_pool if to_pool else self.choice.from_pool
        return side.choose(npieces, nbytes, batch=self._can_batch(stream))

    def _copies(self, method: Method, transfer: Transfer, to_pool: bool, stream: int) -> CudaTicket:
        pieces = self._pool.split(transfer.pieces)
        dst, src = pieces["engine"], pieces["pool"]
        if to_pool:
            dst, src = src, dst
        if method is Method.BATCH:
            self._runtime.memcpy_batch_async(dst, src, pieces["nbytes"], stream)
        else:
            for to, start, nbytes in zip(
                dst.tolist(), src.tolist(), pieces["nbytes"].tolist(), strict=True
            ):
                self._runtime.memcpy_async(to, start, nbytes, stream)
        return self._finish(method, None)


class _Foreign:
    """A stream that is somebody else's, by CUDA's stream protocol."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address

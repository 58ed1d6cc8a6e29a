"""The GPU's part of the benchmark: bandwidth and latency beside CUDA's own copies.

Never run so far: no GPU was at hand (docs/gpu.md).
"""

from __future__ import annotations

import importlib
import mmap
import statistics
from dataclasses import asdict
from typing import Any

import numpy as np

from belugafs.kernels.choice import SIZES, Method, measure
from belugafs.kernels.cuda import CudaMover
from belugafs.kernels.cudart import CudaError, CudaMissing, Cudart
from belugafs.kernels.layout import PIECE, Blocks, Layout, PagedCache, Transfer
from belugafs.kernels.registration import PoolRegistration

_POOL_BYTES = 512 << 20
_LARGE_BYTES = 256 << 20
_ROUNDS = 20
_NO_DRIVER = 35


class GpuMissing(RuntimeError):
    """No GPU, or nothing to use it with: why."""


def find_gpu() -> tuple[Any, Cudart, str]:
    """CuPy, the runtime, and the card's name. GpuMissing says what is missing."""
    try:
        runtime = Cudart()
        if not runtime.device_count():
            raise GpuMissing("there is no CUDA device")
        cupy = importlib.import_module("cupy")
        name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"]
    except CudaMissing as error:
        raise GpuMissing(str(error)) from error
    except ImportError as error:
        raise GpuMissing(f"{error}; pip install 'belugafs[cupy]'") from error
    except CudaError as error:
        if error.code == _NO_DRIVER:
            raise GpuMissing("no NVIDIA driver, or one older than the runtime library") from error
        raise GpuMissing(str(error)) from error
    return cupy, runtime, name.decode()


def _pieces(
    gpu: Any, pool: np.ndarray[Any, Any], npieces: int, piece_bytes: int, random: Any
) -> Transfer:
    """Pieces at random places of the GPU's memory, one behind the other in the pool."""
    pieces = np.empty(npieces, PIECE)
    places = random.permutation(gpu.nbytes // piece_bytes)[:npieces].astype(np.uint64)
    pieces["engine"] = np.uint64(gpu.data.ptr) + places * np.uint64(piece_bytes)
    offsets = np.arange(npieces, dtype=np.uint64) * np.uint64(piece_bytes)
    pieces["pool"] = np.uint64(pool.ctypes.data) + offsets
    pieces["nbytes"] = piece_bytes
    blocks = Blocks(pieces["pool"][:1].copy(), npieces * piece_bytes)
    return Transfer(pieces, blocks, np.array([npieces], np.uint64))


def measure_gpu(layout: Layout, *, thresholds: bool = False) -> dict[str, Any]:
    """Figures by name; GB/s, and for 16 KiB microseconds, from the call to the end of the wait."""
    cupy, runtime, card = find_gpu()
    mapping = mmap.mmap(-1, _POOL_BYTES, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
    pool = np.frombuffer(mapping, np.uint8)
    gpu = cupy.zeros(_POOL_BYTES, np.uint8)
    random = np.random.default_rng(1)
    stream = cupy.cuda.Stream(non_blocking=True)
    found: dict[str, Any] = {"card": card}
    with PoolRegistration(runtime, pool.ctypes.data, pool.nbytes) as registration:
        mover = CudaMover(registration, runtime, cupy=cupy)

        def seconds(transfer: Transfer, method: Method, to_pool: bool) -> float:
            times = [mover.time_one(transfer, method, to_pool, stream) for _ in range(_ROUNDS + 1)]
            return statistics.median(times[1:])

        large = _pieces(gpu, pool, 1, _LARGE_BYTES, random)
        chunks = _pieces(gpu, pool, layout.chunks, layout.chunk_bytes, random)
        small = _pieces(gpu, pool, 1, 16 << 10, random)
        for to_pool, side in ((True, "to the pool"), (False, "from the pool")):
            rate = _LARGE_BYTES / seconds(large, Method.MEMCPY, to_pool) / 1e9
            found[f"one cudaMemcpy of {_LARGE_BYTES >> 20} MiB {side}, GB/s"] = round(rate, 2)
            for method in mover.methods(stream):
                rate = layout.block_bytes / seconds(chunks, method, to_pool) / 1e9
                name = f"{layout.chunks} x {layout.chunk_bytes} bytes {side} by {method.value}"
                found[f"{name}, GB/s"] = round(rate, 2)
                if method is not Method.BATCH:
                    took = seconds(small, method, to_pool) * 1e6
                    found[f"16 KiB {side} by {method.value}, us"] = round(took, 2)
        found |= _blocks(cupy, mover, layout, pool, stream)
        if thresholds:

            def run(method: Method, to_pool: bool, npieces: int, piece_bytes: int) -> float:
                transfer = _pieces(gpu, pool, npieces, piece_bytes, random)
                registration.ensure(transfer.pieces["pool"], piece_bytes)
                return mover.time_one(transfer, method, to_pool, stream)

            top = pool.nbytes // 128  # of the longest list
            sizes = tuple(size for size in SIZES if size <= top)
            choice = measure(run, methods=mover.methods(stream), source=card, sizes=sizes)
            found["thresholds"] = asdict(choice)
        mover.close()
    return found


def _blocks(
    cupy: Any, mover: CudaMover, layout: Layout, pool: np.ndarray[Any, Any], stream: Any
) -> dict[str, Any]:
    """Many blocks in one call, by the kernel that computes the addresses itself."""
    nblocks = min(64, pool.nbytes // layout.block_bytes)
    shape = (layout.layers, layout.kv, nblocks, layout.block_tokens, layout.heads, layout.head_dim)
    tensor = cupy.zeros(shape, f"u{layout.dtype_bytes}")
    cache = PagedCache.from_tensors(layout, [tensor], "lkpthd")
    views = pool[: nblocks * layout.block_bytes].reshape(nblocks, -1)
    blocks, pages = Blocks.of(views), np.random.default_rng(1).permutation(nblocks)
    found = {}
    for name, call in (("gather", mover.gather_write), ("scatter", mover.scatter_read)):
        times = []
        for _ in range(_ROUNDS + 1):
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record(stream)
            ticket = call(cache, pages, blocks, stream=stream)
            end.record(stream)
            ticket.wait()
            end.synchronize()
            times.append(cupy.cuda.get_elapsed_time(begin, end) / 1e3)
        rate = nblocks * layout.block_bytes / statistics.median(times[1:]) / 1e9
        found[f"{name} of {nblocks} blocks in one call, GB/s"] = round(rate, 2)
    return found

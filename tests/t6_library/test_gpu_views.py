"""Leased blocks as arrays of a GPU, against stand-ins: addresses, lifetimes, errors.

The stand-ins take what CuPy 14 and torch 2.13 take; none of this has met a GPU.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import belugafs
from belugafs.gpu import Gpu
from belugafs.kernels import cudart
from belugafs.kernels.cudart import CudaError
from belugafs.kernels.registration import RegistrationError

pytestmark = pytest.mark.flat_pool

BLOCK_BYTES = 300 << 10
CHUNK_BYTES = 1 << 30


class Runtime:
    """Of CUDA: what is registered, and how."""

    def __init__(self) -> None:
        self.registered: dict[int, int] = {}
        self.flags = 0
        self.refuse = False

    def host_register(self, address: int, nbytes: int, flags: int) -> None:
        if self.refuse:
            raise CudaError("cudaHostRegister", 2, "cudaErrorMemoryAllocation", "out of memory")
        self.registered[address] = nbytes
        self.flags = flags

    def host_unregister(self, address: int) -> None:
        del self.registered[address]

    def device_pointer(self, address: int) -> int:
        return address

    def knows(self, address: int, nbytes: int) -> bool:
        return any(
            at <= address and address + nbytes <= at + n for at, n in self.registered.items()
        )


def memory_at(address: int, nbytes: int, owner: Any) -> np.ndarray[Any, Any]:
    raw = (ctypes.c_ubyte * nbytes).from_address(address)
    raw.owner = owner  # type: ignore[attr-defined]
    return np.frombuffer(raw, np.uint8)


class Cupy:
    """Arrays over memory that somebody else owns."""

    def __init__(self, runtime: Runtime) -> None:
        self.cuda = SimpleNamespace(
            Device=lambda: SimpleNamespace(id=3),
            UnownedMemory=self._memory,
            MemoryPointer=lambda memory, offset: (memory, offset),
        )
        self._runtime = runtime

    def _memory(self, address: int, nbytes: int, owner: Any, device: int) -> Any:
        assert device == 3
        assert not nbytes or self._runtime.knows(address, nbytes)
        return memory_at(address, nbytes, owner)

    def ndarray(self, shape: Any, dtype: Any, memptr: Any) -> Any:
        memory, offset = memptr
        assert offset == 0
        return memory.view(dtype).reshape(shape)


class Torch:
    """Takes the array interface as torch does: with a GPU's address, and not read-only."""

    def __init__(self, runtime: Runtime) -> None:
        self.uint8 = np.dtype(np.uint8)
        self.float16 = np.dtype(np.float16)
        self._runtime = runtime

    def device(self, name: str) -> Any:
        return SimpleNamespace(type=name.partition(":")[0])

    def empty(self, shape: Any, dtype: Any, device: str) -> Any:
        return np.empty(shape, dtype)

    def as_tensor(self, view: Any, dtype: Any, device: str) -> Any:
        face = view.__cuda_array_interface__
        address, readonly = face["data"]
        if readonly:
            raise TypeError("the read only flag is not supported, should always be False")
        assert (face["version"], face["typestr"], face["strides"]) == (3, "|u1", None)
        (nbytes,) = face["shape"]
        assert self._runtime.knows(address, nbytes)
        return memory_at(address, nbytes, view)


def content(number: int) -> bytes:
    return (np.arange(BLOCK_BYTES // 8, dtype=np.uint64) * np.uint64(number + 3)).tobytes()


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


@pytest.fixture
def pool(pool_file: Path) -> Iterator[belugafs.Pool]:
    with belugafs.connect(pool_file) as pool:
        core = pool._host.pool  # type: ignore[union-attr]
        ns = core.ns_create("llama")
        for number in range(4):
            core.block_put(ns, key(number), content(number))
        core.block_put(ns, key(9), b"")
        yield pool


@pytest.fixture
def runtime() -> Runtime:
    return Runtime()


def make(pool: belugafs.Pool, runtime: Runtime, **options: Any) -> Gpu:
    return Gpu(pool, runtime=runtime, cupy=Cupy(runtime), torch=Torch(runtime), **options)


def address_of(array: Any) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def test_no_copy(pool: belugafs.Pool, runtime: Runtime) -> None:
    with make(pool, runtime) as gpu, pool.namespace("llama").read([key(1), key(2)]) as blocks:
        assert runtime.registered == {}  # nothing was touched yet
        array = gpu.cupy(blocks[0], np.float16, (BLOCK_BYTES // 64, 32))
        assert address_of(array) == blocks[0].address
        assert array.dtype == np.float16 and array.shape == (BLOCK_BYTES // 64, 32)
        assert array.tobytes() == content(1)
        tensor = gpu.tensor(blocks[1], np.dtype(np.uint16), (2, BLOCK_BYTES // 4))
        assert address_of(tensor) == blocks[1].address
        assert tensor.tobytes() == content(2)
        assert gpu.tensor(blocks[1]).shape == (BLOCK_BYTES,)
        # The pool's mapping, from its start, once; the GPU may not store into it.
        assert runtime.registered == {pool._client.span[0]: pool._client.span[1]}
        assert runtime.flags & cudart.REGISTER_READ_ONLY
        assert gpu.registration.registered_bytes == pool._client.span[1]
        del array, tensor
    assert runtime.registered == {}


def test_the_array_interface(pool: belugafs.Pool, runtime: Runtime) -> None:
    with make(pool, runtime) as gpu, pool.namespace("llama").read([key(1)]) as blocks:
        view = gpu.view(blocks[0])
        face = view.__cuda_array_interface__
        assert face["data"] == (blocks[0].address, True)
        assert face["shape"] == (BLOCK_BYTES,)
        with pytest.raises(TypeError, match="read only"):
            Torch(runtime).as_tensor(view, None, "cuda")
        assert gpu.view(blocks[0], readonly=False).__cuda_array_interface__["data"][1] is False
        array = np.from_dlpack(view)  # by the stand-in's array, which is numpy's
        assert address_of(array) == blocks[0].address
        assert view.__dlpack_device__() == (1, 0)
        del view, array
        gc.collect()


def test_an_array_keeps_its_block_and_its_registration(
    pool: belugafs.Pool, runtime: Runtime
) -> None:
    gpu = make(pool, runtime)
    core = pool._host.pool  # type: ignore[union-attr]
    with pool.namespace("llama").read([key(0), key(1), key(2)]) as blocks:
        array, tensor = gpu.cupy(blocks[0]), gpu.tensor(blocks[1])
    assert pool._client.leases == 2
    for number in range(3):
        core.block_delete(core.ns_create("llama"), key(number))
    for number in range(1000, 1400):  # more than fits: whatever may be used again, is
        core.block_put(core.ns_create("llama"), key(number), content(number))
    assert array.tobytes() == content(0)
    assert tensor.tobytes() == content(1)
    with pytest.raises(RuntimeError, match="2 arrays or views of this pool are still in use"):
        gpu.close()
    assert array.tobytes() == content(0)
    del array
    gc.collect()
    assert pool._client.leases == 1
    del tensor
    gc.collect()
    assert pool._client.leases == 0
    gpu.close()
    assert runtime.registered == {}


def test_errors(pool: belugafs.Pool, runtime: Runtime) -> None:
    gpu = make(pool, runtime)
    ns = pool.namespace("llama")
    with ns.read([key(1), key(99), key(9)]) as blocks:
        for call in (gpu.cupy, gpu.tensor):
            with pytest.raises(ValueError, match=f"has {BLOCK_BYTES} bytes; float16 in shape"):
                call(blocks[0], np.dtype(np.float16), (7, 7))
            with pytest.raises(ValueError, match="no whole number"):
                call(blocks[0], np.dtype("V7"))
            with pytest.raises(ValueError, match="negative"):
                call(blocks[0], np.dtype(np.uint8), (-1, 4))
            with pytest.raises(belugafs.BlockMissing, match="isn't in the pool"):
                call(blocks[1], None if call == gpu.tensor else np.uint8, 0)
            assert call(blocks[2]).size == 0
        with pytest.raises(ValueError, match="Python objects"):
            gpu.cupy(blocks[0], object)
        with pytest.raises(ValueError, match="cpu is no CUDA device"):
            gpu.tensor(blocks[0], device="cpu")
        with pytest.raises(belugafs.BlockMissing):
            gpu.view(blocks[1])
        assert runtime.registered == {}
        runtime.refuse = True
        with pytest.raises(RegistrationError, match="ulimit"):
            gpu.cupy(blocks[0])
        runtime.refuse = False
        assert gpu.cupy(blocks[0]).nbytes == BLOCK_BYTES
    for call in (gpu.cupy, gpu.tensor, gpu.view):
        with pytest.raises(ValueError, match="lease is closed"):
            call(blocks[0])
    gc.collect()
    gpu.close()
    with ns.read([key(1)]) as blocks, pytest.raises(RegistrationError, match="closed"):
        gpu.view(blocks[0])


def test_a_block_across_two_registrations(pool: belugafs.Pool, runtime: Runtime) -> None:
    gpu = make(pool, runtime, chunk_bytes=4096)
    with pool.namespace("llama").read([key(1)]) as blocks:
        with pytest.raises(RegistrationError, match="across two registrations of 4096"):
            gpu.cupy(blocks[0])
        assert runtime.registered == {}
    gpu.close()


def test_evicted_blocks_are_missing(pool: belugafs.Pool, runtime: Runtime) -> None:
    core = pool._host.pool  # type: ignore[union-attr]
    core.evict(1 << 30)
    with make(pool, runtime) as gpu, pool.namespace("llama").read([key(1)]) as blocks:
        with pytest.raises(belugafs.BlockMissing, match="never stored, deleted or evicted"):
            gpu.cupy(blocks[0])
        with pytest.raises(belugafs.BlockMissing):
            gpu.tensor(blocks[0])


def test_without_the_libraries(pool: belugafs.Pool, runtime: Runtime) -> None:
    if importlib.util.find_spec("cupy"):
        pytest.skip("CuPy is installed")
    gpu = Gpu(pool, runtime=runtime)
    with pool.namespace("llama").read([key(1)]) as blocks, pytest.raises(ImportError, match="cupy"):
        gpu.cupy(blocks[0])
    gc.collect()
    gpu.close()

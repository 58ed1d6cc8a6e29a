"""Calls of the CUDA runtime library that CuPy doesn't have, by ctypes.

CuPy has neither ``cudaGetLastError`` (an error stays until it is asked for, and then turns up in
the next call of somebody else), nor ``cudaMemcpyBatchAsync``, nor the flags of
``cudaHostRegister``.

Every library of the runtime in a process works on the same context of the device, so it doesn't
matter that CuPy or torch has another copy of it. An error is kept per library and thread: it is
cleared through the library that reported it.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import glob
import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

REGISTER_PORTABLE = 1
REGISTER_MAPPED = 2
REGISTER_IO_MEMORY = 4
REGISTER_READ_ONLY = 8

ERROR_ALREADY_REGISTERED = 712
ERROR_NOT_REGISTERED = 713

_KIND_DEFAULT = 4
"""The runtime sees from the addresses which side is where."""

_ORDER_STREAM = 1
"""Sources are read in the order of the stream."""


class CudaMissing(ImportError):
    """No CUDA runtime library."""


class CudaError(RuntimeError):
    """A call failed: ``code`` is the runtime's."""

    def __init__(self, call: str, code: int, name: str, text: str) -> None:
        super().__init__(f"{call}: {name} ({code}): {text}")
        self.code = code


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class CopyAttributes(ctypes.Structure):
    """``struct cudaMemcpyAttributes``."""

    _fields_ = [
        ("srcAccessOrder", ctypes.c_int),
        ("srcLocHint", _Location),
        ("dstLocHint", _Location),
        ("flags", ctypes.c_uint),
    ]


def _candidates() -> Iterator[str]:
    """Where the library may be, best first."""
    if chosen := os.environ.get("BELUGAFS_CUDART"):
        yield chosen
        return
    with open("/proc/self/maps") as maps:
        loaded = re.search(r"/\S*libcudart\.so\S*", maps.read())
    if loaded:
        yield loaded.group()
    spec = find_spec("nvidia")  # NVIDIA's wheels, as CuPy and torch depend on them
    for place in spec.submodule_search_locations or [] if spec else []:
        yield from sorted(glob.glob(f"{place}/*/lib/libcudart.so.*"), reverse=True)
    if found := ctypes.util.find_library("cudart"):
        yield found
    yield from ("libcudart.so.13", "libcudart.so.12")
    yield from sorted(glob.glob("/usr/local/cuda/lib64/libcudart.so.*"), reverse=True)


class Cudart:
    """The library: ``path``, or the one that is found (``BELUGAFS_CUDART`` names one).

    CudaMissing: there is none. Every method raises CudaError, after it has cleared the error in the
    library. Addresses are those of this process. Safe for many threads.
    """

    def __init__(self, path: str | None = None) -> None:
        for candidate in [path] if path else _candidates():
            try:
                self._lib = ctypes.CDLL(candidate)
            except OSError:
                continue
            self.path = candidate
            break
        else:
            raise CudaMissing(
                "no CUDA runtime library (libcudart.so): install CuPy with its libraries "
                "(pip install 'cupy-cuda13x[ctk]'), or name it in BELUGAFS_CUDART"
            )
        self._lib.cudaGetErrorName.restype = ctypes.c_char_p
        self._lib.cudaGetErrorString.restype = ctypes.c_char_p
        version = ctypes.c_int()
        self._call("cudaRuntimeGetVersion", ctypes.byref(version))
        self.version = version.value
        """1000 * major + 10 * minor."""

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._lib, name)(*arguments)
        if code:
            # The copy in the library has to go, else an unrelated call reports it later. An error
            # that has ended the context stays whatever one does; the next call then says so.
            self._lib.cudaGetLastError()
            title = self._lib.cudaGetErrorName(code).decode()
            raise CudaError(name, code, title, self._lib.cudaGetErrorString(code).decode())

    def device_count(self) -> int:
        """CudaError: also when there is no driver, or no device."""
        count = ctypes.c_int()
        self._call("cudaGetDeviceCount", ctypes.byref(count))
        return count.value

    def host_register(self, address: int, nbytes: int, flags: int) -> None:
        """Pin ``nbytes`` from ``address`` on, and make them known to all devices."""
        self._call(
            "cudaHostRegister",
            ctypes.c_void_p(address),
            ctypes.c_size_t(nbytes),
            ctypes.c_uint(flags),
        )

    def host_unregister(self, address: int) -> None:
        self._call("cudaHostUnregister", ctypes.c_void_p(address))

    def device_pointer(self, address: int) -> int:
        """What the device calls a registered address."""
        pointer = ctypes.c_void_p()
        self._call(
            "cudaHostGetDevicePointer",
            ctypes.byref(pointer),
            ctypes.c_void_p(address),
            ctypes.c_uint(0),
        )
        return pointer.value or 0

    def memcpy_async(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        self._call(
            "cudaMemcpyAsync",
            ctypes.c_void_p(dst),
            ctypes.c_void_p(src),
            ctypes.c_size_t(nbytes),
            ctypes.c_int(_KIND_DEFAULT),
            ctypes.c_void_p(stream),
        )

    @property
    def has_batch(self) -> bool:
        """``cudaMemcpyBatchAsync``: since CUDA 12.8."""
        return self.version >= 12080 and hasattr(self._lib, "cudaMemcpyBatchAsync")

    def memcpy_batch_async(
        self,
        dst: NDArray[np.uint64],
        src: NDArray[np.uint64],
        nbytes: NDArray[np.uint64],
        stream: int,
    ) -> None:
        """Many copies in one call, in no order among themselves. ``stream`` must not be the default
        one (0, 1, 2): CUDA refuses it."""
        if not len(dst):
            return
        tables = [np.ascontiguousarray(table, np.uint64) for table in (dst, src, nbytes)]
        attributes = CopyAttributes(_ORDER_STREAM)
        first = ctypes.c_size_t(0)
        arguments: list[Any] = [ctypes.c_void_p(table.ctypes.data) for table in tables]
        arguments += [ctypes.c_size_t(len(dst)), ctypes.byref(attributes), ctypes.byref(first)]
        arguments.append(ctypes.c_size_t(1))
        if self.version < 13000:  # 12.8 and 12.9 also tell which copy failed
            arguments.append(ctypes.byref(ctypes.c_size_t()))
        self._call("cudaMemcpyBatchAsync", *arguments, ctypes.c_void_p(stream))

"""Whether memory can be pinned for long, as a GPU needs it of what it reads and writes itself.

Where there is a GPU, ``cudaHostRegister`` is what tells. Elsewhere the kernel is asked for the same
kind of pin by registering the memory as a buffer of an io_uring. Both pin and let go again.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import tempfile
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from belugafs.kernels.cudart import Cudart

_SYS_IO_URING_SETUP = 425  # the same on every architecture
_SYS_IO_URING_REGISTER = 427
_REGISTER_BUFFERS = 0
_PARAMS_BYTES = 120
_PROBE_BYTES = 64 << 10


class Pin(NamedTuple):
    """``works``: None where it could not be found out. ``how``: who was asked."""

    works: bool | None
    how: str
    text: str


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def pin(address: int, size_bytes: int) -> Pin:
    """Pin memory of this process for long, and let it go. At most 1 GiB for io_uring."""
    runtime = _cuda_runtime()
    if runtime is None:
        return pin_by_io_uring(address, size_bytes)
    return _pin_by_cuda(runtime, address, size_bytes)


def pin_by_io_uring(address: int, size_bytes: int) -> Pin:
    """The same, without looking for a GPU."""
    how = "io_uring"
    libc = ctypes.CDLL(None, use_errno=True)
    params = ctypes.create_string_buffer(_PARAMS_BYTES)
    fd = libc.syscall(_SYS_IO_URING_SETUP, 1, params)
    if fd < 0:
        error = ctypes.get_errno()
        return Pin(None, how, f"can't be tried: there is no io_uring ({os.strerror(error)})")
    try:
        vector = _IoVec(address, size_bytes)
        if not libc.syscall(_SYS_IO_URING_REGISTER, fd, _REGISTER_BUFFERS, ctypes.byref(vector), 1):
            return Pin(True, how, "can be pinned")
        error = ctypes.get_errno()
    finally:
        os.close(fd)
    if error == errno.ENOMEM:
        return Pin(None, how, "is more than may be locked; raise that: ulimit -l unlimited")
    return Pin(False, how, f"can't be pinned ({os.strerror(error)})")


def _cuda_runtime() -> "Cudart | None":
    """The CUDA runtime, where there is one, and a GPU."""
    with contextlib.suppress(ImportError):  # no runtime; or the kernels aren't built
        from belugafs.kernels.cudart import CudaError, Cudart

        with contextlib.suppress(CudaError):
            runtime = Cudart()
            return runtime if runtime.device_count() else None
    return None


def _pin_by_cuda(runtime: "Cudart", address: int, size_bytes: int) -> Pin:
    from belugafs.kernels.cudart import REGISTER_PORTABLE, CudaError

    how = "cudaHostRegister"
    try:
        runtime.host_register(address, size_bytes, REGISTER_PORTABLE)
    except CudaError as error:
        return Pin(False, how, f"can't be pinned ({error})")
    runtime.host_unregister(address)
    return Pin(True, how, "can be pinned")


# ---- of a mount --------------------------------------------------------------------------------


def pin_of_directory(path: str) -> Pin:
    """Of what a process gets that makes a file there, and maps it. The file has no name and is gone
    at once; 64 KiB. Raises OSError where it can't be made."""
    with tempfile.TemporaryFile(dir=path, buffering=0) as file:
        file.write(bytes(_PROBE_BYTES))
        return pin_of_file(file.fileno(), _PROBE_BYTES)


def pin_of_file(fd: int, size_bytes: int) -> Pin:
    """Of a shared mapping of an open file, from its beginning on. Raises OSError."""
    with mmap.mmap(fd, size_bytes) as mapping:
        return pin(address_of(mapping), size_bytes)


def address_of(mapping: mmap.mmap) -> int:
    """Where it begins, which is so until it is closed."""
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))

"""Pool memory known to the GPU: registered lazily, in chunks.

Registering (``cudaHostRegister``) pins pages at about 0.1 s per GB, and one call of 512 GiB or more
fails. So a pool is never registered whole, nor file by file: the first transfer that touches a
chunk registers that chunk, once for the life of the mapping.

Chunks are counted from the mapping's start, so that all of one pool agree whatever is touched
first. A copy must not cross two registrations (CUDA looks at where it starts), hence :meth:`split`.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from belugafs.kernels import cudart
from belugafs.kernels.cudart import CudaError, Cudart

CHUNK_BYTES_MAX = 64 << 30
CHUNK_BYTES = 1 << 30
"""A tenth of a second when a chunk is first touched; a pool of 1 TiB has a thousand of them."""


class RegistrationError(RuntimeError):
    """A part of the pool can't be made known to the GPU."""


class PoolRegistration:
    """A mapping of a pool, ``nbytes`` from ``address`` on. Safe for many threads.

    ``readonly``: of a mapping without write permission; CUDA then refuses to write to it.
    ``chunk_bytes``: a multiple of the page size, at most 64 GiB. ``io_memory``: memory without page
    structures (a PCI window). Close it before the mapping goes.
    """

    def __init__(
        self,
        runtime: Cudart,
        address: int,
        nbytes: int,
        *,
        readonly: bool = False,
        chunk_bytes: int = CHUNK_BYTES,
        io_memory: bool = False,
    ) -> None:
        if not 0 < chunk_bytes <= CHUNK_BYTES_MAX or chunk_bytes % mmap.PAGESIZE:
            raise ValueError(
                f"chunk_bytes is {chunk_bytes}: a multiple of {mmap.PAGESIZE}, at most 64 GiB"
            )
        if address % mmap.PAGESIZE:
            raise ValueError(f"address {address:#x}: a mapping starts on a page")
        self.address = address
        self.nbytes = nbytes
        self.chunk_bytes = chunk_bytes
        self._runtime = runtime
        self._flags = cudart.REGISTER_PORTABLE | cudart.REGISTER_MAPPED
        self._flags |= cudart.REGISTER_READ_ONLY if readonly else 0
        self._flags |= cudart.REGISTER_IO_MEMORY if io_memory else 0
        self._lock = threading.Lock()
        self._known = np.zeros(-(-nbytes // chunk_bytes), bool)
        self._own: set[int] = set()
        self._closed = False

    @property
    def registered_bytes(self) -> int:
        """Of chunks that this object registered and has not given back."""
        with self._lock:
            return sum(self._size(chunk) for chunk in self._own)

    def ensure(self, addresses: NDArray[np.uint64], nbytes: int | NDArray[np.uint64]) -> None:
        """Make ``nbytes`` from each of ``addresses`` known. RegistrationError says why not; what
        was registered on the way stays. ValueError: outside of the mapping."""
        if not len(addresses):
            return
        start = addresses.astype(np.uint64) - np.uint64(self.address)
        end = start + np.asarray(nbytes, np.uint64)
        # An address before the mapping is a huge number by now.
        if start.max() >= self.nbytes or end.max() > self.nbytes:
            raise ValueError("addresses outside of the mapping that was to be registered")
        first = start // np.uint64(self.chunk_bytes)
        last = (np.maximum(end, start + np.uint64(1)) - np.uint64(1)) // np.uint64(self.chunk_bytes)
        low, high = int(first.min()), int(last.max()) + 1
        if self._known[low:high].all() and not self._closed:
            return
        touched = np.zeros(high - low + 1, np.int64)
        np.add.at(touched, first.astype(np.int64) - low, 1)
        np.add.at(touched, last.astype(np.int64) - low + 1, -1)
        for chunk in low + np.flatnonzero(np.cumsum(touched)[:-1]):
            self._register(int(chunk))

    def _size(self, chunk: int) -> int:
        return min(self.chunk_bytes, self.nbytes - chunk * self.chunk_bytes)

    def _register(self, chunk: int) -> None:
        address, nbytes = self.address + chunk * self.chunk_bytes, self._size(chunk)
        with self._lock:
            if self._closed:
                raise RegistrationError("the registration of this mapping was closed")
            if self._known[chunk]:
                return
            try:
                self._runtime.host_register(address, nbytes, self._flags)
                self._own.add(chunk)
            except CudaError as error:
                if error.code != cudart.ERROR_ALREADY_REGISTERED:
                    raise RegistrationError(
                        f"{nbytes} bytes of the pool can't be registered with the GPU: {error}. "
                        "Memory that can be pinned is needed (tmpfs, hugetlbfs or devdax; not a "
                        "mapping through plain FUSE), and as much of it as ulimit -l allows"
                    ) from error
                self._check_foreign(address, nbytes)
            self._check_address(chunk, address)
            self._known[chunk] = True

    def _check_foreign(self, address: int, nbytes: int) -> None:
        """Somebody else in this process registered some of it. All of it is fine."""
        try:
            for at in range(address, address + nbytes, min(nbytes, 2 << 20)):
                self._runtime.device_pointer(at)
            self._runtime.device_pointer(address + nbytes - 1)
        except CudaError as error:
            raise RegistrationError(
                "a part of the pool is registered by somebody else in this process, and others "
                f"of the same {nbytes} bytes are not: register it in one place only"
            ) from error

    def _check_address(self, chunk: int, address: int) -> None:
        if self._runtime.device_pointer(address) == address:
            return
        if chunk in self._own:
            self._own.remove(chunk)
            self._runtime.host_unregister(address)
        raise RegistrationError(
            "this GPU has another address for registered memory than the processor: transfers need "
            "unified addressing (every data centre GPU on 64-bit Linux has it)"
        )

    def split(self, pieces: NDArray[Any]) -> NDArray[Any]:
        """The same pieces, cut where the pool's side crosses from one chunk into the next."""
        while True:
            start = pieces["pool"] - np.uint64(self.address)
            left = np.uint64(self.chunk_bytes) - start % np.uint64(self.chunk_bytes)
            crossing = np.flatnonzero(pieces["nbytes"] > left)
            if not crossing.size:
                return pieces
            rest = pieces[crossing].copy()
            pieces = pieces.copy()
            pieces["nbytes"][crossing] = left[crossing]
            for name in ("engine", "pool"):
                rest[name] += left[crossing]
            rest["nbytes"] -= left[crossing]
            pieces = np.insert(pieces, crossing + 1, rest)

    def close(self) -> None:
        """Give all back. No transfer may be under way. The first error, after all were tried."""
        errors = []
        with self._lock:
            self._closed = True
            for chunk in sorted(self._own):
                try:
                    self._runtime.host_unregister(self.address + chunk * self.chunk_bytes)
                except CudaError as error:
                    errors.append(error)
            self._own.clear()
            self._known[:] = False
        if errors:
            raise errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(CudaError):
            self.close()

"""Copies by the processor: any number of blocks in one call, checksums beside the copy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from belugafs.kernels import _copy
from belugafs.kernels.layout import Blocks, PagedCache, Transfer


class CpuTicket:
    """A transfer that is done. ``sums``: shape (blocks, checksums of a block), or None."""

    done = True

    def __init__(self, sums: NDArray[np.uint64] | None) -> None:
        self.sums = sums

    def wait(self) -> None:
        return None


class CpuMover:
    """Copies in the calling thread and in helpers, without the GIL. Safe for many threads at once.

    ``threads``: at most so many; 0: one for each 8 MiB, at most 8 and the number of processors.
    ``around_cache``: stores go around the cache (and are in memory afterwards), or don't; None:
    they do in a transfer of 1 MiB or more. It must be True for gather-write to a pool without
    coherence, and ``fresh`` for scatter-read from one: lines are dropped before they are read.
    ``sum_bytes``: unit of checksums, a multiple of 64 (the pool's ``chunk_bytes``); 0: none. Their
    algorithm is the pool's (docs/format.md, section 3).
    """

    name = "cpu"
    needs_registration = False

    def __init__(
        self,
        *,
        threads: int = 0,
        around_cache: bool | None = None,
        fresh: bool = False,
        sum_bytes: int = 0,
    ) -> None:
        if sum_bytes % 64:
            raise ValueError(f"sum_bytes is {sum_bytes}: it must be a multiple of 64")
        self.threads = threads
        self.sum_bytes = sum_bytes
        self._flags = {None: 0, True: _copy.STREAM, False: _copy.CACHED}[around_cache]
        self._read_flags = self._flags | (_copy.FRESH if fresh else 0)

    def gather_write(
        self, cache: PagedCache, pages: ArrayLike, blocks: Blocks, *, stream: Any = None
    ) -> CpuTicket:
        """Engine to pool; done on return. The errors are ``PagedCache.transfer``'s, and OSError
        (EIO) when memory failed (``_copy.guard_install``)."""
        _no_stream(stream)
        return self.run(cache.transfer(pages, blocks), to_pool=True)

    def scatter_read(
        self, cache: PagedCache, pages: ArrayLike, blocks: Blocks, *, stream: Any = None
    ) -> CpuTicket:
        """Pool to engine; done on return. With ``sum_bytes``, the ticket's sums are of what was
        read: compare them with those recorded before the engine uses the data."""
        _no_stream(stream)
        return self.run(cache.transfer(pages, blocks), to_pool=False)

    def run(self, transfer: Transfer, *, to_pool: bool) -> CpuTicket:
        """A transfer that is made already: the same pages and blocks again, or one's own list."""
        addresses, nbytes = transfer.blocks
        table = np.empty((len(addresses), 3), np.uint64)
        table[:, 0] = addresses
        table[:, 1] = nbytes
        table[:, 2] = transfer.counts
        sums = None
        if self.sum_bytes:
            sums = np.empty((len(addresses), -(-nbytes // self.sum_bytes)), np.uint64)
        _copy.move(
            table,
            transfer.pieces,
            flags=(self._flags | _copy.TO_POOL) if to_pool else self._read_flags,
            sum_bytes=self.sum_bytes,
            sums=sums,
            threads=self.threads,
        )
        return CpuTicket(sums)

    def copy(self, dst: Any, src: Any, *, to_pool: bool) -> NDArray[np.uint64] | None:
        """One buffer into another of the same size; the checksums, if any are asked for."""
        sums = None
        if self.sum_bytes:
            sums = np.empty(-(-memoryview(src).nbytes // self.sum_bytes), np.uint64)
        _copy.copy(
            dst,
            src,
            flags=(self._flags | _copy.TO_POOL) if to_pool else self._read_flags,
            sum_bytes=self.sum_bytes,
            sums=sums,
            threads=self.threads,
        )
        return sums


def _no_stream(stream: Any) -> None:
    if stream is not None:
        raise ValueError("a copy by the processor is done on return: it takes no stream")

"""CPU copies between an engine's memory and a pool (kernels/bfk.h).

Tables are buffers of native integers, one row after the other:

======  ========================================================================
piece   engine address, pool address, nbytes: 3 words of 64 bits
part    engine, page_stride, row_pitch, pool_offset, pool_page_stride (64 bits
        each), rows, row_bytes (32 bits each)
block   pool address, nbytes, number of its pieces: 3 words of 64 bits
page    a page's number: 32 bits
sum     XXH3-64, 0 stored as 1: 64 bits
======  ========================================================================

Addresses are not checked: use :mod:`belugafs.kernels.layout`. All copying runs without the GIL.
"""

from typing import Any, TypeAlias

from _typeshed import ReadableBuffer, WriteableBuffer
from numpy.typing import NDArray

# Before Python 3.12 type checkers don't know that an array is a buffer.
Table: TypeAlias = ReadableBuffer | NDArray[Any]
Results: TypeAlias = WriteableBuffer | NDArray[Any]

TO_POOL: int
STREAM: int
CACHED: int
FRESH: int

def move(
    blocks: Table,
    pieces: Table,
    *,
    flags: int = 0,
    sum_bytes: int = 0,
    sums: Results | None = None,
    threads: int = 0,
) -> None:
    """Copy blocks of pieces; ``sums``: of each block in turn one for each started ``sum_bytes``.

    ValueError: tables that don't fit each other. OSError (EIO): memory failed, see
    :func:`guard_install`.
    """

def copy(
    dst: Results,
    src: Table,
    *,
    flags: int = 0,
    sum_bytes: int = 0,
    sums: Results | None = None,
    threads: int = 0,
) -> None:
    """Copy one buffer into another of the same size."""

def sum_chunks(p: Table, sum_bytes: int, sums: Results, /) -> None:
    """Checksums of what is there, one for each started ``sum_bytes``."""

def expand(
    parts: Table,
    pages: Table,
    pages_per_block: int,
    npages: int,
    blocks: Table,
    pieces: Results,
    counts: Results,
    /,
) -> int:
    """Pieces of blocks, given by pool addresses; their number. IndexError: a page out of range."""

def twin_pieces(
    pieces: int,
    npieces: int,
    tiles: int,
    tile_bytes: int,
    to_pool: bool,
    workers: int,
    lanes: int,
    /,
) -> tuple[int, int]:
    """The GPU's kernel for lists, on the CPU: loads of 16 bytes, and of fewer. For tests.

    OSError (EFAULT): an access was not aligned to its size.
    """

def twin_paged(
    parts: int,
    nparts: int,
    pages: int,
    pages_per_block: int,
    blocks: int,
    nblocks: int,
    rows_max: int,
    tiles_max: int,
    tile_bytes: int,
    to_pool: bool,
    workers: int,
    lanes: int,
    /,
) -> tuple[int, int]:
    """The same for paged caches."""

def plain_copy(dst: Results, src: Table, how: int, /) -> None:
    """One thread, for measuring: 0 memcpy, 1 ``rep movsb``, 2 plain loops, 3 around the cache."""

def isas() -> list[str]:
    """Instruction sets with loops here that this processor has, best first."""

def isa() -> str: ...
def set_isa(name: str, /) -> None: ...
def stream_min() -> int:
    """Bytes from which on a job's stores go around the cache, if its flags don't say."""

def set_stream_min(nbytes: int, /) -> None: ...
def guard_install() -> None:
    """From now on failing memory is an OSError (EIO) of the call, not the end of the process."""

def cuda_source() -> tuple[str, str]:
    """``transfer.h`` and ``transfer.cu``, as this module was built with them."""

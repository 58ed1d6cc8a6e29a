"""What all parts of :mod:`belugafs.pool` share: its errors, PoolInfo, and touching mapped bytes.

Bytes of a pool are copied by the kernel here (``write`` from the mapping, ``read`` into it),
never by Python's own loads and stores: where a page cannot be had (a full tmpfs, a device that
is shorter than it says, poisoned memory) the kernel answers EFAULT, and a load would be a SIGBUS.
"""

import errno
import mmap
import os
from dataclasses import dataclass
from typing import Literal

from belugafs.exits import Exit
from belugafs.units import KIB, MIB

Kind = Literal["file", "tmpfs", "hugetlbfs", "devdax", "directory"]

GRANULE_BYTES = 4 * KIB
DAX_PAGE_BYTES = 2 * MIB


class PoolError(Exception):
    """A pool cannot be used. The text says what is wrong and what to do about it."""

    def __init__(self, message: str, exit_code: Exit) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Holder:
    """A process that has a pool open, mapped or locked."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"{self.pid} ({self.command})" if self.command else str(self.pid)


class PoolInUse(PoolError):
    """Somebody else holds the pool. ``holders`` is empty where they cannot be seen (another
    pid namespace, no permission)."""

    def __init__(self, message: str, holders: tuple[Holder, ...] = ()) -> None:
        super().__init__(message, Exit.IN_USE)
        self.holders = holders


@dataclass(frozen=True)
class PoolInfo:
    """What a path is, as a place for a pool.

    size_bytes is what can be used: ``file_bytes`` rounded down to 2 MiB (devdax), to the huge
    page (hugetlbfs) or to 4 KiB; the tail is left alone. page_bytes is the granularity of
    offsets and lengths in mmap. numa_node is the node that the memory is bound to, None where
    it is not bound or not known. A PoolInfo with ``exists=False`` describes a file to be made.
    """

    path: str
    kind: Kind
    size_bytes: int
    page_bytes: int
    numa_node: int | None
    exists: bool
    file_bytes: int = 0
    allocated_bytes: int = 0
    """Bytes that have storage or memory behind them; the rest is holes."""
    fs_type: str = ""
    mount_point: str = ""
    huge: str | None = None
    """The ``huge=`` option of the tmpfs; None where there is no such option."""
    capacity_bytes: int = 0
    """Of a directory pool: of its tmpfs; size_bytes is that of the metadata."""
    notes: tuple[str, ...] = ()
    """What is worse here than it could be, one sentence each."""


def mapped_path(info: PoolInfo) -> str:
    """The file or device of a pool that is opened, locked and mapped."""
    return os.path.join(info.path, "meta") if info.kind == "directory" else info.path


def round_down(value: int, step: int) -> int:
    """The largest multiple of step that is not above value."""
    return value - value % step


def round_up(value: int, step: int) -> int:
    """The smallest multiple of step that is not below value."""
    return -(-value // step) * step


def map_range(fd: int, offset: int, length: int, *, write: bool) -> mmap.mmap:
    """Map a range of a pool, shared. Both numbers must be multiples of the pool's page_bytes.

    Raises OSError; ValueError where a regular file is shorter.
    """
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if write else 0)
    return mmap.mmap(fd, length, flags=mmap.MAP_SHARED, prot=prot, offset=offset)


def read_range(fd: int, info: PoolInfo, offset: int, length: int) -> bytes:
    """Copy bytes out of a pool of any kind; fewer at the end of a file. Raises OSError."""
    if info.kind != "devdax":
        return _read_file(fd, offset, length)
    start = round_down(offset, info.page_bytes)
    stop = round_up(offset + length, info.page_bytes)
    scratch_fd = os.memfd_create("belugafs-read", os.MFD_CLOEXEC)
    try:
        with (
            map_range(fd, start, stop - start, write=False) as mapping,
            memoryview(mapping) as whole,
            whole[offset - start : offset - start + length] as part,
        ):
            if os.pwrite(scratch_fd, part, 0) != length:
                raise OSError(errno.EIO, "part of the device cannot be read")
        return _read_file(scratch_fd, 0, length)
    finally:
        os.close(scratch_fd)


def zero_range(fd: int, info: PoolInfo, offset: int, length: int) -> None:
    """Overwrite bytes of a pool of any kind with zeros. Raises OSError.

    Neither hugetlbfs nor devdax has write(2), so this goes through a mapping for every kind.
    """
    start = round_down(offset, info.page_bytes)
    stop = round_up(offset + length, info.page_bytes)
    if info.kind != "devdax":
        stop = min(stop, os.fstat(fd).st_size)  # mmap itself rounds the end of a file up
    zero_fd = os.open("/dev/zero", os.O_RDONLY | os.O_CLOEXEC)
    try:
        with (
            map_range(fd, start, stop - start, write=True) as mapping,
            memoryview(mapping) as whole,
            whole[offset - start : offset - start + length] as part,
        ):
            if os.readv(zero_fd, [part]) != length:
                raise OSError(errno.EIO, "part of the pool cannot be written")
    finally:
        os.close(zero_fd)


def _read_file(fd: int, offset: int, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        part = os.pread(fd, length - len(parts), offset + len(parts))
        if not part:
            break
        parts += part
    return bytes(parts)

"""Give a pool all of its memory before the first block is written.

A sparse pool on a filesystem that fills up is a SIGBUS in whoever stores next, and a fresh page
costs more than ten times what a store to an old one does. So mkfs takes the pages here, once,
where "not enough" is still an ordinary error.

Nothing that lies in the pool already is changed. If it fails, a file that was made longer gets
its former length back.
"""

import ctypes
import errno
import mmap
import os
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from belugafs._pool import host
from belugafs._pool.base import PoolError, PoolInfo, map_range
from belugafs.exits import Exit
from belugafs.units import MIB, format_size

STEP_BYTES = 64 * MIB

# Not in Python's mmap module before 3.13 or so; Linux >= 5.14.
_MADV_POPULATE_WRITE = 23

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all); the last call has both equal."""


@dataclass(frozen=True)
class Allocation:
    """What came of it. huge_fraction is the part of the pool in huge pages, 0 to 1: known for
    hugetlbfs and devdax, sampled for tmpfs."""

    populated_bytes: int
    huge_fraction: float


def allocate_and_populate(
    fd: int,
    info: PoolInfo,
    size_bytes: int,
    progress: Progress,
    sparse: bool,
    *,
    ignore_memory: bool = False,
) -> Allocation:
    """Give the first size_bytes of a pool storage and memory, or, with ``sparse``, only length.

    ``size_bytes`` is a multiple of 4 KiB (of page_bytes for hugetlbfs and devdax). A file that
    is longer stays as long as it is. ``ignore_memory`` skips the check that the memory of a
    tmpfs pool is there. Interruptible between steps of 64 MiB.

    Raises PoolError: NO_SPACE, NO_MEMORY, NO_HUGEPAGES, TOO_LARGE, IO_ERROR, UNSUPPORTED.
    """
    if info.kind == "devdax":
        if size_bytes > info.size_bytes:
            raise PoolError(
                f"{info.path} has {format_size(info.size_bytes)}, less than "
                f"{format_size(size_bytes)}: mkfs without --size takes all of it",
                Exit.TOO_LARGE,
            )
        # The memory is there, and page tables end with the mapping: prove the end, no more.
        # (The kernel maps beyond the end of such a device without complaint.)
        last = size_bytes - info.page_bytes
        _populate(fd, info, last, info.page_bytes)
        progress(size_bytes, size_bytes)
        return Allocation(size_bytes, 1.0 if info.page_bytes >= 2 * MIB else 0.0)

    former_bytes = os.fstat(fd).st_size
    try:
        if sparse:
            _check_space(fd, info, size_bytes)  # or the pool could not be opened for writing
            if former_bytes < size_bytes:
                with _enlarging(fd, info, size_bytes):
                    os.ftruncate(fd, size_bytes)
            progress(size_bytes, size_bytes)
            return Allocation(0, 1.0 if info.kind == "hugetlbfs" else 0.0)
        _check_room(fd, info, size_bytes, ignore_memory=ignore_memory)
        return _take(fd, info, size_bytes, progress)
    except BaseException:
        if former_bytes < os.fstat(fd).st_size:
            os.ftruncate(fd, former_bytes)
        raise


def _check_room(fd: int, info: PoolInfo, size_bytes: int, *, ignore_memory: bool) -> None:
    """Refuse early and by name what cannot work: filling a filesystem to the brim only to find
    that the pool doesn't fit would hurt everybody else on it."""
    need_bytes = size_bytes - min(info.allocated_bytes, size_bytes)
    limit_bytes = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit_bytes not in (resource.RLIM_INFINITY, -1) and size_bytes > limit_bytes:
        raise PoolError(
            f"a file of {format_size(size_bytes)} is above this process's limit of "
            f"{format_size(limit_bytes)} (ulimit -f); raise the limit or make a smaller pool",
            Exit.TOO_LARGE,
        )
    _check_space(fd, info, size_bytes)
    if info.kind == "hugetlbfs":
        _check_huge_pages(info, size_bytes, need_bytes)
    elif info.kind == "tmpfs" and not ignore_memory:
        memory = host.available_memory(info.numa_node)
        if memory is not None and need_bytes > memory.available_bytes:
            raise PoolError(
                f"{info.path} needs {format_size(need_bytes)} of memory, but only "
                f"{format_size(memory.available_bytes)} is left by {memory.bound}; make a "
                "smaller pool or free memory (--force tries it all the same, at the risk that "
                "the kernel kills processes)",
                Exit.NO_MEMORY,
            )


def _check_space(fd: int, info: PoolInfo, size_bytes: int) -> None:
    free_bytes = free_space(fd)
    if free_bytes is not None and size_bytes - info.allocated_bytes > free_bytes:
        raise _no_space(fd, info, size_bytes)


def _check_huge_pages(info: PoolInfo, size_bytes: int, need_bytes: int) -> None:
    pages = host.huge_pages(info.page_bytes)
    if pages is None:
        return
    need_pages = -(-need_bytes // info.page_bytes)
    if need_pages > pages.available:
        raise _no_huge_pages(info, size_bytes, need_pages, pages)


def _no_huge_pages(
    info: PoolInfo, size_bytes: int, need_pages: int, pages: host.HugePages
) -> PoolError:
    setting = pages.setting.format(pages.total + need_pages - pages.available)
    return PoolError(
        f"{info.path} of {format_size(size_bytes)} needs {need_pages} more huge pages of "
        f"{format_size(info.page_bytes)}, and {pages.available} are free; add the missing ones: "
        f"{setting}",
        Exit.NO_HUGEPAGES,
    )


def free_space(fd: int) -> int | None:
    """Bytes that this user may still allocate in the filesystem of an open file; None where the
    filesystem has no limit of its own (tmpfs with size=0, most hugetlbfs mounts)."""
    stats = os.fstatvfs(fd)
    if stats.f_blocks == 0:
        return None
    return (stats.f_bfree if os.geteuid() == 0 else stats.f_bavail) * stats.f_frsize


def _no_space(fd: int, info: PoolInfo, size_bytes: int) -> PoolError:
    free_bytes = free_space(fd)
    free = "none" if free_bytes is None else format_size(free_bytes)
    where = f" ({info.fs_type} on {info.mount_point})" if info.mount_point else ""
    advice = "free some, or make a smaller pool"
    if info.kind == "tmpfs" and info.mount_point:
        advice += f", or enlarge it: mount -o remount,size=... {info.mount_point}"
    return PoolError(
        f"{info.path} of {format_size(size_bytes)} does not fit: {free} is free in its "
        f"filesystem{where}; {advice}",
        Exit.NO_SPACE,
    )


def _take(fd: int, info: PoolInfo, size_bytes: int, progress: Progress) -> Allocation:
    # fallocate has no mapping to take the advice for huge pages from, so it would fill a tmpfs
    # with huge=advise with small pages; on hugetlbfs the first mapping reserves all pages at
    # once, which fallocate in steps doesn't.
    by_mapping = info.kind == "hugetlbfs" or info.huge == "advise"
    if by_mapping:
        if os.fstat(fd).st_size < size_bytes:
            with _enlarging(fd, info, size_bytes):
                os.ftruncate(fd, size_bytes)
        reservation = _reserve(fd, info, size_bytes)
    else:
        reservation = None
        for offset in range(0, size_bytes, STEP_BYTES):
            with _enlarging(fd, info, size_bytes):
                os.posix_fallocate(fd, offset, min(STEP_BYTES, size_bytes - offset))
    try:
        return _populate_all(fd, info, size_bytes, progress)
    finally:
        if reservation is not None:
            reservation.close()


def _reserve(fd: int, info: PoolInfo, size_bytes: int) -> mmap.mmap | None:
    """Map a whole hugetlbfs file: the kernel sets its pages aside then, or says ENOMEM."""
    if info.kind != "hugetlbfs":
        return None
    try:
        return map_range(fd, 0, size_bytes, write=True)
    except OSError as error:
        pages = host.huge_pages(info.page_bytes)
        if error.errno != errno.ENOMEM or pages is None:
            raise PoolError(f"{info.path} cannot be mapped: {error}", Exit.UNSUPPORTED) from error
        need_pages = size_bytes // info.page_bytes
        raise _no_huge_pages(info, size_bytes, need_pages, pages) from error


def _populate_all(fd: int, info: PoolInfo, size_bytes: int, progress: Progress) -> Allocation:
    if info.kind == "file":
        memory = host.available_memory()
        if memory is not None and size_bytes > memory.available_bytes // 2:
            # The pages would be written out and dropped again before anybody uses them.
            progress(size_bytes, size_bytes)
            return Allocation(0, 0.0)
    step_bytes = max(STEP_BYTES, info.page_bytes)
    sample_every = max(1, size_bytes // step_bytes // 16)
    huge_bytes = sampled_bytes = 0
    progress(0, size_bytes)
    for index, offset in enumerate(range(0, size_bytes, step_bytes)):
        length = min(step_bytes, size_bytes - offset)
        sample = info.kind == "tmpfs" and index % sample_every == 0
        found = _populate(fd, info, offset, length, measure=sample)
        if sample:
            huge_bytes += found
            sampled_bytes += length
        progress(offset + length, size_bytes)
    if info.kind == "hugetlbfs":
        return Allocation(size_bytes, 1.0)
    return Allocation(size_bytes, min(1.0, huge_bytes / sampled_bytes) if sampled_bytes else 0.0)


def _populate(fd: int, info: PoolInfo, offset: int, length: int, *, measure: bool = False) -> int:
    """Make one range present and writable. Returns how many bytes of it are mapped by huge
    pages if asked to measure, else 0."""
    try:
        with map_range(fd, offset, length, write=True) as mapping:
            if info.kind == "tmpfs":
                _advise(mapping, mmap.MADV_HUGEPAGE)
            if not _advise(mapping, _MADV_POPULATE_WRITE):
                _touch(mapping, max(mmap.PAGESIZE, min(info.page_bytes, 2 * MIB)))
            return _huge_bytes(mapping) if measure else 0
    except (OSError, ValueError) as error:
        raise _populate_error(fd, info, error) from error


def _populate_error(fd: int, info: PoolInfo, error: Exception) -> PoolError:
    number = error.errno if isinstance(error, OSError) else None
    if info.kind == "devdax":
        return PoolError(
            f"the end of {info.path} cannot be mapped: {error}; the device is shorter than the "
            "kernel says, or its memory is damaged (see dmesg)",
            Exit.IO_ERROR,
        )
    if number == errno.EFAULT and info.kind != "hugetlbfs":
        return _no_space(fd, info, os.fstat(fd).st_size)
    if number in (errno.ENOMEM, errno.EFAULT):
        return PoolError(
            f"the kernel ran out of memory for {info.path}; make a smaller pool or free memory",
            Exit.NO_MEMORY,
        )
    return PoolError(f"{info.path} cannot be populated: {error}", Exit.IO_ERROR)


def _advise(mapping: mmap.mmap, advice: int) -> bool:
    """madvise over a whole mapping; False if the kernel doesn't know the advice."""
    while True:
        try:
            mapping.madvise(advice)
        except InterruptedError:
            continue
        except OSError as error:
            if error.errno == errno.EINVAL:
                return False
            raise
        return True


def _touch(mapping: mmap.mmap, page_bytes: int) -> None:
    """Populate on kernels before 5.14: store into each page what it holds. The range has its
    storage already, so there is no SIGBUS to fear but from broken memory."""
    for offset in range(0, len(mapping), page_bytes):
        mapping[offset] = mapping[offset]


def _huge_bytes(mapping: mmap.mmap) -> int:
    """How much of a tmpfs mapping the page tables hold in huge pages; 0 if not told."""
    anchor = ctypes.c_char.from_buffer(mapping)
    address = ctypes.addressof(anchor)
    del anchor  # or the mapping could not be closed
    try:
        smaps = Path("/proc/self/smaps").read_text(errors="replace")
    except OSError:
        return 0
    match = re.search(rf"^{address:x}-.*?^ShmemPmdMapped:\s+(\d+) kB$", smaps, re.M | re.S)
    return int(match[1]) * 1024 if match else 0


@contextmanager
def _enlarging(fd: int, info: PoolInfo, size_bytes: int) -> Iterator[None]:
    """Around a call that gives a file more length or storage: its errors, with what to do."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _no_space(fd, info, size_bytes) from error
        if error.errno == errno.EDQUOT:
            raise PoolError(
                f"{info.path} of {format_size(size_bytes)} is above your disk quota; "
                "make a smaller pool or have the quota raised",
                Exit.NO_SPACE,
            ) from error
        if error.errno == errno.EFBIG:
            raise PoolError(
                f"{format_size(size_bytes)} is more than a file may have in {info.mount_point} "
                f"({info.fs_type}); make a smaller pool",
                Exit.TOO_LARGE,
            ) from error
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise PoolError(
                f"the filesystem of {info.path} ({info.fs_type}) cannot allocate space in "
                "advance; use another one, or --sparse if it is never going to be full",
                Exit.UNSUPPORTED,
            ) from error
        raise PoolError(f"{info.path} cannot be made longer: {error}", Exit.IO_ERROR) from error

"""Pools: the one file or device that a belugafs lives in, or a directory.

Flat ones are of four kinds: a regular file, a tmpfs file, a hugetlbfs file, a DAX character device
(``/dev/daxX.Y``, which is how CXL memory shows up). A directory pool is a tmpfs of its own
(:mod:`belugafs._pool.directory`): what is opened, locked and mapped of it is its metadata, and the
directory of backing files is opened beside it. This module finds out what a path is, opens
and locks it, says what lies there, and gives a new pool its memory. It knows nothing of the
format behind the magic number, and it doesn't map pools: the C core does that from the
descriptor.

Everything that can be wrong with a path is a PoolError with an exit code of its own
(:mod:`belugafs.exits`) and a text that says what to do.

Locks: flock on the file or device itself, shared for mounts and tools, exclusive for what must
be alone (mkfs, a repairing fsck). The kernel drops it with the last descriptor, so there is no
stale lock. It holds among the processes of one host: for a device that several hosts share, the
host slots in the pool are what tells of the others; and two device nodes of one device (in two
containers) are two locks.
"""

import errno
import fcntl
import os
import stat
from typing import Literal

from belugafs._pool import directory, host, kinds
from belugafs._pool.alloc import Allocation, Progress, allocate_and_populate, free_space
from belugafs._pool.base import (
    GRANULE_BYTES,
    Holder,
    Kind,
    PoolError,
    PoolInfo,
    PoolInUse,
    map_range,
    mapped_path,
    read_range,
    zero_range,
)
from belugafs._pool.sniff import BELUGAFS, EMPTY, HEAD_BYTES, TAIL_BYTES, require_pool, sniff
from belugafs.closing import Closing
from belugafs.exits import Exit
from belugafs.units import format_size

__all__ = [
    "BELUGAFS",
    "EMPTY",
    "GRANULE_BYTES",
    "HEAD_BYTES",
    "TAIL_BYTES",
    "Allocation",
    "Holder",
    "Kind",
    "Lock",
    "OpenPool",
    "PoolError",
    "PoolInUse",
    "PoolInfo",
    "Progress",
    "allocate_and_populate",
    "inspect_pool",
    "is_directory_pool",
    "lock_pool",
    "map_range",
    "open_pool",
    "plan_new_pool",
    "read_range",
    "require_pool",
    "sniff",
    "users_of",
    "zero_range",
]

is_directory_pool = directory.is_pool

Lock = Literal["shared", "exclusive"] | None

# Where the blocks of a file say exactly what is allocated: no compression, no shared extents.
_EXACT_BLOCKS = frozenset({"tmpfs", "ext2", "ext3", "ext4", "xfs"})


def inspect_pool(path: str, *, for_write: bool = True, check_space: bool = True) -> PoolInfo:
    """Find out what an existing path is, without changing anything.

    ``check_space=False`` lets a sparse file pass whose holes don't fit into its filesystem any
    more (mkfs is about to fill them and reports that itself).

    Raises PoolError: NOT_FOUND, IS_DIRECTORY, NOT_A_POOL_TYPE, BLOCK_DEVICE, OTHER_DEVICE,
    PERMISSION, SYSTEM_RAM, NO_DRIVER, FSDAX, BAD_DEVICE_SIZE, SPARSE, UNSUPPORTED.
    """
    fd, info = _open_inspected(path, readonly=not for_write, check_space=check_space)
    os.close(fd)
    return info


def plan_new_pool(path: str, size_bytes: int) -> PoolInfo:
    """Describe the file that mkfs would make at a path where nothing is. Makes nothing.

    size_bytes of the result is rounded down to whole pages of the filesystem. Raises PoolError:
    NOT_FOUND (no such directory, or a device name), PERMISSION, UNSUPPORTED.
    """
    if not os.path.basename(path):
        raise PoolError(f"{path!r} does not name a file", Exit.NOT_FOUND)
    parent = os.path.dirname(path) or "."
    parent_fd = _open_path(parent, what="the directory ")
    try:
        if not stat.S_ISDIR(os.fstat(parent_fd).st_mode):
            raise PoolError(f"{parent} is not a directory", Exit.NOT_FOUND)
        mount = host.mount_of(parent_fd)
        fs_type = mount.fs_type if mount else ""
        if fs_type == "devtmpfs" or host.DAX_NAME.fullmatch(os.path.basename(path)):
            raise kinds.missing(path)
        return kinds.describe_file(
            path, parent_fd, mount, size_bytes, allocated_bytes=0, exists=False
        )
    finally:
        os.close(parent_fd)


class OpenPool(Closing):
    """An open and locked pool; a context manager. ``fd`` is to be mapped, not read; ``data_fd``
    is the directory of backing files of a directory pool, else -1."""

    def __init__(self, fd: int, info: PoolInfo, data_fd: int = -1) -> None:
        self.fd = fd
        self.info = info
        self.data_fd = data_fd

    @property
    def path(self) -> str:
        """The path that it was opened by."""
        return self.info.path

    def close(self) -> None:
        """Close, and so unlock unless a mapping's owner kept a descriptor. Safe to repeat."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)
        if self.data_fd >= 0:
            fd, self.data_fd = self.data_fd, -1
            os.close(fd)


def open_pool(
    path: str,
    *,
    readonly: bool = False,
    lock: Lock = "shared",
    check_space: bool = True,
) -> OpenPool:
    """Open an existing pool, checked as by :func:`inspect_pool`, and lock it without waiting.

    The descriptor is close-on-exec. What lies in the pool isn't looked at: see
    :func:`require_pool`. Raises PoolError as :func:`inspect_pool` does, and PoolInUse, which
    names the processes that hold it.
    """
    fd, info = _open_inspected(path, readonly=readonly, check_space=check_space)
    data_fd = -1
    try:
        if lock is not None:
            lock_pool(fd, info, lock)
            # Before the lock was ours, a mkfs may have given the file another length.
            if info.kind != "directory":
                info = kinds.classify_path(path, fd)
        if kinds.file_status(fd).st_nlink == 0:
            raise PoolError(f"{path} was removed while it was being opened", Exit.NOT_FOUND)
        if info.kind == "directory":
            data_fd = _open_data(path, fd)
    except BaseException:
        os.close(fd)
        raise
    return OpenPool(fd, info, data_fd)


def _open_data(path: str, fd: int) -> int:
    """The directory of backing files, beside the metadata that is open."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        data_fd = os.open(os.path.join(path, directory.DATA), flags)
    except OSError as error:
        raise PoolError(
            f"{path} has no directory {directory.DATA} with the content of its files "
            f"({error.strerror}); make it anew: mkfs.belugafs --force {path}",
            Exit.FOREIGN,
        ) from error
    if os.fstat(data_fd).st_dev != os.fstat(fd).st_dev:
        os.close(data_fd)
        raise PoolError(f"{path} was made anew while it was being opened", Exit.IN_USE)
    return data_fd


def lock_pool(fd: int, info: PoolInfo, lock: Literal["shared", "exclusive"]) -> None:
    """Take the lock on an open pool without waiting. Raises PoolInUse, PoolError."""
    operation = fcntl.LOCK_SH if lock == "shared" else fcntl.LOCK_EX
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        name = os.path.basename(os.path.realpath(mapped_path(info)))
        raise _in_use(info, host.lock_holders(os.fstat(fd), name)) from None
    except OSError as error:
        raise PoolError(
            f"{info.path} cannot be locked ({error.strerror}); its filesystem ({info.fs_type}) "
            "has no flock: put the pool on a local filesystem",
            Exit.UNSUPPORTED,
        ) from error


def users_of(fd: int, info: PoolInfo) -> tuple[Holder, ...]:
    """Other processes that have the pool open or mapped, with or without a lock, as far as this
    user may see them: an engine outlives its daemon, a virtual machine takes no lock."""
    return host.users(kinds.file_status(fd), os.path.basename(os.path.realpath(mapped_path(info))))


def _in_use(info: PoolInfo, holders: tuple[Holder, ...]) -> PoolInUse:
    who = "another process" if not holders else "process " + ", ".join(map(str, holders))
    real = os.path.realpath(info.path)
    places = [
        mount.mount_point
        for mount in host.mounts()
        if mount.fs_type.endswith("belugafs") and os.path.realpath(mount.source) == real
    ]
    advice = f"unmount it first: umount {places[0]}" if places else "end that first"
    return PoolInUse(f"{info.path} is in use by {who}; {advice}", holders)


# ---- opening ----------------------------------------------------------------------------------


def _open_inspected(path: str, *, readonly: bool, check_space: bool) -> tuple[int, PoolInfo]:
    """Look first, open then: to open a tape or a FIFO has side effects. Both go through one
    O_PATH descriptor, so what was looked at is what is opened."""
    path_fd = _open_path(path)
    try:
        info = kinds.classify_path(path, path_fd)
        fd = _reopen(path, path_fd, info, readonly=readonly)
    finally:
        os.close(path_fd)
    try:
        if check_space and not readonly:
            _check_holes(fd, info)
    except BaseException:
        os.close(fd)
        raise
    return fd, info


def _open_path(path: str, what: str = "") -> int:
    try:
        return os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        if what:
            raise PoolError(f"{what}{path} does not exist; make it first", Exit.NOT_FOUND) from None
        raise kinds.missing(path) from None
    except PermissionError:
        raise PoolError(
            f"no permission to reach {what}{path}; run as its owner or as root", Exit.PERMISSION
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise PoolError(f"{what}{path} cannot be reached: {reason}", Exit.NOT_FOUND) from error


def _reopen(path: str, path_fd: int, info: PoolInfo, *, readonly: bool) -> int:
    flags = (os.O_RDONLY if readonly else os.O_RDWR) | os.O_CLOEXEC
    try:
        below = f"/{directory.META}" if info.kind == "directory" else ""
        return os.open(f"/proc/self/fd/{path_fd}{below}", flags)
    except OSError as error:
        access = "read" if readonly else "read and write"
        if error.errno == errno.EROFS:
            message = f"{path} is on a filesystem that is mounted read-only"
        elif error.errno == errno.ETXTBSY:
            raise PoolError(
                f"{path} is in use by the kernel, as swap or as a running program", Exit.IN_USE
            ) from error
        elif error.errno in (errno.EACCES, errno.EPERM):
            advice = "run as root" if info.kind == "devdax" else "run as its owner or as root"
            message = f"no permission to {access} {path}; {advice}"
        elif error.errno in (errno.ENXIO, errno.ENODEV):
            raise kinds.no_driver(path) from error
        else:
            raise PoolError(f"{path} cannot be opened: {error.strerror}", Exit.IO_ERROR) from error
        raise PoolError(message, Exit.PERMISSION) from error


def _check_holes(fd: int, info: PoolInfo) -> None:
    """A sparse pool must find memory for its holes, or a later store is a SIGBUS."""
    if info.kind not in ("file", "tmpfs") or info.fs_type not in _EXACT_BLOCKS:
        return
    hole_bytes = info.size_bytes - info.allocated_bytes
    free_bytes = free_space(fd)
    if hole_bytes > 0 and free_bytes is not None and hole_bytes > free_bytes:
        raise PoolError(
            f"{info.path} is sparse: {format_size(hole_bytes)} of it are not allocated, and only "
            f"{format_size(free_bytes)} is free in {info.mount_point}, so writing to it would "
            "crash; free space there, or enlarge that filesystem",
            Exit.SPARSE,
        )

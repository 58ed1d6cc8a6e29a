"""From a path to an attached pool: open, lock, check, attach. For the daemon, fsck and tools.

A daemon that is asked to end (``umount``) detaches after umount has returned. So who finds the
pool locked while it is mounted nowhere waits a little before giving up.
"""

import contextlib
import errno
import os
import resource
import time
from typing import Any, Literal

from belugafs import _native, hostid, mounts
from belugafs._pool import directory
from belugafs.exits import Exit
from belugafs.options import MountOptions
from belugafs.pool import Lock, OpenPool, PoolError, PoolInUse, open_pool, require_pool
from belugafs.rundir import run_dir

LOCK_WAIT_S = 6.0
_LOCK_POLL_S = 0.05
_FILES = 1 << 20


def open_checked(
    path: str, *, readonly: bool, lock: Lock, wait_s: float = LOCK_WAIT_S
) -> tuple[OpenPool, dict[str, Any]]:
    """Open a pool whose superblock this version can use; it comes with it.

    Raises PoolError (no pool, another version, truncated, ...) and PoolInUse, which says who.
    """
    opened = open_when_free(path, readonly=readonly, lock=lock, wait_s=wait_s)
    try:
        require_pool(opened.fd, opened.info)
        return opened, superblock(opened)
    except BaseException:
        opened.close()
        raise


def open_when_free(
    path: str, *, readonly: bool, lock: Lock, wait_s: float = LOCK_WAIT_S
) -> OpenPool:
    """Open and lock, and wait for a daemon that is about to end. Raises PoolError."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return open_pool(path, readonly=readonly, lock=lock)
        except PoolInUse:
            if mounts.mounts_of_pool(path) or time.monotonic() >= deadline:
                raise
            time.sleep(_LOCK_POLL_S)


def superblock(opened: OpenPool) -> dict[str, Any]:
    """The superblock of an open pool. Raises PoolError with the core's words."""
    try:
        return _native.peek(opened.fd, opened.info.size_bytes)
    except _native.PoolFormatError as error:
        raise PoolError(f"{opened.path}: {error.strerror}", _exit_of(error)) from error
    except OSError as error:
        raise PoolError(
            f"{opened.path} cannot be mapped: {error.strerror}", Exit.IO_ERROR
        ) from error


def attach(opened: OpenPool, options: MountOptions, *, wait_s: float = 0) -> _native.Pool:
    """Attach an open pool as this host. Raises PoolError with the core's words.

    wait_s is for a lead that somebody else is claiming at this moment.
    """
    if opened.data_fd >= 0:
        _allow_many_files()
    deadline = time.monotonic() + wait_s
    local_dir = run_dir(options.run_dir)
    while True:
        try:
            return _native.Pool(
                opened.fd,
                opened.info.size_bytes,
                host_uuid=hostid.host_uuid(options.host),
                boot_id=hostid.boot_id(),
                readonly=options.readonly,
                evict=options.evict,
                verify="first" if options.verify == "scrub" else options.verify,
                coherence=_coherence(options),
                publish_close=options.publish == "close",
                high_permille=options.high_permille,
                low_permille=options.low_permille,
                data_fd=opened.data_fd,
                local_dir=local_dir,
            )
        except _native.CoreError as error:
            if error.errno not in (errno.EBUSY, errno.EAGAIN) or time.monotonic() >= deadline:
                raise PoolError(f"{opened.path}: {error.strerror}", _exit_of(error)) from error
            time.sleep(_LOCK_POLL_S)


def revive(path: str) -> str | None:
    """Make a directory pool whose memory is gone (a reboot) again, empty: what to tell the user.
    None where there is nothing to do. Raises PoolError."""
    return directory.revive(path, _native)


def _allow_many_files() -> None:
    """Each open file of a directory pool takes a descriptor or two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if os.geteuid() == 0:
        hard = max(hard, _FILES)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))


@contextlib.contextmanager
def attached_readonly(path: str) -> Any:
    """An unmounted pool to look into: (Pool, superblock). Nothing is stored. Raises PoolError."""
    opened, super_ = open_checked(path, readonly=True, lock="shared")
    with opened, attach(opened, MountOptions(readonly=True)) as pool:
        yield pool, super_


def _coherence(options: MountOptions) -> Literal["coherent", "incoherent"]:
    return "incoherent" if options.coherence == "incoherent" else "coherent"


def _exit_of(error: OSError) -> Exit:
    if error.errno == errno.EBUSY:
        return Exit.IN_USE
    return Exit.IO_ERROR if error.errno == errno.EIO else Exit.FOREIGN

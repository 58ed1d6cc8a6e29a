"""Directory pools: a tmpfs of its own, mounted on a directory, with one file per block.

What is needed to make the pool again is in ``belugafs.conf`` on the filesystem below: a tmpfs is
gone after a reboot, and the mount helper then makes the empty pool again by it. In the tmpfs are
``meta``, a pool file that holds the metadata only, and ``data``, the backing files.

The size of the tmpfs is the pool's cap: the kernel holds it, whoever stores.
"""

import contextlib
import errno
import json
import os
import stat
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from belugafs import mountcalls
from belugafs._pool import host
from belugafs._pool.base import PoolError, PoolInfo
from belugafs.exits import Exit
from belugafs.units import format_size

CONF = "belugafs.conf"
META = "meta"
DATA = "data"
SOURCE = "belugafs"
"""Of the tmpfs, in the mount table: that is how one without a pool in it is known as ours."""

_CONF_VERSION = 1
_FLAGS = mountcalls.NOSUID | mountcalls.NODEV | mountcalls.NOEXEC


@dataclass(frozen=True)
class Conf:
    """What makes an empty pool again. Sizes in bytes; ``huge`` is an option of tmpfs."""

    size_bytes: int
    inodes: int = 0
    label: str = ""
    numa_node: int | None = None
    huge: str | None = "within_size"


def read_conf(path: str) -> Conf | None:
    """``belugafs.conf`` of a directory, None where there is none. Raises PoolError."""
    try:
        text = Path(path, CONF).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise PoolError(f"{path}/{CONF} cannot be read: {error}", Exit.IO_ERROR) from error
    try:
        found: dict[str, Any] = json.loads(text)
        version = found.pop("belugafs")
        conf = Conf(**found)
        sound = version == _CONF_VERSION and conf.size_bytes > 0 and conf.inodes >= 0
    except (ValueError, KeyError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise PoolError(
            f"{path}/{CONF} isn't one that this version wrote; make the pool anew: "
            f"mkfs.belugafs --force --size SIZE {path}",
            Exit.FOREIGN,
        )
    return conf


def write_conf(path: str, conf: Conf) -> None:
    """Whole or not at all. Raises OSError."""
    place, new = Path(path, CONF), Path(path, CONF + ".new")
    text = json.dumps({"belugafs": _CONF_VERSION, **asdict(conf)}, indent=1) + "\n"
    with open(new, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, place)


# ---- the tmpfs ----------------------------------------------------------------------------------


def tmpfs_on(path: str) -> host.Mount | None:
    """What is mounted on a directory itself; None: nothing."""
    real = os.path.realpath(path)
    return next((m for m in reversed(host.mounts()) if m.mount_point == real), None)


def is_ours(mount: host.Mount) -> bool:
    """Is this mount the tmpfs of a directory pool?"""
    return mount.fs_type == "tmpfs" and mount.source == SOURCE


def mount_tmpfs(path: str, conf: Conf) -> Conf:
    """Mount it. The result says what there is: no ``huge`` where the kernel has none. Raises
    PoolError."""
    for huge in dict.fromkeys([conf.huge, None]):
        options = [f"size={conf.size_bytes}", "nr_inodes=0", "mode=0700"]
        options += [f"huge={huge}"] if huge else []
        options += [f"mpol=bind:{conf.numa_node}"] if conf.numa_node is not None else []
        try:
            mountcalls.mount(SOURCE, os.path.realpath(path), "tmpfs", _FLAGS, ",".join(options))
            return replace(conf, huge=huge)
        except OSError as error:
            refused = error
        if refused.errno != errno.EINVAL:
            break
    denied = refused.errno in (errno.EPERM, errno.EACCES)
    raise PoolError(
        f"a tmpfs cannot be mounted on {path} ({','.join(options)}): {refused.strerror}",
        Exit.PERMISSION if denied else Exit.UNSUPPORTED,
    )


def unmount_tmpfs(path: str, *, lazy: bool = False) -> None:
    """Raises OSError: EBUSY while somebody has a file of it open or mapped."""
    mountcalls.umount(os.path.realpath(path), lazy=lazy)


def fill(path: str, conf: Conf, native: Any, pool_uuid: uuid.UUID) -> dict[str, Any]:
    """Make the empty pool in a mounted tmpfs: its superblock comes back. Raises PoolError."""
    try:
        meta_bytes = native.directory_bytes(conf.size_bytes, inodes=conf.inodes)
    except OSError as error:
        raise PoolError(f"{path}: {error.strerror}", Exit.GEOMETRY) from error
    try:
        os.mkdir(os.path.join(path, DATA), 0o700)
        fd = os.open(
            os.path.join(path, META), os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600
        )
        try:
            # All of it now: a store into the metadata must find its page.
            os.posix_fallocate(fd, 0, meta_bytes)
            made: dict[str, Any] = native.mkfs(
                fd,
                meta_bytes,
                inodes=conf.inodes,
                hosts=1,
                label=os.fsencode(conf.label),
                uuid=pool_uuid.bytes,
                directory_bytes=conf.size_bytes,
            )
        finally:
            os.close(fd)
    except OSError as error:
        raise PoolError(
            f"the pool cannot be made in {path}: {error.strerror}", Exit.IO_ERROR
        ) from error
    return made


def require_root(what: str) -> None:
    """Raise PoolError unless this process may mount a tmpfs."""
    if os.geteuid() != 0:
        raise PoolError(
            f"{what} mounts a tmpfs, which only root may; run as root, or make a pool in a file, "
            "as in: mkfs.belugafs --size 8G /dev/shm/beluga.pool",
            Exit.PERMISSION,
        )


def revive(path: str, native: Any) -> str | None:
    """Make a directory pool again whose memory is gone, empty: a sentence that says so.

    None where there is nothing to do: no such pool, or its tmpfs is there. Raises PoolError.
    """
    mount = tmpfs_on(path) if os.path.isdir(path) else None
    if mount is not None or (conf := read_conf(path)) is None:
        return None
    require_root(f"the memory of {path} is gone, and making it again")
    conf = mount_tmpfs(path, conf)
    try:
        fill(path, conf, native, uuid.uuid4())
    except BaseException:
        with contextlib.suppress(OSError):
            unmount_tmpfs(path, lazy=True)
        raise
    return (
        f"the memory of {path} was gone (after a reboot, or an umount of it): an empty pool of "
        f"{format_size(conf.size_bytes)} was made there again"
    )


def is_pool(path: str) -> bool:
    """Does a path lead to a directory pool, with or without its memory?"""
    return os.path.isfile(os.path.join(path, CONF)) or (
        os.path.isfile(os.path.join(path, META)) and os.path.isdir(os.path.join(path, DATA))
    )


# ---- looking -------------------------------------------------------------------------------------


def describe(path: str, path_fd: int) -> PoolInfo:
    """A directory that a path leads to, as a pool. Raises PoolError where it is none."""
    try:
        meta = os.stat(META, dir_fd=path_fd, follow_symlinks=False)
    except PermissionError:
        raise PoolError(
            f"no permission to look into {path}; run as its owner or as root", Exit.PERMISSION
        ) from None
    except OSError:
        raise _no_pool(path, path_fd) from None
    mount = host.mount_of(path_fd)
    if not stat.S_ISREG(meta.st_mode) or mount is None or mount.fs_type != "tmpfs":
        raise _no_pool(path, path_fd)
    whole = os.statvfs(f"/proc/self/fd/{path_fd}")
    huge = mount.options.get("huge")
    notes = []
    if huge in (None, "never"):
        notes.append(f"no huge pages: the kernel has none for the tmpfs on {path}")
    return PoolInfo(
        path=path,
        kind="directory",
        size_bytes=meta.st_size,
        page_bytes=os.sysconf("SC_PAGE_SIZE"),
        numa_node=host.bound_node(mount),
        exists=True,
        file_bytes=meta.st_size,
        allocated_bytes=meta.st_blocks * 512,
        fs_type=mount.fs_type,
        mount_point=mount.mount_point,
        huge=huge,
        notes=tuple(notes),
        capacity_bytes=whole.f_blocks * whole.f_frsize,
    )


def _no_pool(path: str, path_fd: int) -> PoolError:
    mount = tmpfs_on(path)
    if mount is not None and is_ours(mount):
        return PoolError(
            f"the making of the pool in {path} was cut off; make it again: mkfs.belugafs --force "
            f"--size SIZE {path}",
            Exit.EMPTY,
        )
    with contextlib.suppress(OSError):
        os.stat(CONF, dir_fd=path_fd)
        return PoolError(
            f"the memory of the pool {path} is gone (after a reboot, or an umount of it); to have "
            f"it again, empty: mount -t belugafs {path} MOUNTPOINT",
            Exit.EMPTY,
        )
    return PoolError(
        f"{path} is a directory, and no pool; to make one of an empty directory, or in a file: "
        f"mkfs.belugafs --size 8G {path}, mkfs.belugafs --size 8G {os.path.join(path, 'pool')}",
        Exit.IS_DIRECTORY,
    )

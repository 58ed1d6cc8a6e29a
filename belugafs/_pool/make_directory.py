"""Make a directory pool: the work behind ``mkfs.belugafs DIR``.

The order: everything that can be refused is refused first; then what is needed to make the pool
again is written into the directory; then the tmpfs is mounted over it, and the pool made in it. Cut
off in between it leaves a directory that mounts as an empty pool, or says that it was cut off.
"""

import contextlib
import errno
import os
import shlex
import uuid
from collections.abc import Callable
from typing import Any

from belugafs._pool import directory, host
from belugafs._pool.base import GRANULE_BYTES, PoolError, PoolInfo, PoolInUse, round_down
from belugafs._pool.request import HOSTS_MAX, Request, Summary
from belugafs.exits import Exit
from belugafs.pool import open_pool
from belugafs.units import format_size


def make_directory_pool(request: Request, native: Any, warn: Callable[[str], None]) -> Summary:
    """As :func:`belugafs._pool.make.make_pool`. Raises PoolError."""
    path = request.path
    _check_options(request)
    directory.require_root(f"a pool that is a directory ({path})")
    mount = directory.tmpfs_on(path)
    if mount is not None and not directory.is_ours(mount):
        raise PoolError(
            f"{path} is where {mount.source} ({mount.fs_type}) is mounted; name an empty directory "
            "below it",
            Exit.FOREIGN,
        )
    former: directory.Conf | None
    if mount is None:
        former = _check_content(path, forced=request.force > 0)
    else:
        former = _conf_of(path, mount)
        _check_free(request, warn)
    if former and not request.force:
        raise PoolError(
            f"{path} holds a belugafs pool already; to use it: mount -t belugafs "
            f"{shlex.quote(path)} /mnt/beluga (--force makes a new pool there, and all of its "
            "blocks are lost)",
            Exit.HOLDS_POOL,
        )
    conf = _conf(request, former)
    notes = _check_memory(conf)
    try:
        native.directory_bytes(conf.size_bytes, inodes=conf.inodes)
    except OSError as error:
        raise PoolError(f"{path}: {error.strerror}", Exit.GEOMETRY) from error
    if mount is not None:
        _take_away(request, warn)
    return _make(request, conf, native, notes)


def _check_options(request: Request) -> None:
    if request.max_size_bytes is not None or request.sparse or request.hosts not in (1, HOSTS_MAX):
        raise PoolError(
            f"{request.path} is a directory: such a pool is one host's, has the size of its tmpfs, "
            "and takes memory as blocks come; --hosts, --max-size and --sparse are for pools in "
            "one file",
            Exit.USAGE,
        )
    if request.numa_node is not None and request.numa_node not in host.nodes():
        nodes = ", ".join(map(str, host.nodes())) or "none"
        raise PoolError(
            f"there is no NUMA node {request.numa_node} with memory here; those that have: {nodes}",
            Exit.USAGE,
        )


def _check_content(path: str, *, forced: bool) -> directory.Conf | None:
    """Nothing but what a former pool left may be there."""
    try:
        found = sorted(set(os.listdir(path)) - {directory.CONF, directory.CONF + ".new"})
    except OSError as error:
        raise PoolError(f"{path} cannot be read: {error.strerror}", Exit.PERMISSION) from error
    if found:
        raise PoolError(
            f"{path} is not empty ({', '.join(found[:3])}{', ...' if len(found) > 3 else ''}); it "
            "was left untouched: name an empty directory",
            Exit.FOREIGN,
        )
    try:
        return directory.read_conf(path)
    except PoolError:
        if not forced:
            raise
        return None


def _conf_of(path: str, mount: host.Mount) -> directory.Conf:
    """What the pool that is there was made with: its size, at least."""
    whole = os.statvfs(path)
    return directory.Conf(whole.f_blocks * whole.f_frsize, numa_node=host.bound_node(mount))


def _conf(request: Request, former: directory.Conf | None) -> directory.Conf:
    size_bytes = request.size_bytes or (former.size_bytes if former else 0)
    if not size_bytes:
        raise PoolError(
            f"{request.path} is a directory; give the size of the pool: mkfs.belugafs --size 8G "
            f"{shlex.quote(request.path)}",
            Exit.USAGE,
        )
    node = request.numa_node
    if node is None and former is not None and request.size_bytes is None:
        node = former.numa_node
    return directory.Conf(
        size_bytes=round_down(size_bytes, GRANULE_BYTES),
        inodes=request.inodes,
        label=os.fsdecode(request.label),
        numa_node=node,
    )


def _check_memory(conf: directory.Conf) -> list[str]:
    """Memory is taken as blocks come, so too little of it is no error now."""
    memory = host.available_memory(conf.numa_node)
    if memory is None or conf.size_bytes <= memory.available_bytes:
        return []
    note = (
        f"{format_size(conf.size_bytes)} is more than the memory that is left by {memory.bound} "
        f"({format_size(memory.available_bytes)}): a pool that fills up may make the kernel kill "
        "processes"
    )
    return [note]


def _check_free(request: Request, warn: Callable[[str], None]) -> None:
    """Nobody else has the former pool."""
    try:
        open_pool(request.path, lock="exclusive").close()
    except PoolInUse as error:
        request.refuse_in_use(error)
        warn(f"{error}: forced, so its blocks are lost to everybody but who has them open")
    except PoolError as error:
        if error.exit_code not in (Exit.EMPTY, Exit.FOREIGN):
            raise


def _take_away(request: Request, warn: Callable[[str], None]) -> None:
    """The tmpfs of the former pool goes."""
    path = request.path
    warn(f"overwriting the belugafs pool on {path}")
    try:
        directory.unmount_tmpfs(path)
    except OSError as error:
        if error.errno != errno.EBUSY or request.force < 2:
            raise PoolInUse(
                f"the former pool on {path} cannot be taken away: {error.strerror}; somebody has "
                "files of it open or mapped (--force --force takes it away all the same)"
            ) from error
        warn(f"files of the former pool on {path} are open: their memory is free when they close")
        directory.unmount_tmpfs(path, lazy=True)


def _make(request: Request, conf: directory.Conf, native: Any, notes: list[str]) -> Summary:
    path = request.path
    pool_uuid = uuid.uuid4()
    try:
        directory.write_conf(path, conf)
    except OSError as error:
        raise PoolError(
            f"{path}/{directory.CONF} cannot be written: {error.strerror}", Exit.PERMISSION
        ) from error
    mounted = False
    try:
        made_conf = directory.mount_tmpfs(path, conf)
        mounted = True
        made = directory.fill(path, made_conf, native, pool_uuid)
    except BaseException:
        with contextlib.suppress(OSError):
            if mounted:
                directory.unmount_tmpfs(path, lazy=True)
            os.unlink(os.path.join(path, directory.CONF))
        raise
    with open_pool(path, lock=None) as opened:
        info: PoolInfo = opened.info
    meta_bytes = int(made["size_bytes"])
    return Summary(
        path=path,
        kind=info.kind,
        uuid=str(pool_uuid),
        label=conf.label,
        size_bytes=info.capacity_bytes,
        max_size_bytes=info.capacity_bytes,
        data_bytes=info.capacity_bytes - meta_bytes,
        meta_bytes=meta_bytes,
        inodes=int(made["inodes"]),
        hosts=1,
        sparse=False,
        huge_pages="at first use" if info.huge not in (None, "never") else "no",
        numa_node=info.numa_node,
        notes=(*info.notes, *notes),
        next_command=f"mount -t belugafs {shlex.quote(os.path.abspath(path))} /mnt/beluga",
    )

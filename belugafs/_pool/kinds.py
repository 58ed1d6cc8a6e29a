"""What a path is, as a place for a pool: one function for each kind, one error for each thing
that can be wrong with it. Nothing is opened or changed here.
"""

import os
import stat
from collections.abc import Callable

from belugafs._pool import directory, host
from belugafs._pool.base import (
    DAX_PAGE_BYTES,
    GRANULE_BYTES,
    Kind,
    PoolError,
    PoolInfo,
    round_down,
)
from belugafs.exits import Exit
from belugafs.units import MIB, format_size

_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "virtiofs"})

# Tests put a stand-in for a device here.
file_status: Callable[[int], os.stat_result] = os.fstat


def classify_path(path: str, path_fd: int) -> PoolInfo:
    found = file_status(path_fd)
    mode = found.st_mode
    if stat.S_ISREG(mode):
        mount = host.mount_of(path_fd)
        return describe_file(
            path,
            path_fd,
            mount,
            found.st_size,
            allocated_bytes=found.st_blocks * 512,
            exists=True,
        )
    if stat.S_ISCHR(mode):
        return _describe_dax(path, found.st_rdev)
    if stat.S_ISBLK(mode):
        raise _block_device(path)
    if stat.S_ISDIR(mode):
        return directory.describe(path, path_fd)
    kind = "FIFO" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else "special file"
    raise PoolError(
        f"{path} is a {kind}; a pool is a file or a DAX device (/dev/daxX.Y)", Exit.NOT_A_POOL_TYPE
    )


def describe_file(
    path: str,
    fd: int,
    mount: host.Mount | None,
    file_bytes: int,
    *,
    allocated_bytes: int,
    exists: bool,
) -> PoolInfo:
    """A regular file, or, with the descriptor of its directory, one that is to be made."""
    fs_type = mount.fs_type if mount else ""
    if fs_type.endswith("belugafs"):
        raise PoolError(
            f"{path} is inside a mounted belugafs; a pool cannot be in a pool", Exit.UNSUPPORTED
        )
    kind: Kind = "file"
    page_bytes, unit_bytes = os.sysconf("SC_PAGE_SIZE"), GRANULE_BYTES
    node = None
    huge = None
    notes: list[str] = []
    if fs_type == "tmpfs" and mount is not None:
        kind = "tmpfs"
        node = host.bound_node(mount)
        huge = mount.options.get("huge")
        if huge in (None, "never"):
            notes.append(
                f"no huge pages: the tmpfs on {mount.mount_point} has no huge= option, so first "
                "reads by a new process are slower; to have them, make the pool in a tmpfs "
                "mounted with -o huge=always"
            )
    elif fs_type == "hugetlbfs":
        kind = "hugetlbfs"
        page_bytes = unit_bytes = os.fstatvfs(fd).f_bsize
    elif fs_type in _NETWORK or fs_type.startswith("fuse"):
        notes.append(f"{fs_type} is not memory, and only one host at a time may use this pool")
    else:
        notes.append(
            f"{fs_type or 'this filesystem'} is not memory: fit for trying things out; a pool in "
            "/dev/shm, in hugetlbfs or on a DAX device is faster, and a GPU can read it in place"
        )
    size_bytes = round_down(file_bytes, unit_bytes)
    if exists:
        mode, owner = os.fstat(fd).st_mode, os.fstat(fd).st_uid
        if mode & 0o077:
            notes.append(
                f"other users may open {path} (mode {mode & 0o777:04o}); unless that is meant: "
                f"chmod 600 {path}"
            )
        if owner not in (os.geteuid(), 0):
            notes.append(f"{path} belongs to user {owner}, who can read and change all of it")
        if size_bytes != file_bytes:
            notes.append(f"the last {file_bytes - size_bytes} bytes of {path} stay unused")
    return PoolInfo(
        path=path,
        kind=kind,
        size_bytes=size_bytes,
        page_bytes=page_bytes,
        numa_node=node,
        exists=exists,
        file_bytes=file_bytes,
        allocated_bytes=allocated_bytes,
        fs_type=fs_type,
        mount_point=mount.mount_point if mount else "",
        huge=huge,
        notes=tuple(notes),
    )


def _block_device(path: str) -> PoolError:
    name = os.path.basename(os.path.realpath(path))
    if name.startswith("pmem"):
        return PoolError(
            f"{path} is persistent memory in fsdax mode, which is for kernel filesystems; find "
            "its namespace with ndctl list, save what it holds, and switch it: "
            f"ndctl create-namespace -f -e namespace{name.removeprefix('pmem').split('s')[0]}"
            f"{'' if '.' in name else '.0'} --mode=devdax",
            Exit.FSDAX,
        )
    return PoolError(
        f"{path} is a block device; a pool must be memory that can be mapped: a DAX device "
        "(/dev/daxX.Y) or a file (a file on a filesystem on this device will do)",
        Exit.BLOCK_DEVICE,
    )


def no_driver(path: str) -> PoolError:
    name = os.path.basename(os.path.realpath(path))
    return PoolError(
        f"{path} has no driver bound to it, so it cannot be mapped; bind it: "
        f"daxctl reconfigure-device --mode=devdax {name}",
        Exit.NO_DRIVER,
    )


def _describe_dax(path: str, rdev: int) -> PoolInfo:
    device = host.dax_device(rdev)
    if device is None:
        raise PoolError(
            f"{path} is a character device, but not a DAX device (or /sys is not mounted here); "
            "a pool is a file or a DAX device (/dev/daxX.Y)",
            Exit.OTHER_DEVICE,
        )
    name = device.name
    if device.driver == "kmem":
        raise PoolError(
            f"{path} is in system-ram mode: the kernel uses it as ordinary memory; switch it: "
            f"daxctl reconfigure-device --force --mode=devdax {name}",
            Exit.SYSTEM_RAM,
        )
    if device.driver == "fsdev_dax":
        raise PoolError(
            f"{path} is bound to fsdev_dax, for kernel filesystems, and cannot be mapped; "
            f"switch it: daxctl reconfigure-device --mode=devdax {name}",
            Exit.FSDAX,
        )
    if device.driver == "":
        raise no_driver(path)
    _check_dax_geometry(path, device)
    notes = []
    if device.align_bytes < DAX_PAGE_BYTES:
        notes.append(
            f"{name} has an alignment of {format_size(device.align_bytes)}, so no huge pages; "
            f"to have them: daxctl create-device --region={device.region} --align=2M"
        )
    return PoolInfo(
        path=path,
        kind="devdax",
        size_bytes=round_down(device.size_bytes, max(DAX_PAGE_BYTES, device.align_bytes)),
        page_bytes=device.align_bytes,
        numa_node=device.target_node,
        exists=True,
        file_bytes=device.size_bytes,
        allocated_bytes=device.size_bytes,
        notes=tuple(notes),
    )


def _check_dax_geometry(path: str, device: host.DaxDevice) -> None:
    """A device that isn't cut at multiples of 2 MiB answers EINVAL to every mmap."""
    unit_bytes = max(DAX_PAGE_BYTES, device.align_bytes)
    if device.size_bytes == 0:
        raise PoolError(
            f"{path} has a size of 0: no memory is assigned to it; assign all that is left: "
            f"daxctl create-device --region={device.region}",
            Exit.BAD_DEVICE_SIZE,
        )
    wrong = []
    if device.size_bytes % unit_bytes:
        wrong.append(f"size of {device.size_bytes} bytes")
    if device.start_bytes is not None and device.start_bytes % unit_bytes:
        wrong.append(f"start at {device.start_bytes:#x}")
    if wrong:
        fit_bytes = round_down(device.size_bytes, unit_bytes)
        raise PoolError(
            f"{path} has a {' and a '.join(wrong)}, which is not a multiple of "
            f"{format_size(unit_bytes)}, so it cannot be mapped; make it anew (what it holds is "
            f"lost): daxctl disable-device {device.name} && daxctl destroy-device {device.name} "
            f"&& daxctl create-device --region={device.region} --size={fit_bytes} "
            f"--align={unit_bytes // MIB}M",
            Exit.BAD_DEVICE_SIZE,
        )


def missing(path: str) -> PoolError:
    name = os.path.basename(path)
    if host.DAX_NAME.fullmatch(name):
        if (host.SYSFS_ROOT / "bus/dax/devices" / name).exists():
            advice = (
                "the kernel has the device, but there is no device node here: in a container, "
                f"pass it on (--device /dev/{name})"
            )
        else:
            advice = "the kernel has no such device: daxctl list -D shows those that it has"
        return PoolError(f"{path} does not exist; {advice}", Exit.NOT_FOUND)
    if os.path.dirname(os.path.abspath(path)) == "/dev":
        return PoolError(
            f"{path} does not exist, and files are not made in /dev; "
            f"for a pool in memory use /dev/shm/{name}",
            Exit.NOT_FOUND,
        )
    return PoolError(
        f"{path} does not exist; make a pool with: mkfs.belugafs --size 8G {path}", Exit.NOT_FOUND
    )

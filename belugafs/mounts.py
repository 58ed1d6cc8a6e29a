"""Mounts of belugafs on this machine: to find them, to tell a dead one, to take one away."""

import contextlib
import errno
import os
import re
import shutil
import subprocess
from pathlib import Path

from belugafs import mountcalls
from belugafs._pool.host import Mount, mounts
from belugafs.exits import Exit
from belugafs.pool import PoolError, is_directory_pool

FS_TYPE = "fuse.belugafs"
UMOUNT_HELPER = f"/sbin/umount.{FS_TYPE}"
_UNMOUNT_LIMIT_S = 10
_TELL_LIMIT_S = 2


def belugafs_mounts() -> list[Mount]:
    """All that this process can see, in the order in which they were made."""
    return [mount for mount in mounts() if mount.fs_type == FS_TYPE]


def mount_at(path: str) -> Mount | None:
    """The topmost mount of any kind exactly at a path. Doesn't touch the path itself, so a
    hung or dead filesystem there doesn't matter."""
    place = real_place(path)
    return next((mount for mount in reversed(mounts()) if mount.mount_point == place), None)


def mount_holding(path: str) -> Mount | None:
    """The belugafs mount that a path lies in, or None."""
    place = real_place(path)
    found = [
        mount
        for mount in mounts()
        if place == mount.mount_point or place.startswith(mount.mount_point.rstrip("/") + "/")
    ]
    longest = max(found, key=lambda mount: len(mount.mount_point), default=None)
    return longest if longest is not None and longest.fs_type == FS_TYPE else None


def mounts_of_pool(pool_path: str) -> list[Mount]:
    """Where a pool is mounted, by its path."""
    real = os.path.realpath(pool_path)
    return [mount for mount in belugafs_mounts() if os.path.realpath(mount.source) == real]


def mount_of(where: str) -> Mount | None:
    """The mount that a path lies in, or that of a pool; None for a pool that isn't mounted."""
    of_pool = mounts_of_pool(where)
    return mount_holding(where) or (of_pool[0] if of_pool else None)


def only_mount() -> Mount:
    """The one belugafs mount of this machine. Raises PoolError where there is none, or more."""
    found = belugafs_mounts()
    if len(found) == 1:
        return found[0]
    places = " or ".join(mount.mount_point for mount in found)
    raise PoolError(
        f"say which: {places}" if found else "no belugafs is mounted here; say which pool",
        Exit.USAGE,
    )


def refuse_plain_directory(path: str, asked: str = "") -> None:
    """For what takes an unmounted pool: raise PoolError for a directory that is none. ``asked``:
    what the user has said, if it isn't the path."""
    if os.path.isdir(path) and not is_directory_pool(path):
        raise PoolError(f"no belugafs is mounted on {asked or path}", Exit.NOT_FOUND)


def real_place(path: str) -> str:
    """The absolute path with links resolved in all but the last part, which may be dead."""
    absolute = os.path.abspath(path)
    return os.path.join(os.path.realpath(os.path.dirname(absolute)), os.path.basename(absolute))


def is_dead(path: str) -> bool:
    """Whether the filesystem at a path has lost its daemon. Waits for one that hangs.

    Asks for what the kernel doesn't cache: stat still finds a dead mount's root for a second.
    """
    try:
        os.statvfs(path)
    except OSError as error:
        # ECONNABORTED: asked in the moment in which the connection ends
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def unmount(mount_point: str, *, lazy: bool) -> None:
    """Unmount, as root or as the user who mounted it. ``lazy``: gone from the tree at once,
    open files go on. Raises OSError."""
    try:
        mountcalls.umount(mount_point, lazy=lazy)
        return
    except OSError as error:
        helper = shutil.which("fusermount3")
        if error.errno != errno.EPERM or helper is None:
            raise
    command = [helper, "-u", *(["-z"] if lazy else []), "--", mount_point]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_UNMOUNT_LIMIT_S, check=False
    )
    if done.returncode != 0:
        raise OSError(errno.EPERM, done.stderr.strip() or os.strerror(errno.EPERM), mount_point)


def tell_umount(source: str, mount_point: str) -> None:
    """Have umount(8) ask ``UMOUNT_HELPER``, which says who keeps a mount busy.

    For root, umount takes a short cut and looks for helpers of the type ``fuse`` only, unless
    /run/mount/utab has a line for the place. mount(8) writes one when it is told that a mount was
    made (``-f``), umount removes it. Nothing depends on it: what goes wrong here is passed over.
    """
    if os.geteuid() != 0 or not os.access(UMOUNT_HELPER, os.X_OK):
        return
    command = [
        "mount", "-i", "-f", "-t", FS_TYPE, "-o", "x-belugafs",
        os.path.realpath(source), real_place(mount_point),
    ]  # fmt: skip
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TELL_LIMIT_S,
            check=False,
        )  # fmt: skip


def device_of(mount_id: int) -> str:
    """The device of a mount as /proc/PID/maps writes it, empty if there is no such mount."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            match = re.match(rf"{mount_id} \d+ (\d+):(\d+) ", line)
            if match:
                return f"{int(match[1]):02x}:{int(match[2]):02x}"
    return ""


def device_number(mount_point: str) -> str:
    """The device of a FUSE mount as mountinfo writes it; empty where there is none."""
    connection = connection_of(mount_point)
    return f"0:{connection.name}" if connection is not None else ""


def connection_of(mount_point: str) -> Path | None:
    """The directory of a FUSE mount's connection in /sys; writing to ``abort`` there ends all
    requests that hang."""
    place = real_place(mount_point)
    with contextlib.suppress(OSError):
        for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
            match = re.match(r"\d+ \d+ 0:(\d+) \S+ (\S+) ", line)
            if match and match[2].replace("\\040", " ") == place:
                return Path("/sys/fs/fuse/connections") / match[1]
    return None

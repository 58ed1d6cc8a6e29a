"""What is held, exactly: who holds one file of a mount, and which files are leased by whom.

A file is held by processes that have it open or mapped (from /proc), and by those that read it in
place (from their lease files, :mod:`belugafs.leases`). All of these know it by its inode number.
The mount is asked for numbers and names by another process, within a limit: who waits for a hung
daemon can't even be killed.
"""

import contextlib
import os
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

from belugafs import leases, mounts
from belugafs._pool.host import Mount
from belugafs.control import DIRECTORY_NAME, parse_pairs
from belugafs.exits import Exit
from belugafs.holders import Holder, others
from belugafs.pool import PoolError
from belugafs.units import format_size

_ANSWER_LIMIT_S = 5.0
_WALK_LIMIT_S = 600.0
_left_behind: list[subprocess.Popen[bytes]] = []
"""Not waited for, and kept, so that nobody else waits for them either."""
_NOBODY_SEES = "who reads in place is seen by root and by the user who mounted"


class _Hangs(PoolError):
    """The daemon doesn't answer."""


def file_holders(mount: Mount, path: str) -> list[Holder] | None:
    """The processes that hold one file of a mount, by pid, as far as they can be seen.

    None: the path is no regular file, or the daemon hangs. Raises PoolError: it isn't there.
    """
    place = os.path.abspath(path)  # and not by its links: that would ask the mount
    try:
        told = _told(["stat", "-c", "%f %i", "--", place], place, _ANSWER_LIMIT_S).split()
    except _Hangs:
        return None
    mode, inode = int(told[0], 16), int(told[1])
    if not stat.S_ISREG(mode):
        return None
    device = mounts.device_of(mount.mount_id)
    found = {}
    for pid in others():
        proc = Path("/proc", str(pid))
        count = _descriptors(proc, mount.mount_id, inode)
        uses = [f"{count} times open" if count > 1 else "open"] if count else []
        if device and _maps(proc, device, inode):
            uses.append("mapped")
        if uses:
            found[pid] = Holder(pid, _text(proc / "comm").strip(), count, uses)
    for reader in leases.of_mount(_config(mount)) or []:
        size_bytes = sum(held.size_bytes for held in reader.held if held.inode == inode)
        if size_bytes:
            holder = found.setdefault(reader.pid, Holder(reader.pid, reader.command, 0, []))
            holder.uses.append(f"reads {format_size(size_bytes)} of it in place")
    return [found[pid] for pid in sorted(found)]


def leased(mount: Mount) -> list[dict[str, Any]]:
    """All that processes read in place, one entry for each process and file: ``pid``, ``command``,
    ``path`` (None: it has no name any more), ``inode``, ``bytes``; sorted by path.

    Looks for the names in all of the mount if anything is leased. Raises PoolError: the daemon
    hangs, or this user sees no leases.
    """
    readers = leases.of_mount(_config(mount))
    if readers is None:
        raise PoolError(_NOBODY_SEES, Exit.PERMISSION)
    wanted = {held.inode for reader in readers for held in reader.held}
    names = _names(mount.mount_point, wanted) if wanted else {}
    found = [
        {
            "pid": reader.pid,
            "command": reader.command,
            "path": names.get(held.inode),
            "inode": held.inode,
            "bytes": held.size_bytes,
        }
        for reader in readers
        for held in reader.held
    ]
    return sorted(found, key=lambda entry: (entry["path"] or "~", entry["inode"], entry["pid"]))


def file_lines(path: str, holders: list[Holder]) -> list[str]:
    """Who holds a file, for people."""
    if holders:
        return [f"{path} is held by process {holder}" for holder in holders]
    unseen = "" if os.geteuid() == 0 else " (of other users' processes, only root sees that)"
    return [f"nothing is seen to hold {path}{unseen}"]


def leased_lines(entries: list[dict[str, Any]]) -> list[str]:
    """What is leased, for people."""
    return [
        f"{entry['pid']} ({entry['command']}) {format_size(entry['bytes'])} "
        + (entry["path"] or f"inode {entry['inode']}, which has no name any more")
        for entry in entries
    ] or ["nothing is read in place"]


def _config(mount: Mount) -> dict[str, str]:
    place = os.path.join(mount.mount_point, os.fsdecode(DIRECTORY_NAME), "config")
    told = _told(["cat", "--", place], mount.mount_point, _ANSWER_LIMIT_S)
    return parse_pairs(told.decode("utf-8", "surrogateescape"))


def _names(mount_point: str, inodes: set[int]) -> dict[int, str]:
    """One path for each, if it has any."""
    walk = ["find", mount_point, "-xdev", "-type", "f", "-printf", r"%i %p\0"]
    names = {}
    for entry in _told(walk, mount_point, _WALK_LIMIT_S, partly=True).split(b"\0")[:-1]:
        number, _, name = entry.partition(b" ")
        if int(number) in inodes:
            names[int(number)] = os.fsdecode(name)
    return names


def _told(command: list[str], place: str, limit_s: float, *, partly: bool = False) -> bytes:
    """What a command has to say about a place in a mount. ``partly``: some of it may be gone."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C"},
    )
    try:
        told, error = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        child.kill()
        _left_behind.append(child)
        raise _Hangs(
            f"the daemon has not answered for {limit_s:.0f} s, asked for {place}", Exit.IO_ERROR
        ) from None
    if child.returncode and not partly:
        why = os.fsdecode(error).strip().rpartition(": ")[2] or "no answer"
        missing = why == os.strerror(2)
        raise PoolError(f"{place}: {why}", Exit.NOT_FOUND if missing else Exit.IO_ERROR)
    return told


def _descriptors(proc: Path, mount_id: int, inode: int) -> int:
    """How many descriptors a process has of an inode. Linux before 5.14 doesn't tell: none."""
    wanted = re.compile(rf"^mnt_id:\s*{mount_id}$.*^ino:\s*{inode}$", re.MULTILINE | re.DOTALL)
    try:
        numbers = os.listdir(proc / "fdinfo")
    except OSError:
        return 0
    return sum(bool(wanted.search(_text(proc / "fdinfo" / number))) for number in numbers)


def _maps(proc: Path, device: str, inode: int) -> bool:
    return f" {device} {inode} " in _text(proc / "maps")


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_bytes().decode("utf-8", "surrogateescape")
    return ""

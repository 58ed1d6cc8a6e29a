"""Who reads blocks of a pool in place on this machine, and which: from the lease files.

Each such process has a file that says what it holds (docs/format.md, section 19). They outlive the
daemon, so this works while none runs. They lie in a directory of the daemon's user: who is
neither that user nor root sees nothing.

A program that attaches a pool by itself has files without a name, which nobody else sees.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from belugafs import _native
from belugafs.format import (
    LOCAL_LEASE_MAGIC,
    LOCAL_LEASES,
    LOCAL_RESERVATIONS,
    LOCAL_VERSION,
    LocalLease,
    LocalReservation,
)
from belugafs.rundir import run_dir

_AT = {field.name: field.offset for field in LocalLease.layout()}
_ROOMS_BYTES = LocalReservation.nbytes() * LOCAL_RESERVATIONS
_LENGTH_SHIFT, _LENGTH_MASK = 40, 0xFFFF


@dataclass(frozen=True)
class Held:
    """One object that a process holds: its inode number, and how much of it."""

    inode: int
    size_bytes: int
    """A multiple of 4096."""


@dataclass(frozen=True)
class Reader:
    """A process that reads a pool in place."""

    pid: int
    """As the daemon saw it."""
    command: str
    uid: int
    since_ns: int
    """Since 1970: when it connected."""
    held: list[Held] = field(repr=False)
    reserved: list[Held] = field(repr=False)
    """Room for blocks to come: files without a name, pieces that were committed included."""

    @property
    def size_bytes(self) -> int:
        """Of all that it holds, each extent once."""
        return sum(held.size_bytes for held in self.held)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: ``pid``, ``command``, ``uid``, ``blocks``, ``bytes``, ``reserved_bytes``,
        ``since``."""
        return {
            "pid": self.pid,
            "command": self.command,
            "uid": self.uid,
            "blocks": len(self.held),
            "bytes": self.size_bytes,
            "reserved_bytes": sum(room.size_bytes for room in self.reserved),
            "since": _since(self.since_ns),
        }


def of_mount(config: dict[str, str]) -> list[Reader] | None:
    """Of a mount, by its ``.beluga/config``. None: this user can't see it."""
    socket = config.get("library_socket", "")
    if socket.endswith(".sock"):
        return _readers([socket.removesuffix(".sock")])
    identity = bytes.fromhex(config.get("uuid", ""))
    return of_pool(identity) if len(identity) == 16 else None


def of_pool(pool_uuid: bytes) -> list[Reader] | None:
    """Of a pool that may be mounted nowhere, with the run directory that this user's mounts have by
    default. None: this user can't see it."""
    name = uuid.UUID(bytes=pool_uuid).hex
    return _readers(glob.glob(f"{glob.escape(run_dir())}/{name}.*[0-9]"))


def _readers(directories: list[str]) -> list[Reader] | None:
    found = []
    for directory in directories:
        try:
            names = os.listdir(directory)
        except PermissionError:
            return None
        except (FileNotFoundError, NotADirectoryError):
            continue
        for name in names:
            if name.startswith("lease."):
                reader = _reader(os.path.join(directory, name))
                if reader is not None:
                    found.append(reader)
    return sorted(found, key=lambda reader: (-reader.size_bytes, reader.pid))


def _reader(path: str) -> Reader | None:
    """None: its process is gone, or it is no lease file that this version knows."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # removed meanwhile
        return None
    try:
        if not _is_locked(fd):
            return None
        head = os.pread(fd, _AT["held"], 0)
        if len(head) < _AT["held"] or _number(head, "magic", 8) != LOCAL_LEASE_MAGIC:
            return None
        if _number(head, "version", 4) != LOCAL_VERSION:
            return None
        count = min(_number(head, "high", 4), LOCAL_LEASES)
        words = os.pread(fd, 16 * count, _AT["held"])
        rooms = os.pread(fd, _ROOMS_BYTES, _AT["res"])
    finally:
        os.close(fd)
    pid = _number(head, "pid", 4)
    return Reader(
        pid,
        _command(pid),
        _number(head, "uid", 4),
        _number(head, "made_ns", 8),
        _held(words),
        _reserved(rooms),
    )


def _is_locked(fd: int) -> bool:
    """The lock is the process's for its life. A shared one that is let go at once disturbs nobody:
    a daemon that finds it takes a dead process for a living one until it looks again."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK:
            return True
        raise
    return False


def _number(head: bytes, name: str, size_bytes: int) -> int:
    return int.from_bytes(head[_AT[name] : _AT[name] + size_bytes], "little")


def _held(words: bytes) -> list[Held]:
    extents: dict[int, set[int]] = {}
    pairs = memoryview(words[: len(words) // 16 * 16]).cast("Q").tolist()
    for inode, word in zip(pairs[::2], pairs[1::2], strict=True):
        if word:
            extents.setdefault(inode, set()).add(word)
    return [
        Held(
            inode,
            sum((word >> _LENGTH_SHIFT & _LENGTH_MASK) + 1 for word in words_)
            * _native.GRANULE_BYTES,
        )
        for inode, words_ in sorted(extents.items())
    ]


def _reserved(rooms: bytes) -> list[Held]:
    """Most of the table is never used, and zero."""
    size_bytes = LocalReservation.nbytes()
    found = []
    for at in range(0, len(rooms) - size_bytes + 1, size_bytes):
        if any(rooms[at : at + 8]):
            room = LocalReservation.decode(rooms, at)
            found.append(Held(room.ino, room.count * room.granules * _native.GRANULE_BYTES))
    return found


def _command(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", errors="replace") as file:
        return file.read().strip()
    return ""


def _since(since_ns: int) -> str:
    try:
        when = datetime.fromtimestamp(since_ns / 1e9).astimezone()
    except (ValueError, OverflowError, OSError):  # what a process wrote into its file
        return "?"
    return when.isoformat(" ", "seconds")

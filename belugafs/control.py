"""The directory ``.beluga`` at the root of every mount: what the daemon says about itself.

Three files of text, one ``key value`` pair a line, made anew at each open,

- ``stats``: the pool's counters (``statfs`` of the core) and the daemon's own;
- ``config``: what was mounted, where and how;
- ``hosts``: one line for each host slot that is in use, as far as this host knows;

and one to be written to, by root and the daemon's user only:

- ``control``: takes a command, a line for each write; what it answers is read from the same
  descriptor (:mod:`belugafs.control_commands`).

The directory is looked up, but not listed, so that ``du``, ``rm -r`` and ``tar`` of a mount
don't meet it. It is no part of the pool: nothing in it can be made, changed or removed, and it
is there on a full or damaged pool too. Reading costs the same whatever the pool holds.

Inode numbers here have slot 0, which the core never gives to an object.
"""

import errno
import itertools
import os
import stat
import time
from collections.abc import Callable, Mapping

from belugafs import _native, control_commands

DIRECTORY_NAME = b".beluga"
DIRECTORY_INO = 1 << 32
COMMAND_NAME = b"control"
COMMAND_INO = 5 << 32
_FILES = {b"stats": 2 << 32, b"config": 3 << 32, b"hosts": 4 << 32, COMMAND_NAME: COMMAND_INO}


def is_control(ino: int) -> bool:
    """Whether an inode number is one of this module's."""
    return ino & 0xFFFF_FFFF == 0


def _printable(value: object) -> str:
    if isinstance(value, bytes):
        text = value.hex() if len(value) == 16 else value.rstrip(b"\0").decode("utf-8", "replace")
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    else:
        text = str(value)
    # A value is one word or more on one line, whatever a path or a label holds.
    return text.encode("unicode_escape").decode("ascii") if not text.isprintable() else text


def format_pairs(pairs: Mapping[str, object]) -> str:
    """Lines of ``key value``; an empty value leaves the key alone on its line."""
    return "".join(f"{key} {_printable(value)}".rstrip() + "\n" for key, value in pairs.items())


def parse_pairs(text: str) -> dict[str, str]:
    """The reverse, all values as text."""
    pairs = (line.partition(" ") for line in text.splitlines())
    return {key: value for key, _, value in pairs}


class ControlDirectory:
    """The files of one mount. No state besides the pool and the configuration."""

    def __init__(
        self,
        pool: _native.Pool,
        config: Mapping[str, object],
        counters: Callable[[], Mapping[str, object]] = dict,
    ) -> None:
        """``counters``: more of ``stats``, from other parts of the daemon."""
        self._pool = pool
        self.counters = [counters]
        self.config = dict(config)
        self._started_s = time.time()
        self._started_mono_s = time.monotonic()

    @property
    def started_ns(self) -> int:
        """The time that all files here carry."""
        return int(self._started_s * 1e9)

    def lookup(self, name: bytes) -> int | None:
        """The inode number of a file in the directory."""
        return _FILES.get(name)

    def names(self) -> list[tuple[bytes, int]]:
        """(name, inode number) of all files."""
        return list(_FILES.items())

    def mode(self, ino: int) -> int:
        if ino == DIRECTORY_INO:
            return stat.S_IFDIR | 0o555
        return stat.S_IFREG | (0o600 if ino == COMMAND_INO else 0o444)

    def text(self, ino: int) -> bytes:
        """The content of a file, as of now. Raises CoreError if the pool does."""
        if ino == COMMAND_INO:
            return b""
        if ino == _FILES[b"stats"]:
            return self._stats().encode()
        if ino == _FILES[b"config"]:
            return format_pairs(self.config).encode()
        return self._hosts().encode()

    def command(self, line: bytes) -> bytes:
        """Run what was written to ``control``; its answer. Raises CommandError and CoreError."""
        return control_commands.run(self._pool, line)

    def _stats(self) -> str:
        numbers: dict[str, object] = dict(self._pool.statfs())
        for counters in self.counters:
            numbers.update(counters())
        numbers["granule_bytes"] = _native.GRANULE_BYTES
        numbers["uptime_s"] = int(time.monotonic() - self._started_mono_s)
        numbers["pid"] = os.getpid()
        return format_pairs(numbers)

    def _hosts(self) -> str:
        numbers = self._pool.statfs()
        own, leader = numbers["slot"], numbers["leader_slot"]
        host = self.config.get("host", "")
        lines = [
            f"slot {own} self host {_printable(host)} leader {'yes' if own == leader else 'no'}"
        ]
        if leader != own:
            lines.append(f"slot {leader} leader yes")
        return "".join(line + "\n" for line in lines)


class ControlFiles:
    """Open files of the directory: what both transports do with them.

    Reads and writes may come from several threads.
    """

    FIRST_HANDLE = 1 << 62
    """Handles count up from here; the core's are smaller numbers."""

    def __init__(self, directory: ControlDirectory) -> None:
        self._directory = directory
        self._next = itertools.count(self.FIRST_HANDLE)
        self._texts: dict[int, bytes] = {}
        self._answers: dict[int, bytes] = {}  # to commands, what is still unread

    def open(self, ino: int, flags: int) -> int:
        """A handle. ``flags`` are open(2)'s. Raises PermissionError, and CoreError if the pool
        does."""
        if flags & os.O_ACCMODE != os.O_RDONLY and ino != COMMAND_INO:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        fh = next(self._next)
        self._texts[fh] = self._directory.text(ino)
        return fh

    def read(self, fh: int, offset: int, size_bytes: int) -> bytes:
        """Part of the text of when it was opened, or what is unread of a command's answer."""
        if fh not in self._answers:
            return self._texts[fh][offset : offset + size_bytes]
        # The write before has moved the descriptor's offset: an answer is read from its beginning
        # as a pipe would be.
        answer = self._answers[fh]
        part, self._answers[fh] = answer[:size_bytes], answer[size_bytes:]
        return part

    def write(self, fh: int, line: bytes) -> None:
        """Run a command. Raises OSError (EINVAL), and CoreError."""
        try:
            self._answers[fh] = self._directory.command(line)
        except control_commands.CommandError:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL)) from None

    def release(self, fh: int) -> None:
        """Forget an open file."""
        self._texts.pop(fh, None)
        self._answers.pop(fh, None)

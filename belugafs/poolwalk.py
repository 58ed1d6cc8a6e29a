"""All regular files of an attached pool, for those who check them. Names come and go meanwhile."""

import errno
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from belugafs import _native

_BATCH = 256
GONE = (errno.ENOENT, errno.ESTALE)


class File(NamedTuple):
    """One regular file."""

    path: str
    ino: int


def files(pool: _native.Pool, path: str, attr: _native.Attr) -> Iterator[File]:
    """A file, or the files below a directory, of several links of a file one. Raises CoreError
    for damaged metadata; what has gone is left out."""
    linked: set[int] = set()
    if stat.S_ISREG(attr.mode):
        yield File(path, attr.ino)
    pending = [(path, attr.ino)] if stat.S_ISDIR(attr.mode) else []
    while pending:
        directory, ino = pending.pop()
        after = 0
        while entries := _entries(pool, ino, after):
            for name, after, entry in entries:  # noqa: B007
                inner = os.path.join(directory, os.fsdecode(name))
                if stat.S_ISDIR(entry.mode):
                    pending.append((inner, entry.ino))
                elif stat.S_ISREG(entry.mode) and entry.ino not in linked:
                    if entry.nlink > 1:
                        linked.add(entry.ino)
                    yield File(inner, entry.ino)


def _entries(pool: _native.Pool, ino: int, after: int) -> list[tuple[bytes, int, _native.Attr]]:
    try:
        return pool.readdirplus(ino, after, _BATCH)
    except _native.CoreError as error:
        if error.errno in GONE:
            return []
        raise

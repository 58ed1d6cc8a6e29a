"""The directory ``.beluga`` over the direct transport: requests and replies in the kernel's layout.

The server in C hands over what concerns this directory: the opcode, the inode number and what is
behind the request's header. The answer is the body of the reply, or an errno. Everything else
that could be asked of these files is refused, as it is over pyfuse3.

Layouts are those of FUSE protocol 7.40, as in ``belugafs/_direct/proto.h``.
"""

import errno
import logging
import os
import struct
from collections.abc import Callable

from belugafs import _native
from belugafs.control import (
    COMMAND_INO,
    DIRECTORY_INO,
    DIRECTORY_NAME,
    ControlDirectory,
    ControlFiles,
)

log = logging.getLogger("belugafs.transport")

_CACHE_S = 1
_OPEN_DIRECT_IO = 1
_SET_SIZE = 1 << 3
_BLKSIZE_BYTES = 4096
_BASIC_STATS = 0x7FF
_AFTER_DOTDOT = 2

_ATTR = struct.Struct("<6Q10I")
_ENTRY = struct.Struct("<4Q2I")  # nodeid, generation, two validities in s, in ns; then _ATTR
_ATTR_OUT = struct.Struct("<Q2I")  # validity; then _ATTR
_OPEN_IN = struct.Struct("<2I")
_OPEN_OUT = struct.Struct("<Q2I")
_READ_IN = struct.Struct("<2Q2IQ2I")  # fh, offset, size, ...: of reads, writes and listings
_RELEASE_IN = struct.Struct("<Q2IQ")
_SETATTR_IN = struct.Struct("<2I6Q8I")
_WRITE_OUT = struct.Struct("<2I")
_DIRENT = struct.Struct("<2Q2I")
_STATX_OUT = struct.Struct("<Q2I2Q")
_STATX = struct.Struct("<2IQ3I2H4Q")  # up to attributes_mask
_STATX_TIME = struct.Struct("<qIi")
_STATX_TAIL = bytes(4 * 4 + 14 * 8)  # devices, spare


class ControlReplies:
    """Answers for one mount. ``answer`` is called from the server's threads, one at a time or
    several."""

    def __init__(self, directory: ControlDirectory) -> None:
        self._directory = directory
        self._files = ControlFiles(directory)
        self._handlers: dict[int, Callable[[int, bytes], bytes | int]] = {
            1: self._lookup,
            3: self._getattr,
            4: self._setattr,
            14: self._open,
            15: self._read,
            16: self._write,
            18: self._release,
            20: self._nothing,  # fsync
            22: self._no_attribute,  # getxattr
            23: self._listxattr,
            25: self._nothing,  # flush
            27: self._opendir,
            28: self._readdir,
            29: self._nothing,  # releasedir
            30: self._nothing,  # fsyncdir
            44: self._readdirplus,
            52: self._statx,
        }

    def answer(self, opcode: int, ino: int, uid: int, body: bytes) -> bytes | int:
        """The body of the reply, 0 for an empty one, or a negative errno."""
        handler = self._handlers.get(opcode)
        if handler is None:
            return -errno.EPERM
        try:
            return handler(ino, body)
        except OSError as error:
            return -(error.errno or errno.EIO)
        except Exception:
            log.exception("request %d of .beluga failed; the caller gets EIO", opcode)
            return -errno.EIO

    # ---- attributes ------------------------------------------------------------------------

    def _size(self, ino: int) -> int:
        return 0 if ino == DIRECTORY_INO else len(self._directory.text(ino))

    def _attr(self, ino: int) -> bytes:
        seconds, rest_ns = divmod(self._directory.started_ns, 10**9)
        return _ATTR.pack(
            *(ino, self._size(ino), 0, seconds, seconds, seconds),
            *(rest_ns, rest_ns, rest_ns, self._directory.mode(ino)),
            *(2 if ino == DIRECTORY_INO else 1, os.geteuid(), os.getegid(), 0),
            *(_BLKSIZE_BYTES, 0),
        )

    def _entry(self, ino: int) -> bytes:
        return _ENTRY.pack(ino, ino >> 32, _CACHE_S, 0, 0, 0) + self._attr(ino)

    def _lookup(self, ino: int, body: bytes) -> bytes | int:
        name = body.rstrip(b"\0")
        if ino == _native.ROOT_INO and name == DIRECTORY_NAME:
            return self._entry(DIRECTORY_INO)
        if name == b".":
            return self._entry(ino)
        if name == b".." and ino != DIRECTORY_INO:
            return self._entry(DIRECTORY_INO)
        found = self._directory.lookup(name) if ino == DIRECTORY_INO else None
        return -errno.ENOENT if found is None else self._entry(found)

    def _getattr(self, ino: int, body: bytes) -> bytes:
        return _ATTR_OUT.pack(0, 0, 0) + self._attr(ino)

    def _statx(self, ino: int, body: bytes) -> bytes:
        seconds, rest_ns = divmod(self._directory.started_ns, 10**9)
        head = _STATX.pack(
            *(_BASIC_STATS, _BLKSIZE_BYTES, 0, 2 if ino == DIRECTORY_INO else 1),
            *(os.geteuid(), os.getegid(), self._directory.mode(ino), 0, ino, self._size(ino), 0, 0),
        )
        started = _STATX_TIME.pack(seconds, rest_ns, 0)
        return _STATX_OUT.pack(0, 0, 0, 0, 0) + head + started * 4 + _STATX_TAIL

    def _setattr(self, ino: int, body: bytes) -> bytes | int:
        fields = _SETATTR_IN.unpack_from(body)
        if ino == COMMAND_INO and fields[0] & _SET_SIZE and not fields[3]:
            return self._getattr(ino, body)  # a shell's ``echo ... >control``
        return -errno.EPERM

    def _no_attribute(self, ino: int, body: bytes) -> int:
        return -errno.ENODATA

    def _listxattr(self, ino: int, body: bytes) -> bytes | int:
        (room,) = struct.unpack_from("<I", body)
        return 0 if room else struct.pack("<2I", 0, 0)

    def _nothing(self, ino: int, body: bytes) -> int:
        return 0

    # ---- files --------------------------------------------------------------------------------

    def _open(self, ino: int, body: bytes) -> bytes:
        flags, _ = _OPEN_IN.unpack_from(body)
        # The size that stat gives is already another one: read to the end, whatever it says.
        return _OPEN_OUT.pack(self._files.open(ino, flags), _OPEN_DIRECT_IO, 0)

    def _read(self, ino: int, body: bytes) -> bytes | int:
        fh, offset, size_bytes, *_ = _READ_IN.unpack_from(body)
        return self._files.read(fh, offset, size_bytes) or 0

    def _write(self, ino: int, body: bytes) -> bytes:
        fh, _, size_bytes, *_ = _READ_IN.unpack_from(body)
        self._files.write(fh, body[_READ_IN.size : _READ_IN.size + size_bytes])
        return _WRITE_OUT.pack(size_bytes, 0)

    def _release(self, ino: int, body: bytes) -> int:
        self._files.release(_RELEASE_IN.unpack_from(body)[0])
        return 0

    # ---- the directory -------------------------------------------------------------------------

    def _opendir(self, ino: int, body: bytes) -> bytes | int:
        return _OPEN_OUT.pack(ino, 0, 0) if ino == DIRECTORY_INO else -errno.ENOTDIR

    def _readdir(self, ino: int, body: bytes) -> bytes | int:
        return self._list(ino, body, plus=False)

    def _readdirplus(self, ino: int, body: bytes) -> bytes | int:
        return self._list(ino, body, plus=True)

    def _list(self, ino: int, body: bytes, *, plus: bool) -> bytes | int:
        _, offset, room, *_ = _READ_IN.unpack_from(body)
        entries = [(b".", ino), (b"..", _native.ROOT_INO), *self._directory.names()]
        out = b""
        for at, (name, number) in enumerate(entries[offset:], start=offset + 1):
            is_entry = at > _AFTER_DOTDOT
            kind = 8 if is_entry else 4
            part = _DIRENT.pack(number, at, len(name), kind) + name
            if plus:
                head = self._entry(number) if is_entry else bytes(_ENTRY.size + _ATTR.size)
                part = head + part
            part += bytes(-len(part) % 8)
            if len(out) + len(part) > room:
                break
            out += part
        return out or 0

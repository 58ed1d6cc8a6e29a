"""The pyfuse3 transport: FUSE requests become calls of the core, and nothing else happens here.

No state that a restart would miss: inode numbers are slots with generations, file handles are
the core's, a directory handle is the directory's inode number, forget has nothing to do.

**Caching in the kernel.** Names and attributes are cached for one second, absence is not cached
at all, file content is dropped at each open (``keep_cache=0``). The kernel sees every change
that is made through this mount, so what it can have wrong for a second is what the daemon does
by itself: eviction. That is harmless. ``stat`` may still find a block that was evicted within
the last second, as it might have a moment before; ``open`` asks the core, which answers ESTALE
for an inode that is gone, upon which the kernel looks the name up again and the caller gets
ENOENT. So a miss is ENOENT at open, and nothing stale is ever read. With ``publish=close`` a
name being written for the first time is not cached, so that only its descriptors reach it.
``direct_io`` is never set on files of the pool: it would make every mmap fail.

**Threads.** Everything runs on trio's one thread, and no handler has an await between its first
and its last step: what it reads and changes is its own until it returns. Core calls run without
the GIL. Handing long copies to worker threads was tried and is slower at every size and number
of clients on two processors (1 MiB reads: 1.4 GB/s against 2.4 with one client, 1.9 against 2.4
in sum with four): the hand-over costs more than it overlaps. The core itself is thread-safe and
holds no lock while a request waits here; no invalidation is ever sent from a handler.

**Errors.** The core's errno goes to the caller as it is. EIO is logged, with the core's words.
Anything unexpected is logged with its traceback and becomes EIO: the daemon must not die of it.

**Where a write goes** is the kernel's decision, also with O_APPEND, which fcntl may set and clear
while a file is open: so the core isn't told of it.

**A writer that is killed doesn't seal**: see :mod:`belugafs.opener`.
"""

import contextlib
import errno
import functools
import logging
import os
import stat
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

import pyfuse3
from pyfuse3 import EntryAttributes, FileHandleT, FileInfo, FUSEError

from belugafs import _native
from belugafs.control import (
    COMMAND_INO,
    DIRECTORY_INO,
    DIRECTORY_NAME,
    ControlDirectory,
    ControlFiles,
    is_control,
)
from belugafs.opener import Opener, has_open, is_killed, opener_of

log = logging.getLogger("belugafs.transport")

CACHE_S = 1.0

# One chunk of checksums: programs that buffer by st_blksize then write whole chunks.
BLKSIZE_BYTES = 256 * 1024
SECTOR_BYTES = 512  # of st_blocks
REQUEST_BYTES = 1 << 20  # the largest that libfuse asks the kernel for

COMPUTED_XATTRS = b"user.beluga."
PIN_XATTR = b"user.beluga.pin"

# Positions in a listing: the core's cookies begin at 1.
_AFTER_DOT = 1
_AFTER_DOTDOT = 2
_COOKIE_SHIFT = 2
_READDIR_BATCH = 32

_CONTROL_HANDLE = ControlFiles.FIRST_HANDLE

_TIME_MAX_NS = (1 << 63) - 1

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])


def _edge(handler: F) -> F:
    """The one place where exceptions become an errno for the kernel."""

    @functools.wraps(handler)
    async def wrapper(self: "Operations", *args: Any) -> Any:
        try:
            return await handler(self, *args)
        except FUSEError:
            raise
        except _native.CoreError as error:
            raise self.answer(handler.__name__, error) from None
        except Exception:
            log.exception("%s failed; the caller gets EIO", handler.__name__)
            raise FUSEError(errno.EIO) from None

    return cast(F, wrapper)


def _clamped(time_ns: int) -> int:
    """A time that the pool can hold, the years 1677 to 2262: others become the nearest, as on
    every filesystem."""
    return max(-_TIME_MAX_NS, min(time_ns, _TIME_MAX_NS))


class Operations(pyfuse3.Operations):
    """Requests of one mount on one attached pool.

    ``on_ready`` is called once, when the kernel's first request has been answered.
    """

    supports_dot_lookup = True
    enable_writeback_cache = False
    enable_acl = False

    def __init__(
        self,
        pool: _native.Pool,
        control: ControlDirectory,
        *,
        publish_close: bool = False,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._pool = pool
        self._control = control
        self._on_ready = on_ready
        self._new_entry_s = 0.0 if publish_close else CACHE_S
        # Who opened what for writing, from open to release.
        self._writers: dict[int, Opener] = {}
        # With publish=close: inode numbers of files whose first writing goes on, by handle.
        self._hidden: dict[int, int] | None = {} if publish_close else None
        self.device = ""
        """The mount's, as mountinfo writes it; known once it is mounted."""
        self._buffer = memoryview(bytearray(REQUEST_BYTES))
        self._control_files = ControlFiles(control)
        self._last_error: str | None = None

    def init(self) -> None:
        """The kernel and libfuse have agreed on a protocol."""
        self._on_ready()

    def answer(self, name: str, error: _native.CoreError) -> FUSEError:
        """The core's error, for the caller."""
        number = error.errno or errno.EIO
        if number == errno.EIO:
            # Whoever reads a damaged block asks for each of its pages, and then tries again.
            if error.strerror != self._last_error:
                log.error("%s: %s", name, error.strerror)
            self._last_error = error.strerror
        elif number == errno.ENOENT and error.strerror != os.strerror(number):
            log.error("%s: %s", name, error.strerror)  # no ordinary miss: its backing file is gone
        elif number == errno.EAGAIN:
            # Only a host that lost the lead says so, and a caller must not take it for a
            # descriptor that would block.
            log.warning("%s: %s", name, error.strerror)
            number = errno.EIO
        return FUSEError(number)

    # ---- attributes ---------------------------------------------------------------------

    def _entry(self, attr: _native.Attr, cache_s: float = CACHE_S) -> EntryAttributes:
        entry = EntryAttributes()
        entry.st_ino = attr.ino
        entry.generation = attr.ino >> 32
        entry.entry_timeout = cache_s
        entry.attr_timeout = cache_s
        entry.st_mode = attr.mode
        entry.st_nlink = attr.nlink
        entry.st_uid = attr.uid
        entry.st_gid = attr.gid
        entry.st_rdev = attr.rdev
        entry.st_size = attr.size
        entry.st_blksize = BLKSIZE_BYTES
        entry.st_blocks = attr.granules * (_native.GRANULE_BYTES // SECTOR_BYTES)
        entry.st_atime_ns = attr.atime_ns
        entry.st_mtime_ns = attr.mtime_ns
        entry.st_ctime_ns = attr.ctime_ns
        entry.st_birthtime_ns = attr.btime_ns
        return entry

    def _control_entry(self, ino: int) -> EntryAttributes:
        entry = EntryAttributes()
        entry.st_ino = ino
        entry.entry_timeout = CACHE_S
        entry.attr_timeout = 0
        entry.st_mode = self._control.mode(ino)
        entry.st_nlink = 2 if ino == DIRECTORY_INO else 1
        entry.st_uid = os.geteuid()
        entry.st_gid = os.getegid()
        entry.st_size = 0 if ino == DIRECTORY_INO else len(self._control.text(ino))
        entry.st_blocks = 0
        started_ns = self._control.started_ns
        entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = started_ns
        return entry

    @_edge
    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> EntryAttributes:
        if name == b".":
            return self._any_entry(parent_inode)
        if name == b"..":
            return self._any_entry(self._parent(parent_inode))
        if parent_inode == _native.ROOT_INO and name == DIRECTORY_NAME:
            return self._control_entry(DIRECTORY_INO)
        if is_control(parent_inode):
            ino = self._control.lookup(name)
            if ino is None:
                raise FUSEError(errno.ENOENT)
            return self._control_entry(ino)
        return self._entry(self._pool.lookup(parent_inode, name))

    @_edge
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> EntryAttributes:
        return self._any_entry(inode)

    def _any_entry(self, inode: int) -> EntryAttributes:
        if is_control(inode):
            return self._control_entry(inode)
        return self._entry(self._pool.getattr(inode))

    def _parent(self, inode: int) -> int:
        if inode == DIRECTORY_INO:
            return _native.ROOT_INO
        return DIRECTORY_INO if is_control(inode) else self._pool.parent(inode)

    @_edge
    async def setattr(
        self,
        inode: int,
        attr: EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> EntryAttributes:
        if inode == COMMAND_INO and fields.update_size and not attr.st_size:
            return self._control_entry(inode)  # a shell's ``echo ... >control``
        self._refuse_control(inode)
        mode = None
        if fields.update_mode:
            mode = stat.S_IMODE(attr.st_mode)
        elif fields.update_uid or fields.update_gid or (fields.update_size and ctx.uid != 0):
            mode = self._without_privileges(inode)
        changed = self._pool.setattr(
            inode,
            mode=mode,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
            size=attr.st_size if fields.update_size else None,
            atime_ns=_clamped(attr.st_atime_ns) if fields.update_atime else None,
            mtime_ns=_clamped(attr.st_mtime_ns) if fields.update_mtime else None,
            ctime_ns=_clamped(attr.st_ctime_ns) if fields.update_ctime else None,
            fh=fh or 0,
        )
        return self._entry(changed)

    def _without_privileges(self, inode: int) -> int | None:
        """The mode without set-user-id and set-group-id, None if it has neither, or is a
        directory's: libfuse has told the kernel that these are taken away here. The kernel does
        it for writes."""
        mode = self._pool.getattr(inode).mode
        drop = stat.S_ISUID | (stat.S_ISGID if mode & stat.S_IXGRP else 0)
        if stat.S_ISDIR(mode) or not mode & drop:
            return None
        return stat.S_IMODE(mode & ~drop)

    @staticmethod
    def _refuse_control(inode: int, name: bytes | None = None) -> None:
        """Nothing in .beluga changes, nor the name itself."""
        if is_control(inode) or (inode == _native.ROOT_INO and name == DIRECTORY_NAME):
            raise FUSEError(errno.EPERM)

    # ---- names ---------------------------------------------------------------------------

    @_edge
    async def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: pyfuse3.RequestContext
    ) -> EntryAttributes:
        self._refuse_control(parent_inode, name)
        return self._entry(self._pool.mkdir(parent_inode, name, mode, ctx.uid, ctx.gid))

    @_edge
    async def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: pyfuse3.RequestContext
    ) -> EntryAttributes:
        self._refuse_control(parent_inode, name)
        return self._entry(self._pool.mknod(parent_inode, name, mode, rdev, ctx.uid, ctx.gid))

    @_edge
    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: pyfuse3.RequestContext
    ) -> EntryAttributes:
        self._refuse_control(parent_inode, name)
        return self._entry(self._pool.symlink(parent_inode, name, target, ctx.uid, ctx.gid))

    @_edge
    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        return self._pool.readlink(inode)

    @_edge
    async def unlink(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        self._refuse_control(parent_inode, name)
        self._pool.unlink(parent_inode, name)

    @_edge
    async def rmdir(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        self._refuse_control(parent_inode, name)
        self._pool.rmdir(parent_inode, name)

    @_edge
    async def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        self._refuse_control(parent_inode_old, name_old)
        self._refuse_control(parent_inode_new, name_new)
        self._pool.rename(parent_inode_old, name_old, parent_inode_new, name_new, flags)

    @_edge
    async def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, ctx: pyfuse3.RequestContext
    ) -> EntryAttributes:
        self._refuse_control(inode)
        self._refuse_control(new_parent_inode, new_name)
        return self._entry(self._pool.link(inode, new_parent_inode, new_name))

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        """Nothing is held for an inode that the kernel knows."""

    # ---- directories ----------------------------------------------------------------------

    @_edge
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> FileHandleT:
        if not is_control(inode):
            self._pool.opendir(inode)
        return FileHandleT(inode)

    @_edge
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        if start_id < _AFTER_DOT and not self._list(token, b".", self._any_entry(fh), _AFTER_DOT):
            return
        if start_id < _AFTER_DOTDOT:
            above = self._any_entry(self._parent(fh))
            if not self._list(token, b"..", above, _AFTER_DOTDOT):
                return
        if is_control(fh):
            self._list_control(token, start_id)
            return
        after = max(0, start_id - _COOKIE_SHIFT)
        while entries := self._pool.readdirplus(fh, after, _READDIR_BATCH):
            for name, cookie, attr in entries:
                # A directory that may be reaped: who uses the name has to ask for it himself.
                cache_s = 0.0 if attr.flags & _native.OF_EMPTIED else CACHE_S
                if not self._list(token, name, self._entry(attr, cache_s), cookie + _COOKIE_SHIFT):
                    return
            after = entries[-1][1]

    @staticmethod
    def _list(
        token: pyfuse3.ReaddirToken, name: bytes, entry: EntryAttributes, next_id: int
    ) -> bool:
        return bool(pyfuse3.readdir_reply(token, name, entry, next_id))

    def _list_control(self, token: pyfuse3.ReaddirToken, start_id: int) -> None:
        for at, (name, ino) in enumerate(self._control.names(), start=_AFTER_DOTDOT + 1):
            if at > start_id and not self._list(token, name, self._control_entry(ino), at):
                return

    @_edge
    async def releasedir(self, fh: int) -> None:
        # A directory handle is its inode number.
        if not is_control(fh):
            self._pool.releasedir(fh)

    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        """Names are in the pool when the call that made them returns."""

    # ---- files -----------------------------------------------------------------------------

    @_edge
    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        self._refuse_control(parent_inode, name)
        attr, fh = self._pool.create(
            parent_inode, name, mode, ctx.uid, ctx.gid, flags & ~os.O_APPEND
        )
        self._note_writer(fh, ctx.pid)
        if self._hidden is not None:
            self._hidden[fh] = attr.ino
        return FileInfo(fh=fh, keep_cache=False), self._entry(attr, self._new_entry_s)

    @_edge
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> FileInfo:
        if is_control(inode):
            return self._open_control(inode, flags)
        if flags & os.O_TRUNC and ctx.uid != 0:
            mode = self._without_privileges(inode)
            if mode is not None:
                self._pool.setattr(inode, mode=mode)
        fh = self._pool.open(inode, flags & ~os.O_APPEND)
        if flags & (os.O_ACCMODE | os.O_TRUNC):
            self._note_writer(fh, ctx.pid)
        return FileInfo(fh=fh, keep_cache=False)

    def _open_control(self, inode: int, flags: int) -> FileInfo:
        try:
            fh = self._control_files.open(inode, flags)
        except PermissionError:
            raise FUSEError(errno.EPERM) from None
        # The size that stat gives is already another one: read to the end, whatever it says.
        return FileInfo(fh=fh, direct_io=True, keep_cache=False)

    def _note_writer(self, fh: int, thread_id: int) -> None:
        opener = opener_of(thread_id)
        if opener is not None:
            self._writers[fh] = opener

    @_edge
    async def read(self, fh: int, off: int, size: int) -> bytes | memoryview:
        if fh >= _CONTROL_HANDLE:
            return self._control_files.read(fh, off, size)
        # The reply is written before any other handler runs, so one buffer does for all: a new
        # one for each request would have to be faulted in each time.
        if size > len(self._buffer):
            self._buffer = memoryview(bytearray(size))
        return self._buffer[: self._pool.read_into(fh, off, self._buffer[:size])]

    @_edge
    async def write(self, fh: int, off: int, buf: bytes) -> int:
        if fh >= _CONTROL_HANDLE:
            try:
                self._control_files.write(fh, buf)
            except _native.CoreError:
                raise
            except OSError as error:
                raise FUSEError(error.errno or errno.EIO) from None
            return len(buf)
        return self._pool.write(fh, off, buf)

    @_edge
    async def flush(self, fh: int) -> None:
        if fh >= _CONTROL_HANDLE:
            return
        writer = self._writers.get(fh)
        killed = is_killed(writer)
        if self._hidden and fh in self._hidden:
            if not killed and has_open(writer, self.device, self._hidden[fh]):
                return  # a duplicate's, or a child's: its writer hasn't closed it
            del self._hidden[fh]
        self._pool.flush(fh, killed=killed)

    @_edge
    async def fsync(self, fh: int, datasync: bool) -> None:
        if fh < _CONTROL_HANDLE:
            self._pool.fsync(fh)

    @_edge
    async def release(self, fh: int) -> None:
        if fh >= _CONTROL_HANDLE:
            self._control_files.release(fh)
            return
        self._writers.pop(fh, None)
        if self._hidden:
            self._hidden.pop(fh, None)
        self._pool.release(fh)

    # ---- the whole --------------------------------------------------------------------------

    @_edge
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        numbers = self._pool.statfs()
        if numbers["quarantined_granules"] and numbers["is_leader"]:
            # What was freed a moment ago, and nobody reads: df shows it as soon as it is asked.
            with contextlib.suppress(_native.CoreError):
                self._pool.apply_scan()
                self._pool.reclaim()
            numbers = self._pool.statfs()
        usable = numbers["data_granules"] - numbers["bad_granules"]
        free = max(0, usable - numbers["used_granules"])
        inodes_free = numbers["inodes"] - numbers["inodes_used"]
        data = pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = _native.GRANULE_BYTES
        data.f_blocks = usable
        data.f_bfree = free
        # Freed, but somebody still reads it: free, and not to be had at this moment.
        data.f_bavail = max(0, free - numbers["quarantined_granules"])
        data.f_files = numbers["inodes"]
        data.f_ffree = data.f_favail = inodes_free
        data.f_namemax = _native.NAME_MAX
        return data

    # ---- extended attributes ------------------------------------------------------------------

    @_edge
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        # The kernel asks for security.capability before every write.
        if name.startswith(b"security.") or is_control(inode):
            raise FUSEError(pyfuse3.ENOATTR)
        return self._pool.getxattr(inode, name)

    @_edge
    async def setxattr(
        self, inode: int, name: bytes, value: bytes, ctx: pyfuse3.RequestContext
    ) -> None:
        self._refuse_control(inode)
        self._refuse_namespace(name)
        self._pool.setxattr(inode, name, value)

    @_edge
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> list[bytes]:
        if is_control(inode):
            return []
        # What the core computes (user.beluga.state, ...) cannot be set, so a copy with all that
        # is listed would fail over it: it is there for those who ask by name.
        hidden = (COMPUTED_XATTRS, *(() if ctx.uid == 0 else (b"trusted.",)))
        names = self._pool.listxattr(inode)
        return [name for name in names if name == PIN_XATTR or not name.startswith(hidden)]

    @_edge
    async def removexattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        self._refuse_control(inode)
        self._refuse_namespace(name)
        self._pool.removexattr(inode, name)

    @staticmethod
    def _refuse_namespace(name: bytes) -> None:
        """security.* and POSIX ACLs would be promises that nobody here keeps."""
        if name.startswith((b"security.", b"system.")):
            raise FUSEError(errno.EOPNOTSUPP)

    def stacktrace(self) -> None:
        """pyfuse3 offers a dump of all tasks by a magic attribute; not on a mount of ours."""

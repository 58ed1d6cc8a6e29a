"""The C core of belugafs, one method for each of its calls.

Every call may come from any thread and runs without the GIL. A call that the core refuses
raises :class:`CoreError` with the errno and the core's own message. Numbers are checked: a
negative or too large one is OverflowError, never cut. Names are bytes, or str by the
filesystem encoding (surrogateescape). Times are nanoseconds since 1970. A granule is
``GRANULE_BYTES`` of data.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from _typeshed import ReadableBuffer, WriteableBuffer

Name: TypeAlias = bytes | str

ROOT_INO: int
GRANULE_BYTES: int
NAME_MAX: int
KEY_MAX: int
HOSTS_MAX: int
VERSION_MAJOR: int
VERSION_MINOR: int

CLS_NONE: int
CLS_BLOCK: int
CLS_ORDINARY: int

ST_FREE: int
ST_SEALED: int
ST_NEW: int
ST_DIRTY: int
ST_ABANDONED: int

OF_NSBLOCK: int
OF_NOSUM: int
OF_UNVERIFIED: int
OF_PINNED: int
OF_PUBLISHED: int
OF_PINNED_SOFT: int
OF_EMPTIED: int

SET_MODE: int
SET_UID: int
SET_GID: int
SET_SIZE: int
SET_ATIME: int
SET_MTIME: int
SET_CTIME: int

RENAME_NOREPLACE: int
RENAME_EXCHANGE: int

class CoreError(OSError):
    """errno and the core's message (``strerror``)."""

class PoolFormatError(CoreError):
    """No pool that this version can use: what was expected, what was found."""

class Attr(NamedTuple):
    """Attributes of one object. state is one of ``ST_*``, cls of ``CLS_*``, flags of ``OF_*``;
    owner is the host slot + 1 that writes it, 0 for nobody."""

    ino: int
    size: int
    granules: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    btime_ns: int
    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    version: int
    cls: int
    state: int
    owner: int
    flags: int

def mkfs(
    fd: int,
    size_bytes: int,
    *,
    uuid: bytes,
    max_size_bytes: int = 0,
    inodes: int = 0,
    hosts: int = 16,
    label: bytes = b"",
    page_bytes: int = 4096,
    meta_pages: int = 0,
    region_granules: int = 0,
    chunk_bytes: int = 0,
    rows: int = 0,
    ring_entries: int = 0,
    align_bytes: int = 0,
    directory_bytes: int = 0,
) -> dict[str, Any]:
    """Write an empty pool into the first size_bytes of a file or device.

    0 means the default, from the size. Returns the superblock as :func:`peek` does. Whatever
    the pool held is gone: whether that is wanted has been asked before.
    """

def directory_bytes(data_bytes: int, *, inodes: int = 0, hosts: int = 1) -> int:
    """How large the file of metadata of a directory pool must be, whose tmpfs has data_bytes:
    what mkfs wants as size_bytes, together with ``directory_bytes=data_bytes``.

    Raises CoreError (EINVAL) where such a pool is impossible.
    """

def peek(fd: int, size_bytes: int) -> dict[str, Any]:
    """The superblock, checked. size_bytes is what is really there.

    Raises PoolFormatError where there is no pool (all zero, foreign), where it is damaged,
    truncated, or of a version or with features that this code doesn't know.
    """

def fsck(
    fd: int,
    size_bytes: int,
    data: bool,
    callback: Callable[[int, str, str], object],
    *,
    repair: bool = False,
    host_uuid: bytes = ...,
    boot_id: bytes = ...,
    gone: int = 0,
    ask: Callable[[bool, str], bool] | None = None,
    progress: Callable[[str, int, int], object] | None = None,
    data_fd: int = -1,
) -> dict[str, int]:
    """Check a pool that nobody has attached, and repair it if asked to.

    callback(severity, code, text) is called for each finding, severity 0 for a note, 1 for a
    problem, 2 for what a repair has changed. data: read and check all blocks too.

    repair needs the pool for itself (an exclusive lock) and a descriptor that can be written
    to. A host slot that is registered with neither ``host_uuid`` nor ``boot_id`` (16 bytes
    each), and isn't among the bits of ``gone``, is taken to be attached elsewhere: CoreError
    with EBUSY. ask(loses, question) answers for each step, None answers yes; loses says that
    something won't be there afterwards. progress(what, done, total) is called now and then.

    An exception that a callback raises comes out of here; a repair that is not published yet
    is given up then. Of the result, problems are those found first and left those that are
    still there; changed counts the steps that were done. Raises CoreError: EUCLEAN (no
    superblock), EBUSY, EPROTONOSUPPORT (made by a newer version), ENOSPC (not enough metadata
    pages), EIO.
    """

class Pool:
    """One pool, attached as one host, from a descriptor that may be closed afterwards.

    host_uuid and boot_id are 16 bytes each; slot -1 takes the host's former slot or a free
    one. ``readonly`` stores nothing into the pool, not even a registration. ``follower``
    leaves the lead alone at attach. Watermarks 0, suspect_s 0 and reap_after_s 0 (for how long
    a directory that eviction emptied has to be unused before it may go) are the defaults.
    data_fd: of the directory of backing files, for a directory pool.

    Not closed, it ends like a killed process: nothing more is sealed. After a fork the child
    has to attach for itself; in it, every call is RuntimeError.
    """

    def __init__(
        self,
        fd: int,
        size_bytes: int,
        *,
        host_uuid: bytes,
        boot_id: bytes,
        readonly: bool = False,
        slot: int = -1,
        evict: Literal["lru", "none", "all"] = "lru",
        verify: Literal["first", "always", "off"] = "first",
        coherence: Literal["coherent", "incoherent"] = "coherent",
        publish_close: bool = False,
        follower: bool = False,
        high_permille: int = 0,
        low_permille: int = 0,
        suspect_s: float = 0,
        reap_after_s: int = 0,
        data_fd: int = -1,
    ) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def close(self, clean: bool = True) -> None:
        """Detach: wait until other threads are out of the core, seal what is closed, drop
        what isn't, give the lead back. clean=False only releases memory, as a killed
        process would. Further calls do nothing."""

    @property
    def closed(self) -> bool: ...
    @property
    def buffer(self) -> memoryview:
        """All data of the pool, read-only. Granule n begins at n * GRANULE_BYTES. The
        mapping stays as long as this view is held, also beyond close()."""

    # The protocol's steps.
    def claim(self) -> int: ...
    def is_leader(self) -> bool: ...
    def refresh(self) -> int: ...
    def tick(self) -> int: ...
    def apply_scan(self) -> int: ...
    def reclaim(self) -> int: ...
    def headroom(self) -> int:
        """Directory pools: evict ahead of writers that don't pass through the core."""
    def declare_dead(self, slot: int, fenced: bool = False) -> None: ...

    # Names.
    def lookup(self, dir: int, name: Name, /) -> Attr: ...
    def getattr(self, ino: int, /) -> Attr: ...
    def setattr(
        self,
        ino: int,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        size: int | None = None,
        atime_ns: int | None = None,
        mtime_ns: int | None = None,
        ctime_ns: int | None = None,
        fh: int = 0,
    ) -> Attr:
        """Change what is not None; fh is the open handle of an ftruncate, or 0."""

    def mkdir(
        self, dir: int, name: Name, mode: int = 0o755, uid: int = 0, gid: int = 0
    ) -> Attr: ...
    def mknod(
        self, dir: int, name: Name, mode: int, rdev: int = 0, uid: int = 0, gid: int = 0
    ) -> Attr: ...
    def symlink(self, dir: int, name: Name, target: Name, uid: int = 0, gid: int = 0) -> Attr: ...
    def readlink(self, ino: int, /) -> bytes: ...
    def unlink(self, dir: int, name: Name, /) -> None: ...
    def rmdir(self, dir: int, name: Name, /) -> None: ...
    def rename(self, dir: int, name: Name, dir2: int, name2: Name, flags: int = 0) -> None: ...
    def link(self, ino: int, dir: int, name: Name, /) -> Attr: ...
    def readdir(
        self, dir: int, after: int = 0, max: int = 256
    ) -> list[tuple[bytes, int, int, int]]:
        """(name, cookie, inode, type = mode >> 12) of entries with a cookie above ``after``;
        the empty list is the end. Without "." and ".."."""

    def readdirplus(
        self, dir: int, after: int = 0, max: int = 256
    ) -> list[tuple[bytes, int, Attr]]:
        """(name, cookie, attributes), as readdir; what is gone meanwhile is left out."""

    def parent(self, ino: int, /) -> int: ...
    def opendir(self, ino: int, /) -> None:
        """Until releasedir, the directory is not removed, should eviction empty it."""

    def releasedir(self, ino: int, /) -> None: ...

    # Extended attributes.
    def setxattr(self, ino: int, name: Name, value: ReadableBuffer, flags: int = 0) -> None: ...
    def getxattr(self, ino: int, name: Name, /) -> bytes: ...
    def listxattr(self, ino: int, /) -> list[bytes]: ...
    def removexattr(self, ino: int, name: Name, /) -> None: ...

    # Files. flags are those of open(2).
    def create(
        self,
        dir: int,
        name: Name,
        mode: int = 0o644,
        uid: int = 0,
        gid: int = 0,
        flags: int = 0,
    ) -> tuple[Attr, int]: ...
    def tmpfile(
        self, dir: int, mode: int = 0o644, uid: int = 0, gid: int = 0, flags: int = ...
    ) -> tuple[Attr, int]:
        """A file without a name (O_TMPFILE), open for reading and writing unless flags say
        otherwise; gone with its last handle. Without O_EXCL in flags, link() may give it a
        name, which seals it. EINVAL: flags that don't write."""

    def open(self, ino: int, flags: int = 0, /) -> int: ...
    def read(self, fh: int, off: int, length: int, /) -> bytes: ...
    def read_into(self, fh: int, off: int, buffer: WriteableBuffer) -> int: ...
    def write(self, fh: int, off: int, data: ReadableBuffer, /) -> int: ...
    def reserve(self, fh: int, size_bytes: int, /) -> None: ...
    def fallocate(self, fh: int, mode: int, off: int, length: int, /) -> None:
        """As fallocate(2), with its constants in mode: 0, KEEP_SIZE, PUNCH_HOLE | KEEP_SIZE,
        ZERO_RANGE with or without KEEP_SIZE; anything else is EOPNOTSUPP. What has room is
        written without ENOSPC until the file is sealed. One that fails leaves the file as it
        was. In a batch EBUSY."""

    def seek(self, fh: int, off: int, whence: int, /) -> int:
        """The next data or hole from off on, whence os.SEEK_DATA or os.SEEK_HOLE. What was
        allocated and never written is data. ENXIO: none, or off is behind the end."""

    def flush(self, fh: int, killed: bool = False) -> None: ...
    def fsync(self, fh: int, /) -> None: ...
    def release(self, fh: int, /) -> None: ...
    def backing_fd(self, fh: int, write: bool = False) -> int:
        """Directory pools: a read-only descriptor of an open file's backing file. It belongs to
        the core and is closed with the file's last release.

        write: somebody is going to store into the file without the core, through passthrough or a
        mapping; fh must be open for writing. Until nobody can any more the file isn't verified.
        Without it, all of a sealed file is checked first, as the pool's ``verify`` says.
        Raises CoreError: EIO, some of it is damaged; EOPNOTSUPP in a flat pool.
        """
    def verify(self, ino: int, off: int = 0, max_bytes: int = ...) -> dict[str, int]:
        """Compare a regular file with its checksums, about max_bytes from off on (rounded down
        to a chunk), whatever the pool was attached with, and without a use in the sense of
        recency.

        done, next (where to go on), checked_bytes, unchecked_bytes (being written, or without
        checksums), bad_chunks, and of the first bad one bad_off and bad_bytes. Damage is no
        error; it is counted as ``corrupt``, and a read of it is EIO from now on.
        """

    # Native blocks. keys: raw keys of key_bytes each, one after the other.
    def ns_create(self, name: Name, /) -> int: ...
    def block_put(self, ns: int, key: ReadableBuffer, data: ReadableBuffer, /) -> None: ...
    def block_get(self, ns: int, key: ReadableBuffer, buffer: WriteableBuffer, /) -> int: ...
    def block_delete(self, ns: int, key: ReadableBuffer, /) -> None: ...
    def block_exists(self, ns: int, keys: ReadableBuffer, key_bytes: int, /) -> bytes:
        """One byte for each key, 1 = present."""

    def block_match(self, ns: int, keys: ReadableBuffer, key_bytes: int, /) -> int:
        """Length of the longest present prefix, in keys."""

    # Calls of this thread between begin and commit are one transaction.
    def batch_begin(self) -> None: ...
    def batch_commit(self) -> None: ...
    def batch_abort(self) -> None: ...

    # Capacity.
    def statfs(self) -> dict[str, Any]: ...
    def evict(self, granules: int, /) -> int: ...
    def evictable(self, slot: int, slots: int, /) -> tuple[int, int]:
        """What evict could free of the objects in ``slots`` slots from ``slot`` on, in granules:
        blocks that are neither pinned hard nor open, and ordinary files with ``evict="all"``.
        Then the slot to go on with; 0: that was all."""

    def touch(self, ino: int, /) -> None: ...
    def prefault(self, off: int, length: int, /) -> bool:
        """Set up this process's page tables for bytes of the mapping. Memory that a sparse
        pool doesn't have yet is taken. False: not possible here, which costs speed only."""

    def extents(self, ino: int, max: int = 1024) -> list[tuple[int, int, int, bool]]:
        """(file granule, granule address, length in granules, overlay) of a file's data."""

def opener_of(thread_id: int, /) -> tuple[int, int] | None:
    """The process of a thread: its id, and its start in ticks since boot. None where it cannot be
    seen. Costs two small reads of /proc, once a second for each thread."""

def is_killed(tgid: int, start_ticks: int, /) -> bool:
    """Whether that process is exiting because of a signal. False where it cannot be told."""

class DirectServer:
    """Serves the FUSE protocol on a mounted descriptor of /dev/fuse, by threads without the GIL.

    Made, it has answered the kernel's first request. ``control`` answers for the directory
    ``.beluga``: (opcode, inode number, uid, body) to the body of the reply, 0 for an empty one,
    or a negative errno. ``log`` is called as ``logging.log``. ``threads`` wait for requests at a
    time; more are added while all are held up. ``still_open`` is for pools attached with
    ``publish_close``: (process, its start in ticks, inode number) to whether that process has the
    file open. ``passthrough`` is a descriptor of a file of a directory pool's tmpfs: files get
    passthrough, if the kernel takes this one; -1: without. ``sync``: each write is synced. Raises
    OSError (EPROTO: kernel too old).
    """

    def __init__(
        self,
        pool: Pool,
        fd: int,
        control: Callable[[int, int, int, bytes], bytes | int],
        log: Callable[[int, str], None],
        *,
        max_pages: int = ...,
        threads: int = 1,
        still_open: Callable[[int, int, int], bool] | None = None,
        passthrough: int = -1,
        sync: bool = False,
    ) -> None: ...
    def fileno(self) -> int:
        """Readable once no request is served any more."""
    def info(self) -> dict[str, Any]:
        """kernel_minor, request_bytes, threads, offered and flags (of INIT), requests so far,
        backing_ids (open ones), passthrough: 0, or the errno with which the kernel refused it,
        and end: the errno with which it ended, 0 if stopped, None while it goes on."""
    def stop(self) -> None:
        """Finish what is being served, and serve no more."""
    def close(self) -> None:
        """``stop``, and let go of the pool. The descriptor stays the caller's."""

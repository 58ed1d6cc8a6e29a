"""The C core of belugafs, one method for each of its calls.

Every call may come from any thread and runs without the GIL. A call that the core refuses
raises :class:`CoreError` with the errno and the core's own message. Numbers are checked: a
negative or too large one is OverflowError, never cut. Names are bytes, or str by the
filesystem encoding (surrogateescape). Times are nanoseconds since 1970. A granule is
``GRANULE_BYTES`` of data.
"""

from collections.abc import Callable, Sequence
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
    local_dir: where processes that read in place as this host have their files; "": they are
    gone with this process. Not given: there are none.

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
        local_dir: str | bytes = ...,
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

    # Processes that read in place.
    @property
    def local_error(self) -> int:
        """0: there may be some; else the errno that says why not."""
    def client_new(self, pid: int, uid: int, /) -> tuple[int, int, int]:
        """Descriptors for one more, which are the caller's: for ``Client.open``, here or in another
        process. It lives until the last of them is closed everywhere."""
    def clients(self) -> list[dict[str, int]]:
        """Those that live: pid, uid (as they were given), leases, granules, since_ns."""
    def descriptor(self) -> int:
        """Another open file description of the pool's file, to read and write; the caller's."""
    def reservations(self) -> tuple[int, int]:
        """How many there are of all processes, and the granules of what isn't committed."""

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
    def settle(self) -> int:
        """Directory pools: finish what is closed and nobody stores into any more. The result is
        how many files still wait."""
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
    def promise(self, fh: int, /) -> None:
        """Directory pools: an open file with such a descriptor for writing is about to be stored
        into; until it is closed, room for what it is expected to get is kept empty.
        Raises CoreError: ENOSPC, there isn't that much, even by eviction: its writes should pass
        through the core, which evicts as they come.
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

class Lease:
    """A block that a Client has leased, or why it hasn't."""

    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def inode(self) -> int: ...
    @property
    def error(self) -> int:
        """An errno; 0: leased."""
    @property
    def verified(self) -> bool: ...
    @property
    def released(self) -> bool: ...
    def buffer(self) -> ReadableBuffer:
        """The bytes, read-only. As long as it is referred to, the lease isn't given back. Raises
        ValueError: not leased, or released."""

class Client:
    """A pool, read in place by a process that isn't attached to it. Safe to use from threads.

    Errors are OSError, of the subclass that Python has for the errno; after a fork every call is
    RuntimeError in the child.
    """

    @classmethod
    def connect(cls, socket: Name, /) -> Self: ...
    @classmethod
    def open(cls, pool_fd: int, host_fd: int, lease_fd: int, /) -> Self:
        """The descriptors are the client's from now on, whatever happens."""
    def close(self) -> None:
        """At once, or when the last lease is given back."""
    @property
    def closed(self) -> bool: ...
    @property
    def leases(self) -> int:
        """Not given back yet."""
    @property
    def span(self) -> tuple[int, int]:
        """Address and size of the pool's mapping."""
    def namespace(self, name: Name, /) -> int: ...
    def lookup(self, path: Name, /) -> int: ...
    def getxattr(self, ino: int, name: Name, /) -> bytes: ...
    def match(self, ns: int, keys: ReadableBuffer, key_bytes: int, /) -> int: ...
    def exists(self, ns: int, keys: ReadableBuffer, key_bytes: int, /) -> bytes: ...
    def get(self, ns: int, key: ReadableBuffer, /) -> bytes: ...
    def get_into(self, ns: int, key: ReadableBuffer, buffer: WriteableBuffer, /) -> int: ...
    def lease(self, ns: int, keys: ReadableBuffer, key_bytes: int, /) -> list[Lease]: ...
    def lease_inodes(self, inodes: Sequence[int], /) -> list[Lease]: ...
    def release(self, leases: list[Lease], /) -> int:
        """How many of them are kept by a buffer, and are given back with it. ESTALE: this host was
        declared dead since."""
    def check(self) -> None:
        """Does all that is leased still stand? ESTALE: this host was declared dead since; ENODEV:
        the pool is gone."""

    # What changes the pool. It waits for the daemon, also for the next one; ENOTCONN, ETIMEDOUT.
    # keys: raw keys of key_bytes each; the lists are of errnos, 0 = done, in their order.
    def serve_by(self, server: RingServer, /) -> None:
        """Ask this server of the own process, whose pool is this one."""
    def patience(self, seconds: float, /) -> None: ...
    def namespace_create(self, name: Name, /) -> int: ...
    def put(
        self, ns: int, keys: ReadableBuffer, key_bytes: int, data: Sequence[ReadableBuffer], /
    ) -> list[int]: ...
    def delete(self, ns: int, keys: ReadableBuffer, key_bytes: int, /) -> list[int]: ...
    def pin(self, ns: int, keys: ReadableBuffer, key_bytes: int, how: int, /) -> list[int]:
        """how: 0 = unpin, 1 = hard, 2 = soft."""
    def reserve(self, ns: int, count: int, size_bytes: int, /) -> Room: ...

class Room:
    """A reservation of a Client: writable pieces of the pool, one for each block to come."""

    @property
    def dropped(self) -> bool: ...
    def address(self, index: int, /) -> int: ...
    def buffer(self, index: int, /) -> WriteableBuffer:
        """A piece, writable. As long as it is referred to, its room is nobody else's. Raises
        ValueError: dropped, or committed."""
    def commit(
        self,
        keys: ReadableBuffer,
        key_bytes: int,
        indexes: Sequence[int],
        filled: Sequence[int],
        /,
    ) -> list[int]:
        """Errnos: 0 = stored, EEXIST = it was there already, EINVAL = committed before."""
    def drop(self) -> int:
        """What isn't committed is given back, or is with its last buffer: how many blocks are
        still used by buffers."""

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
        spin_us: int = 0,
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

class RingServer:
    """Serves request rings (docs/ring.md) on a pool, by ``threads`` threads without the GIL. With
    None in place of the pool only pings are answered.

    ``spin_us``: the longest that an idle thread polls before it sleeps; None: as is best here.
    """

    def __init__(
        self, pool: Pool | None, *, threads: int = 1, spin_us: float | None = None
    ) -> None: ...
    def add(self, ring_fd: int, bell_fd: int, alive_fd: int = -1, lease_fd: int = -1) -> int:
        """Serve this ring of a client from now on; its number. ``alive_fd``: a pidfd of the
        client, or the socket that it is connected by: its end is the ring's. ``lease_fd``: its
        lease file, without which it can't reserve (ESTALE: not known here). The descriptors
        stay the caller's. CoreError: EPERM (no memfd sealed against shrinking), EUCLEAN,
        EPROTONOSUPPORT (no ring, one of another version)."""

    def remove(self, ring: int, /) -> None:
        """Serve it no more; its client is told."""

    def stats(self) -> dict[str, int]:
        """Since the start: requests, refused (malformed ones), bad_lines, wakes, sleeps, spins
        (rounds without work), bells (clients woken), rings_ever, clients_died; and rings (now)."""

    def stop(self) -> None:
        """Finish what is being done, tell all clients, end the threads."""

class RingClient:
    """A process's side of a request ring; :class:`belugafs._ring.Ring` is the one to use."""

    def __init__(
        self,
        *,
        slots: int = 0,
        request_bytes: int = 0,
        reply_bytes: int = 0,
        spin_us: float | None = None,
        start: int = 0,
    ) -> None: ...
    def fds(self) -> tuple[int, int, int]:
        """Descriptors of the ring and its bell, to be handed to a daemon; the ring's generation."""

    def daemon(self, alive_fd: int, /) -> None:
        """What tells that the daemon is dead: a pidfd or a socket; a copy is kept. -1: nothing."""

    def renew(self, generation: int, /) -> None:
        """Make a new ring for the next daemon, unless that was done since ``generation``."""

    def call(
        self,
        op: int,
        arg: int,
        payload: ReadableBuffer,
        reply_bytes: int,
        number: int,
        timeout_s: float,
        /,
    ) -> tuple[int, int, int, bytes, str, int]:
        """Ask and wait: (error, status, result, reply, text, number). error: 0, or the errno with
        which it ended without an outcome (ETIMEDOUT, ENOTCONN ...)."""

    def stats(self) -> dict[str, int]:
        """calls, sleeps, bells (rung), missed (replies found by looking again after a sleep),
        generation (of the ring), spin_ns."""

    def measure(self, calls: int, in_flight: int, payload_bytes: int, /) -> tuple[bytes, int]:
        """Pings, one at a time or ``in_flight`` at a time: nanoseconds of each as u32 (nothing
        where there are several at a time), and of all of them."""

    def close(self) -> None: ...

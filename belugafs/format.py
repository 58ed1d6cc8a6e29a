"""The pool format, version 1, declared in Python, and a reader that is independent of the C core.

``docs/format.md`` is the specification. ``belugafs/_core/format.h`` declares it for C, this
module for Python; ``tests/t0_format`` holds the three together. A struct is declared once, by its
annotations: order, width and nesting are taken from them, there is no second table of offsets.

Who uses it: tests (as the twin of the C core: what the core wrote is read back by code that
shares nothing with it) and ``tools/dump_pool.py``. The file system itself does not, so nothing
here is fast.

Everything read is untrusted. All decoding goes through :meth:`Struct.decode` and
:class:`PoolReader`, which check before they believe and raise :class:`FormatError` with the place
in the pool, what was expected and what was found. Loops are bounded by what the geometry allows.

Names of constants are those of format.h without ``BFS_``; enumerations take one more prefix off
(``BFS_ST_SEALED`` is ``State.SEALED``).
"""

import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import IntEnum, IntFlag
from itertools import pairwise
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Self,
    get_args,
    get_origin,
    get_type_hints,
)

import xxhash

# ---- constants -----------------------------------------------------------------------------

MAGIC: Final = b"BELUGAFS"
VERSION_MAJOR: Final = 1
VERSION_MINOR: Final = 0

LINE: Final = 64
PAGE: Final = 4096
GRANULE: Final = 4096
SB_OFF_A: Final = 0
SB_OFF_B: Final = 4096
HOSTS_MAX: Final = 16
DEVICES_MAX: Final = 16
NAME_MAX: Final = 255
KEY_MAX: Final = 64
XATTR_MAX: Final = 65536
SYMLINK_MAX: Final = 4095
LINK_MAX: Final = 65000
REGION_GRANULES_MAX: Final = 16384

BODY: Final = PAGE - 32
RADIX_FAN: Final = 254
MAP_BITS: Final = 32000
LOG_MAX: Final = 127
STAMPS: Final = 1000
BLOB_BYTES: Final = BODY - 16
SUMS: Final = 508
INLINE_SUMS: Final = 10
INLINE_LINK: Final = 80
OBJS: Final = 16
BUCKET_MAX: Final = 64
BUCKET_HEAP: Final = BODY - 16 - 4 * BUCKET_MAX
BT_MAX: Final = 101

HELD_LINES: Final = 112
LINES: Final = 128
"""Lines in a host slot's control area (``BFS_L_COUNT``)."""

LOCAL_HOST_MAGIC: Final = int.from_bytes(b"BELUGAHF", "little")
LOCAL_LEASE_MAGIC: Final = int.from_bytes(b"BELUGALF", "little")
LOCAL_VERSION: Final = 2
LOCAL_READERS: Final = 32
LOCAL_LEASES: Final = 16384
LOCAL_TOUCHES: Final = 4096
LOCAL_CLIENTS: Final = 256
LOCAL_RESERVATIONS: Final = 2048

READ_MAX: Final = 1 << 30
"""What this module reads at once, bytes: a size in a damaged pool must not take all memory."""

INCOMPAT_DIRECTORY: Final = 1
INCOMPAT_KNOWN: Final = INCOMPAT_DIRECTORY
RO_COMPAT_KNOWN: Final = 0


class Line(IntEnum):
    """Index of a line in a host slot's control area."""

    IDENT = 0
    CLAIM = 1
    ROOT_A = 2
    ROOT_B = 3
    GRANT = 4
    PIN_A = 5
    PIN_B = 6
    APPLIED = 7
    HEART = 8
    SPLIT_X = 9
    SPLIT_Y = 10
    CLAIM_B = 11
    GRANT_B = 12
    HELD = 16
    COUNT = 128


class Mount(IntEnum):
    """State of a registration, in the line IDENT."""

    NONE = 0
    LIVE = 1
    CLEAN = 2


class Kind(IntEnum):
    """Kind of a metadata page."""

    ROOT = 0x52
    RADIX = 0x58
    OBJ = 0x4F
    HASH = 0x48
    BLEAF = 0x4C
    BNODE = 0x4E
    MAP = 0x4D
    LOG = 0x47
    REGION = 0x45
    STAMP = 0x53
    BLOB = 0x42
    SUMS = 0x55


class Class(IntEnum):
    """Class of an object: what eviction may take."""

    NONE = 0
    BLOCK = 1
    ORDINARY = 2


class State(IntEnum):
    """State of an object."""

    FREE = 0
    SEALED = 1
    NEW = 2
    DIRTY = 3
    ABANDONED = 4


class ObjFlag(IntFlag):
    """Flags of an object."""

    NSBLOCK = 1
    NOSUM = 2
    UNVERIFIED = 4
    PINNED = 8
    PUBLISHED = 16
    PINNED_SOFT = 32
    EMPTIED = 64
    FORMING = 128


class EntryKind(IntEnum):
    """Name space of a hashed entry."""

    NAME = 0
    KEY = 1


class Rec(IntEnum):
    """Kind of a record, in the top byte of its key's first word."""

    LIST = 1
    KEYS = 2
    EXT = 3
    OWN = 4
    QUAR = 5
    OPEN = 6
    ORPHAN = 7
    LINK = 8
    BAD = 9


class Own(IntEnum):
    """State of an owned extent."""

    OBJ = 0
    GRANT = 1


class Host(IntEnum):
    """What the tree says of a host slot."""

    NONE = 0
    ALIVE = 1
    DEAD = 2
    FENCED = 3


class RowState(IntEnum):
    """State of a row in a host's table of files open for writing."""

    FREE = 0
    NEW = 1
    DIRTY = 2
    CLOSED = 3


ENUMS: Final[dict[str, type[IntEnum] | type[IntFlag]]] = {
    "BFS_L_": Line,
    "BFS_MNT_": Mount,
    "BFS_PK_": Kind,
    "BFS_CLS_": Class,
    "BFS_ST_": State,
    "BFS_OF_": ObjFlag,
    "BFS_EK_": EntryKind,
    "BFS_T_": Rec,
    "BFS_OWN_": Own,
    "BFS_HOST_": Host,
    "BFS_ROW_": RowState,
}
"""Prefix in format.h -> enumeration here."""

# ---- errors --------------------------------------------------------------------------------


class FormatError(Exception):
    """Something in the pool is not what the format says.

    The text names the place, what was expected and what was found, and what to do next.
    """

    def __init__(self, what: str, offset: int, expected: object, found: object) -> None:
        self.what = what
        self.offset = offset
        self.expected = str(expected)
        self.found = str(found)
        super().__init__(
            f"pool offset {offset:#x}: {what}: expected {expected}, found {found}"
            " (run fsck.belugafs on the unmounted pool)"
        )


# ---- structs -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Array:
    """Marks an annotation as a fixed array of ``count`` elements of a code or struct."""

    element: "str | type[Struct]"
    count: int


U8 = Annotated[int, "B"]
U16 = Annotated[int, "H"]
U32 = Annotated[int, "I"]
U64 = Annotated[int, "Q"]
I64 = Annotated[int, "q"]


@dataclass(frozen=True)
class Field:
    """Place of one field of a struct, in bytes from the struct's start."""

    name: str
    offset: int
    size: int
    count: int | None
    element: "str | type[Struct]"


@dataclass(frozen=True)
class Struct:
    """A little-endian struct without padding; the annotations of a subclass are its layout."""

    C: ClassVar[tuple[str, str]] = ("", "")
    """Name of the C struct and, for a struct inside it, the member ('' = the whole)."""

    @classmethod
    def layout(cls) -> tuple[Field, ...]:
        """Fields with their offsets."""
        return _layout(cls)

    @classmethod
    def nbytes(cls) -> int:
        """Size in bytes."""
        last = _layout(cls)[-1]
        return last.offset + last.size

    @classmethod
    def decode(cls, data: bytes | memoryview, at: int = 0, *, offset: int = 0) -> Self:
        """Decode from ``data[at:]``; ``offset`` is where ``data`` starts in the pool."""
        size = cls.nbytes()
        if at < 0 or at + size > len(data):
            raise FormatError(cls.__name__, offset + at, f"{size} bytes", f"{len(data) - at} bytes")
        packer, plan = _plan(cls)
        values = packer.unpack_from(data, at)
        out: list[Any] = []
        i = 0
        for field, n in plan:
            chunk = values[i : i + n]
            i += n
            if isinstance(field.element, str):
                out.append(chunk[0] if field.count is None or field.element == "s" else chunk)
            elif field.count is None:
                out.append(field.element.decode(chunk[0], offset=offset + at + field.offset))
            else:
                step = field.element.nbytes()
                out.append(
                    tuple(
                        field.element.decode(chunk[0], k * step, offset=offset + at + field.offset)
                        for k in range(field.count)
                    )
                )
        return cls(*out)


def _element_size(element: "str | type[Struct]") -> int:
    return struct.calcsize("<" + element) if isinstance(element, str) else element.nbytes()


_layouts: dict[type[Struct], tuple[Field, ...]] = {}
_plans: dict[type[Struct], tuple[struct.Struct, tuple[tuple[Field, int], ...]]] = {}


def _layout(cls: type[Struct]) -> tuple[Field, ...]:
    known = _layouts.get(cls)
    if known is not None:
        return known
    hints = get_type_hints(cls, include_extras=True)
    out: list[Field] = []
    offset = 0
    for member in fields(cls):
        hint = hints[member.name]
        count: int | None = None
        element: str | type[Struct]
        if get_origin(hint) is Annotated:
            mark = get_args(hint)[1]
            if isinstance(mark, Array):
                element, count = mark.element, mark.count
            else:
                element = mark
        else:
            element = hint
        size = _element_size(element) * (1 if count is None else count)
        out.append(Field(member.name, offset, size, count, element))
        offset += size
    return _layouts.setdefault(cls, tuple(out))


def _plan(cls: type[Struct]) -> tuple[struct.Struct, tuple[tuple[Field, int], ...]]:
    known = _plans.get(cls)
    if known is not None:
        return known
    code = "<"
    plan: list[tuple[Field, int]] = []
    for field in _layout(cls):
        if isinstance(field.element, str) and field.element != "s":
            code += f"{'' if field.count is None else field.count}{field.element}"
            plan.append((field, 1 if field.count is None else field.count))
        else:
            code += f"{field.size}s"
            plan.append((field, 1))
    return _plans.setdefault(cls, (struct.Struct(code), tuple(plan)))


@dataclass(frozen=True)
class LineData(Struct):
    """One checksummed line of a host slot."""

    C: ClassVar = ("bfs_line", "")
    w: Annotated[tuple[int, ...], Array("Q", 7)]
    csum: U64


@dataclass(frozen=True)
class Device(Struct):
    """One entry of the device table."""

    C: ClassVar = ("bfs_device", "")
    uuid: Annotated[bytes, Array("s", 16)]
    size_bytes: U64
    data_granules: U64


@dataclass(frozen=True)
class Super(Struct):
    """The superblock."""

    C: ClassVar = ("bfs_super", "")
    magic: Annotated[bytes, Array("s", 8)]
    version_major: U32
    version_minor: U32
    compat: U64
    ro_compat: U64
    incompat: U64
    uuid: Annotated[bytes, Array("s", 16)]
    incarnation: U64
    size_bytes: U64
    max_size_bytes: U64
    created_s: U64
    map_bytes: U32
    nhosts: U32
    host_off: U64
    host_stride: U32
    ring_entries: U32
    rows: U32
    rpc_stride: U32
    rpc_off: U64
    meta_off: U64
    meta_pages: U32
    inodes: U32
    hash_buckets: U32
    region_granules: U32
    data_off: U64
    data_granules: U64
    chunk_bytes: U32
    pad0: U32
    hash_seed: U64
    label: Annotated[bytes, Array("s", 64)]
    dev: Annotated[tuple[Device, ...], Array(Device, DEVICES_MAX)]
    pad1: Annotated[bytes, Array("s", PAGE - 248 - 512 - 8)]
    csum: U64


@dataclass(frozen=True)
class Ptr(Struct):
    """A page and the transaction that wrote it."""

    C: ClassVar = ("bfs_ptr", "")
    page: U32
    term: U32
    txn: U64

    @property
    def tag(self) -> tuple[int, int]:
        """(term, transaction)."""
        return (self.term, self.txn)

    def __str__(self) -> str:
        return f"{self.page}@{self.term}.{self.txn}"


@dataclass(frozen=True)
class PageHead(Struct):
    """Head of every metadata page."""

    C: ClassVar = ("bfs_phead", "")
    kind: U16
    count: U16
    self: U32
    term: U32
    aux: U32
    txn: U64
    csum: U64


@dataclass(frozen=True)
class Radix(Struct):
    """A table of pointers."""

    C: ClassVar = ("bfs_radix", "")
    h: PageHead
    child: Annotated[tuple[Ptr, ...], Array(Ptr, RADIX_FAN)]


@dataclass(frozen=True)
class Map(Struct):
    """Which metadata pages are in use."""

    C: ClassVar = ("bfs_map", "")
    h: PageHead
    bits: Annotated[tuple[int, ...], Array("Q", MAP_BITS // 64)]
    pad: Annotated[bytes, Array("s", BODY - MAP_BITS // 8)]


@dataclass(frozen=True)
class LogEnt(Struct):
    """A freed metadata page."""

    C: ClassVar = ("bfs_logent", "")
    page: U32
    bterm: U32
    btxn: U64
    fterm: U32
    pad: U32
    ftxn: U64


@dataclass(frozen=True)
class Log(Struct):
    """Freed metadata pages that wait for their proof."""

    C: ClassVar = ("bfs_log", "")
    h: PageHead
    e: Annotated[tuple[LogEnt, ...], Array(LogEnt, LOG_MAX)]


@dataclass(frozen=True)
class Region(Struct):
    """Bitmap of a region's granules."""

    C: ClassVar = ("bfs_region", "")
    h: PageHead
    bits: Annotated[tuple[int, ...], Array("Q", REGION_GRANULES_MAX // 64)]
    pad: Annotated[bytes, Array("s", BODY - REGION_GRANULES_MAX // 8)]


@dataclass(frozen=True)
class Stamps(Struct):
    """Coarse times of last use."""

    C: ClassVar = ("bfs_stamps", "")
    h: PageHead
    s: Annotated[tuple[int, ...], Array("I", STAMPS)]
    pad: Annotated[bytes, Array("s", BODY - 4 * STAMPS)]


@dataclass(frozen=True)
class Blob(Struct):
    """A piece of extended attributes or of a long symlink target."""

    C: ClassVar = ("bfs_blob", "")
    h: PageHead
    next: Ptr
    data: Annotated[bytes, Array("s", BLOB_BYTES)]


@dataclass(frozen=True)
class SumsPage(Struct):
    """Chunk checksums of a file with more than ten chunks."""

    C: ClassVar = ("bfs_sums", "")
    h: PageHead
    s: Annotated[tuple[int, ...], Array("Q", SUMS)]


@dataclass(frozen=True)
class ObjFile(Struct):
    """``u`` of an object that is a file."""

    C: ClassVar = ("bfs_obj", "u.f")
    inl_addr: U64
    inl_len: U32
    nextents: U32


@dataclass(frozen=True)
class ObjDir(Struct):
    """``u`` of an object that is a directory."""

    C: ClassVar = ("bfs_obj", "u.d")
    entries: U64
    subdirs: U32
    guess: U32


@dataclass(frozen=True)
class Obj(Struct):
    """An object: file, directory, link or special file."""

    C: ClassVar = ("bfs_obj", "")
    slot: U32
    gen: U32
    mode: U32
    nlink: U32
    uid: U32
    gid: U32
    size: U64
    granules: U64
    atime_ns: I64
    mtime_ns: I64
    ctime_ns: I64
    btime_ns: I64
    rdev: U32
    cls: U8
    state: U8
    owner: U8
    flags: U8
    version: U32
    next_free: U32
    parent: U64
    cookie: U64
    hash: U64
    u: Annotated[bytes, Array("s", 16)]
    nsums: U32
    sums_height: U32
    blob: Ptr
    blob_len: U32
    pad: U32
    v: Annotated[bytes, Array("s", INLINE_LINK)]

    @property
    def ino(self) -> int:
        """Inode number: generation and slot."""
        return self.gen << 32 | self.slot

    @property
    def file(self) -> ObjFile:
        """``u`` as a file's."""
        return ObjFile.decode(self.u)

    @property
    def dir(self) -> ObjDir:
        """``u`` as a directory's."""
        return ObjDir.decode(self.u)

    @property
    def inline_sums(self) -> tuple[int, ...]:
        """``v`` as checksums."""
        return struct.unpack(f"<{INLINE_SUMS}Q", self.v)

    @property
    def sums_root(self) -> Ptr:
        """``v`` as the root of the checksum table."""
        return Ptr.decode(self.v)

    @property
    def fmt(self) -> int:
        """File type, as in ``mode >> 12``."""
        return self.mode >> 12


@dataclass(frozen=True)
class Objs(Struct):
    """Sixteen objects."""

    C: ClassVar = ("bfs_objs", "")
    h: PageHead
    o: Annotated[tuple[Obj, ...], Array(Obj, OBJS)]
    pad: Annotated[bytes, Array("s", BODY - 240 * OBJS)]


@dataclass(frozen=True)
class Ent(Struct):
    """Fixed part of a hashed entry; the name follows."""

    C: ClassVar = ("bfs_ent", "")
    dir_lo: U32
    dir_hi: U32
    ino_lo: U32
    ino_hi: U32
    cookie_lo: U32
    cookie_hi: U32
    kind: U8
    owner: U8
    type: U8
    len: U8


@dataclass(frozen=True)
class Bucket(Struct):
    """A hash bucket."""

    C: ClassVar = ("bfs_bucket", "")
    h: PageHead
    more: Ptr
    fp: Annotated[tuple[int, ...], Array("H", BUCKET_MAX)]
    off: Annotated[tuple[int, ...], Array("H", BUCKET_MAX)]
    heap: Annotated[bytes, Array("s", BUCKET_HEAP)]


@dataclass(frozen=True)
class Key(Struct):
    """Key of an ordered record."""

    C: ClassVar = ("bfs_key", "")
    a: U64
    b: U64
    c: U64

    @property
    def words(self) -> tuple[int, int, int]:
        """For comparison."""
        return (self.a, self.b, self.c)


@dataclass(frozen=True)
class Record(Struct):
    """An ordered record."""

    C: ClassVar = ("bfs_rec", "")
    k: Key
    x: U64
    y: U64

    @property
    def kind(self) -> int:
        """Which kind of record (:class:`Rec`)."""
        return self.k.a >> 56

    @property
    def low(self) -> int:
        """The first key word without the kind."""
        return self.k.a & 0x00FF_FFFF_FFFF_FFFF


@dataclass(frozen=True)
class Leaf(Struct):
    """A leaf of the B+tree."""

    C: ClassVar = ("bfs_bleaf", "")
    h: PageHead
    r: Annotated[tuple[Record, ...], Array(Record, BT_MAX)]
    pad: Annotated[bytes, Array("s", BODY - 40 * BT_MAX)]


@dataclass(frozen=True)
class NodeEnt(Struct):
    """One child of an inner node of the B+tree."""

    C: ClassVar = ("bfs_bnode", "e[0]")
    k: Key
    p: Ptr


@dataclass(frozen=True)
class Node(Struct):
    """An inner node of the B+tree."""

    C: ClassVar = ("bfs_bnode", "")
    h: PageHead
    e: Annotated[tuple[NodeEnt, ...], Array(NodeEnt, BT_MAX)]
    pad: Annotated[bytes, Array("s", BODY - 40 * BT_MAX)]


@dataclass(frozen=True)
class HostRow(Struct):
    """What the tree knows of a host slot."""

    C: ClassVar = ("bfs_hostrow", "")
    uuid: Annotated[tuple[int, ...], Array("Q", 2)]
    boot: U64
    incarnation: U64
    last_req: U64
    last_result: I64
    state: U32
    pad: U32
    since_s: U64


@dataclass(frozen=True)
class Root(Struct):
    """The root page."""

    C: ClassVar = ("bfs_root", "")
    h: PageHead
    incompat: U64
    ro_compat: U64
    compat: U64
    time_ns: I64
    map: Ptr
    log: Ptr
    obj: Ptr
    hash: Ptr
    bt: Ptr
    region: Ptr
    stamp: Ptr
    bt_height: U32
    log_head: U32
    next_cookie: U64
    slot_virgin: U32
    free_head: U32
    free_tail: U32
    slots_used: U32
    granules_used: U64
    granules_quar: U64
    granules_bad: U64
    pages_used: U32
    pages_log: U32
    nblocks: U64
    nordinary: U64
    nunsealed: U64
    norphans: U64
    blocks_granules: U64
    evicted_blocks: U64
    evicted_granules: U64
    seals: U64
    creates: U64
    unlinks: U64
    host: Annotated[tuple[HostRow, ...], Array(HostRow, HOSTS_MAX)]
    pad: Annotated[
        bytes,
        Array("s", PAGE - 32 - 32 - 7 * 16 - 8 - 8 - 16 - 24 - 8 - 32 - 8 - 40 - 64 * HOSTS_MAX),
    ]


@dataclass(frozen=True)
class Row(Struct):
    """One copy of a row in a host's table of files open for writing."""

    C: ClassVar = ("bfs_row", "")
    csum: U64
    ino: U64
    version: U32
    seq: U32
    size: U64
    mtime_ns: I64
    state: U8
    pad: Annotated[bytes, Array("s", 3)]
    nsums: U32
    sum: Annotated[tuple[int, ...], Array("Q", INLINE_SUMS)]


@dataclass(frozen=True)
class LocalSnap(Struct):
    """An applied root, in the host file."""

    C: ClassVar = ("bfs_lsnap", "")
    txn: U64
    root_txn: U64
    term: U32
    root_page: U32
    root_term: U32
    pad: U32
    pad1: Annotated[tuple[int, ...], Array("Q", 4)]


@dataclass(frozen=True)
class LocalHost(Struct):
    """The host file: what a host's daemon tells the processes of its machine."""

    C: ClassVar = ("bfs_lhost", "")
    magic: U64
    version: U32
    bytes: U32
    uuid: Annotated[tuple[int, ...], Array("B", 16)]
    incarnation: U64
    id: U64
    boot: U64
    slot: U32
    epoch: U32
    registration: U64
    pid: U32
    verify: U32
    suspect_ns: U64
    pool_bytes: U64
    coherent: U32
    pad0: U32
    pad1: Annotated[tuple[int, ...], Array("Q", 3)]
    seq: U64
    pad2: Annotated[tuple[int, ...], Array("Q", 7)]
    snap: Annotated[tuple[LocalSnap, ...], Array(LocalSnap, 2)]
    pad3: Annotated[tuple[int, ...], Array("B", PAGE - 320)]


@dataclass(frozen=True)
class LocalReader(Struct):
    """A snapshot that a process is reading."""

    C: ClassVar = ("bfs_lreader", "")
    txn: U64
    pad: Annotated[tuple[int, ...], Array("Q", 7)]


@dataclass(frozen=True)
class LocalHeld(Struct):
    """An extent that a process holds."""

    C: ClassVar = ("bfs_lheld", "")
    ino: U64
    word: U64


@dataclass(frozen=True)
class LocalReservation(Struct):
    """Room for blocks that a process stores itself."""

    C: ClassVar = ("bfs_lres", "")
    ino: U64
    number: U64
    ns: U64
    granules: U32
    count: U32


@dataclass(frozen=True)
class LocalLease(Struct):
    """A lease file: what one process reads, holds and has reserved."""

    C: ClassVar = ("bfs_llease", "")
    magic: U64
    version: U32
    bytes: U32
    uuid: Annotated[tuple[int, ...], Array("B", 16)]
    incarnation: U64
    host_id: U64
    pid: U32
    uid: U32
    made_ns: U64
    touch_pos: U64
    pad0: Annotated[tuple[int, ...], Array("Q", 7)]
    high: U32
    pad1: Annotated[tuple[int, ...], Array("I", 15)]
    pad2: Annotated[tuple[int, ...], Array("B", PAGE - 192)]
    reader: Annotated[tuple[LocalReader, ...], Array(LocalReader, LOCAL_READERS)]
    pad3: Annotated[tuple[int, ...], Array("B", PAGE - 64 * LOCAL_READERS)]
    held: Annotated[tuple[LocalHeld, ...], Array(LocalHeld, LOCAL_LEASES)]
    touch: Annotated[tuple[int, ...], Array("Q", LOCAL_TOUCHES)]
    res: Annotated[tuple[LocalReservation, ...], Array(LocalReservation, LOCAL_RESERVATIONS)]


STRUCTS: Final[tuple[type[Struct], ...]] = (
    LineData,
    Device,
    Super,
    Ptr,
    PageHead,
    Radix,
    Map,
    LogEnt,
    Log,
    Region,
    Stamps,
    Blob,
    SumsPage,
    ObjFile,
    ObjDir,
    Obj,
    Objs,
    Ent,
    Bucket,
    Key,
    Record,
    Leaf,
    NodeEnt,
    Node,
    HostRow,
    Root,
    Row,
    LocalSnap,
    LocalHost,
    LocalReader,
    LocalHeld,
    LocalReservation,
    LocalLease,
)
"""Every struct of format.h."""

# ---- checksums and addresses ---------------------------------------------------------------

_MASK64: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E37_79B9_7F4A_7C15


def xxh3(data: bytes | memoryview, seed: int = 0) -> int:
    """XXH3 with 64 bits."""
    return xxhash.xxh3_64_intdigest(data, seed & _MASK64)


def line_csum(line: bytes, incarnation: int, slot: int, index: int) -> int:
    """Checksum that a line of 64 bytes should carry."""
    return xxh3(line[:56], incarnation ^ (slot << 8 | index)) or 1


def page_csum(page: bytes, incarnation: int) -> int:
    """Checksum that a metadata page should carry."""
    return xxh3(page[32:], incarnation ^ xxh3(page[:24], incarnation))


def row_csum(row: bytes, incarnation: int, offset: int) -> int:
    """Checksum that a row copy at a pool offset should carry."""
    return xxh3(row[8:128], incarnation ^ offset) or 1


def chunk_sum(data: bytes) -> int:
    """Checksum of a chunk of file data."""
    return xxh3(data) or 1


def entry_hash(hash_seed: int, directory: int, kind: int, name: bytes) -> int:
    """Hash of an entry."""
    return xxh3(name, hash_seed ^ (directory * _GOLDEN & _MASK64) ^ (kind << 62))


def bucket_of(entry: int, hash_buckets: int) -> int:
    """Index of the bucket in which an entry with this hash lies."""
    return (entry << 16 & _MASK64) * hash_buckets >> 64


def chunk_pages(meta_pages: int) -> int:
    """Metadata pages in a chunk (``BFS_CHUNK_PAGES``)."""
    return (meta_pages + 63) // 64


def height_of(nleaves: int) -> int:
    """Levels of table pages above ``nleaves`` leaves."""
    height, reach = 0, 1
    while reach < nleaves:
        height, reach = height + 1, reach * RADIX_FAN
    return height


def rec_key(kind: int, low: int = 0) -> int:
    """First key word of a record (``BFS_T``)."""
    return kind << 56 | low


def gaddr(device: int, index: int) -> int:
    """Granule address (``BFS_GADDR``)."""
    return device << 56 | (index + 1)


def gidx(addr: int) -> int:
    """Granule index of an address (``BFS_GIDX``)."""
    return (addr & 0x00FF_FFFF_FFFF_FFFF) - 1


def gdev(addr: int) -> int:
    """Device of an address (``BFS_GDEV``)."""
    return addr >> 56


# ---- reading -------------------------------------------------------------------------------


class LineState(IntEnum):
    """Whether a line may be believed."""

    DAMAGED = -1
    ABSENT = 0
    VALID = 1


@dataclass(frozen=True)
class RootRef:
    """What a root line says."""

    term: int
    txn: int
    page: Ptr
    slot: int
    index: int


@dataclass(frozen=True)
class Entry:
    """An entry of a directory or namespace."""

    dir: int
    ino: int
    cookie: int
    hash: int
    kind: int
    owner: int
    type: int
    name: bytes


@dataclass(frozen=True)
class Extent:
    """A piece of a file's mapping; address 0 is an overlay's hole."""

    granule: int
    addr: int
    length: int
    overlay: bool


@dataclass(frozen=True)
class Space:
    """A run of granules that is not free."""

    addr: int
    length: int
    kind: Rec
    ino: int
    host: int
    state: int


class PoolReader:
    """Reads a pool that nobody changes at the time. Independent of the C core.

    ``data`` is the pool: bytes, a memoryview or an mmap. Nothing is cached but the state's root,
    so a reader made before a change still shows the former state; make another one.
    """

    def __init__(self, data: Any) -> None:
        self.data = memoryview(data)
        self.super = self._read_super()
        self._root: tuple[RootRef, Root] | None = None

    # -- bytes ---------------------------------------------------------------------------

    def read(self, offset: int, size: int, what: str = "read") -> bytes:
        """Bytes of the pool."""
        if offset < 0 or size < 0 or offset + size > len(self.data):
            raise FormatError(what, offset, f"{size} bytes in the pool", f"{len(self.data)} bytes")
        return bytes(self.data[offset : offset + size])

    def _read_super(self) -> Super:
        first: FormatError | None = None
        for offset in (SB_OFF_A, SB_OFF_B):
            try:
                return self.super_copy(offset)
            except FormatError as error:
                first = first or error
        assert first is not None
        raise first

    def super_copy(self, offset: int) -> Super:
        """One copy of the superblock, checked."""
        raw = self.read(offset, PAGE, "superblock")
        sb = Super.decode(raw, offset=offset)

        def need(ok: bool, what: str, expected: object, found: object) -> None:
            if not ok:
                raise FormatError(f"superblock {what}", offset, expected, found)

        need(sb.magic == MAGIC, "magic", MAGIC, sb.magic)
        need(sb.version_major == VERSION_MAJOR, "version", VERSION_MAJOR, sb.version_major)
        csum = xxh3(raw[: PAGE - 8])
        need(sb.csum == csum, "checksum", f"{csum:#x}", f"{sb.csum:#x}")
        need(not sb.incompat & ~INCOMPAT_KNOWN, "features", INCOMPAT_KNOWN, f"{sb.incompat:#x}")
        need(1 <= sb.nhosts <= HOSTS_MAX, "hosts", f"1 to {HOSTS_MAX}", sb.nhosts)
        slot_bytes = LINES * LINE + 8 * sb.ring_entries + 256 * sb.rows
        need(sb.host_stride >= slot_bytes, "host_stride", f">= {slot_bytes}", sb.host_stride)
        need(sb.host_stride % PAGE == 0, "host_stride", f"multiple of {PAGE}", sb.host_stride)
        parts = (
            (2 * PAGE, "superblocks"),
            (sb.host_off, "host_off"),
            (sb.host_off + sb.nhosts * sb.host_stride, "host slots' end"),
            (sb.rpc_off, "rpc_off"),
            (sb.rpc_off + sb.nhosts**2 * sb.rpc_stride, "rings' end"),
            (sb.meta_off, "meta_off"),
            (sb.meta_off + sb.meta_pages * PAGE, "metadata's end"),
            (sb.data_off, "data_off"),
            (sb.data_off + sb.data_granules * GRANULE, "data's end"),
            (sb.size_bytes, "size_bytes"),
            (len(self.data), "pool's size"),
        )
        for (low, low_name), (high, high_name) in pairwise(parts):
            need(low <= high, high_name, f">= {low:#x} ({low_name})", f"{high:#x}")
        for name in ("host_off", "rpc_off", "meta_off", "data_off"):
            need(getattr(sb, name) % PAGE == 0, name, f"multiple of {PAGE}", getattr(sb, name))
        need(sb.meta_pages >= 2, "meta_pages", ">= 2", sb.meta_pages)
        need(sb.inodes >= OBJS, "inodes", f">= {OBJS}", sb.inodes)
        need(sb.inodes % OBJS == 0, "inodes", f"multiple of {OBJS}", sb.inodes)
        need(sb.max_size_bytes >= sb.size_bytes, "max_size", sb.size_bytes, sb.max_size_bytes)
        need(sb.hash_buckets >= 1, "hash_buckets", ">= 1", sb.hash_buckets)
        for name, low, high in (
            ("region_granules", 16, REGION_GRANULES_MAX),
            ("chunk_bytes", GRANULE, 1 << 26),
        ):
            value = getattr(sb, name)
            need(
                low <= value <= high and value & (value - 1) == 0,
                name,
                f"power of two, {low} to {high}",
                value,
            )
        return sb

    # -- host slots ----------------------------------------------------------------------

    def line_offset(self, slot: int, index: int) -> int:
        """Where a line lies."""
        if not (0 <= slot < self.super.nhosts and 0 <= index < LINES):
            raise ValueError(f"no line {index} of slot {slot}")
        return self.super.host_off + slot * self.super.host_stride + index * LINE

    def line(self, slot: int, index: int) -> tuple[LineState, LineData]:
        """A line, and whether it is valid."""
        offset = self.line_offset(slot, index)
        raw = self.read(offset, LINE, "line")
        line = LineData.decode(raw, offset=offset)
        if not any(raw):
            return LineState.ABSENT, line
        good = line.csum == line_csum(raw, self.super.incarnation, slot, index)
        return (LineState.VALID if good else LineState.DAMAGED), line

    def row_offset(self, slot: int, row: int, copy: int) -> int:
        """Where a copy of a row lies."""
        sb = self.super
        if not (0 <= slot < sb.nhosts and 0 <= row < sb.rows and copy in (0, 1)):
            raise ValueError(f"no copy {copy} of row {row} of slot {slot}")
        return (
            self.line_offset(slot, 0) + LINES * LINE + 8 * sb.ring_entries + 256 * row + 128 * copy
        )

    def row_copy(self, slot: int, row: int, copy: int) -> tuple[LineState, Row]:
        """One copy of a row, and whether it is valid."""
        offset = self.row_offset(slot, row, copy)
        raw = self.read(offset, Row.nbytes(), "row")
        value = Row.decode(raw, offset=offset)
        if not any(raw):
            return LineState.ABSENT, value
        good = value.csum == row_csum(raw, self.super.incarnation, offset)
        return (LineState.VALID if good else LineState.DAMAGED), value

    def row(self, slot: int, row: int) -> Row | None:
        """The copy of a row that counts."""
        copies = [self.row_copy(slot, row, copy) for copy in (0, 1)]
        valid = [value for state, value in copies if state is LineState.VALID]
        return max(valid, key=lambda value: value.seq) if valid else None

    def root_refs(self) -> list[RootRef]:
        """All valid root lines, highest first."""
        out = []
        for slot in range(self.super.nhosts):
            for index in (Line.ROOT_A, Line.ROOT_B):
                state, line = self.line(slot, index)
                if state is LineState.VALID:
                    w = line.w
                    out.append(RootRef(w[0], w[1], Ptr(w[2], w[3], w[4]), slot, index))
        return sorted(out, key=lambda ref: (ref.term, ref.txn), reverse=True)

    def state(self) -> tuple[RootRef, Root]:
        """The state of the pool: the highest root line and its page."""
        if self._root is None:
            refs = self.root_refs()
            if not refs:
                raise FormatError("root", self.super.host_off, "a valid root line", "none")
            ref = refs[0]
            if ref.page.tag > (ref.term, ref.txn):
                raise FormatError(
                    "root line",
                    self.line_offset(ref.slot, ref.index),
                    f"page born up to {ref.term}.{ref.txn}",
                    str(ref.page),
                )
            raw = self.page(ref.page, Kind.ROOT)
            root = Root.decode(raw, offset=self.page_offset(ref.page.page))
            if root.bt_height > 12:
                raise FormatError(
                    "height of records", self.page_offset(ref.page.page), "<= 12", root.bt_height
                )
            if root.incompat & ~INCOMPAT_KNOWN:
                raise FormatError(
                    "features", self.page_offset(ref.page.page), INCOMPAT_KNOWN, root.incompat
                )
            self._root = (ref, root)
        return self._root

    @property
    def root(self) -> Root:
        """The root page of the state."""
        return self.state()[1]

    # -- pages ---------------------------------------------------------------------------

    def page_offset(self, page: int) -> int:
        """Where a metadata page lies."""
        return self.super.meta_off + page * PAGE

    def page(self, ptr: Ptr, kind: Kind) -> bytes:
        """A metadata page that a pointer names, checked."""
        sb = self.super
        if not 1 <= ptr.page < sb.meta_pages:
            raise FormatError("page number", sb.meta_off, f"1 to {sb.meta_pages - 1}", ptr.page)
        offset = self.page_offset(ptr.page)
        raw = self.read(offset, PAGE, "page")
        head = PageHead.decode(raw, offset=offset)
        found = Ptr(head.self, head.term, head.txn)
        if found != ptr:
            raise FormatError("page tag", offset, str(ptr), str(found))
        if head.kind != kind:
            raise FormatError("page kind", offset, kind.name, f"{head.kind:#x}")
        csum = page_csum(raw, sb.incarnation)
        if head.csum != csum:
            raise FormatError("page checksum", offset, f"{csum:#x}", f"{head.csum:#x}")
        bounds = {
            Kind.BLEAF: (0, BT_MAX),
            Kind.BNODE: (1, BT_MAX),
            Kind.LOG: (0, LOG_MAX),
            Kind.HASH: (0, BUCKET_MAX),
        }
        low, high = bounds.get(kind, (0, 0xFFFF))
        if not low <= head.count <= high:
            raise FormatError("page count", offset, f"{low} to {high}", head.count)
        aux_max = {
            Kind.REGION: sb.region_granules,
            Kind.BLOB: BLOB_BYTES,
            Kind.HASH: BUCKET_HEAP,
        }.get(kind, 0xFFFF_FFFF)
        if head.aux > aux_max:
            raise FormatError("page aux", offset, f"<= {aux_max}", head.aux)
        return raw

    def _table_page(self, ptr: Ptr, level: int) -> Radix:
        raw = self.page(ptr, Kind.RADIX)
        table = Radix.decode(raw, offset=self.page_offset(ptr.page))
        if table.h.aux != level:
            raise FormatError("table level", self.page_offset(ptr.page), level, table.h.aux)
        return table

    def table(
        self, ptr: Ptr, nleaves: int, kind: Kind, height: int | None = None
    ) -> Iterator[tuple[int, Ptr, bytes]]:
        """All leaves of a table: (index, pointer, page), by index."""

        def walk(at: Ptr, level: int, base: int) -> Iterator[tuple[int, Ptr, bytes]]:
            if not at.page:
                return
            if level == 0:
                yield base, at, self.page(at, kind)
                return
            step = RADIX_FAN ** (level - 1)
            for i, child in enumerate(self._table_page(at, level).child):
                if not child.page:
                    continue
                if base + i * step >= nleaves:
                    raise FormatError(
                        "table", self.page_offset(at.page), f"{nleaves} leaves", base + i * step
                    )
                yield from walk(child, level - 1, base + i * step)

        yield from walk(ptr, height_of(nleaves) if height is None else height, 0)

    def leaf(self, ptr: Ptr, nleaves: int, index: int, kind: Kind) -> tuple[Ptr, bytes] | None:
        """One leaf of a table, None when absent."""
        if not 0 <= index < nleaves:
            return None
        for level in range(height_of(nleaves), 0, -1):
            if not ptr.page:
                return None
            ptr = self._table_page(ptr, level).child[index // RADIX_FAN ** (level - 1) % RADIX_FAN]
        return (ptr, self.page(ptr, kind)) if ptr.page else None

    @property
    def log_leaves(self) -> int:
        """Log pages there may be."""
        return log_leaves(self.super.meta_pages)

    # -- records -------------------------------------------------------------------------

    def records(
        self, first: tuple[int, int, int] = (0, 0, 0), last: tuple[int, int, int] | None = None
    ) -> Iterator[Record]:
        """Records with first <= key <= last, in order; the order is checked."""
        root = self.root
        previous: tuple[int, int, int] | None = None

        def walk(at: Ptr, level: int, low: tuple[int, int, int]) -> Iterator[Record]:
            nonlocal previous
            offset = self.page_offset(at.page)
            if level == 0:
                leaf = Leaf.decode(self.page(at, Kind.BLEAF), offset=offset)
                for rec in leaf.r[: leaf.h.count]:
                    key = rec.k.words
                    if key < low:
                        raise FormatError("record order", offset, f"key >= {low}", key)
                    if previous is not None and key <= previous:
                        raise FormatError("record order", offset, f"key > {previous}", key)
                    previous = key
                    if last is not None and key > last:
                        return
                    if key >= first:
                        yield rec
                return
            node = Node.decode(self.page(at, Kind.BNODE), offset=offset)
            if node.h.aux != level:
                raise FormatError("node level", offset, level, node.h.aux)
            entries = node.e[: node.h.count]
            keys = [e.k.words for e in entries]
            begin = max(0, bisect_right(keys, first) - 1)
            for i in range(begin, len(entries)):
                if last is not None and keys[i] > last:
                    return
                yield from walk(entries[i].p, level - 1, keys[i])

        if root.bt.page:
            yield from walk(root.bt, root.bt_height, (0, 0, 0))

    def records_of(self, kind: Rec, low: int | None = None) -> Iterator[Record]:
        """Records of one kind, of one low part if given."""
        if low is None:
            first, last = rec_key(kind), rec_key(kind + 1) - 1
        else:
            first = last = rec_key(kind, low)
        yield from self.records((first, 0, 0), (last, _MASK64, _MASK64))

    # -- objects -------------------------------------------------------------------------

    @property
    def obj_leaves(self) -> int:
        """Object pages there may be."""
        return -(-self.super.inodes // OBJS)

    def obj(self, ino: int) -> Obj:
        """The object with this inode number."""
        slot = ino & 0xFFFF_FFFF
        got = self.leaf(self.root.obj, self.obj_leaves, slot // OBJS, Kind.OBJ)
        if got is None:
            raise FormatError("object", self.super.meta_off, f"inode {ino:#x}", "no such slot")
        ptr, raw = got
        offset = self.page_offset(ptr.page)
        at = 32 + slot % OBJS * Obj.nbytes()
        obj = Obj.decode(raw, at, offset=offset)
        if obj.slot != slot:
            raise FormatError("object slot", offset + at, slot, obj.slot)
        if not obj.mode or obj.ino != ino:
            raise FormatError("object", offset + at, f"inode {ino:#x}", f"{obj.ino:#x}")
        return obj

    def objects(self, *, free: bool = False) -> Iterator[Obj]:
        """All objects in use, by slot; with ``free`` also the slots that were used once."""
        nleaves = self.obj_leaves
        for index, ptr, raw in self.table(self.root.obj, nleaves, Kind.OBJ):
            offset = self.page_offset(ptr.page)
            page = Objs.decode(raw, offset=offset)
            for i, obj in enumerate(page.o):
                slot = index * OBJS + i
                if obj.mode and obj.slot != slot:
                    raise FormatError("object slot", offset + 32 + i * 240, slot, obj.slot)
                if obj.mode or (free and obj.slot):
                    yield obj

    # -- entries -------------------------------------------------------------------------

    def _bucket(self, index: int, first: Ptr) -> Iterator[Entry]:
        sb = self.super
        ptr = first
        for _ in range(sb.meta_pages):
            offset = self.page_offset(ptr.page)
            page = Bucket.decode(self.page(ptr, Kind.HASH), offset=offset)
            for i in range(page.h.count):
                at = page.off[i]
                end = at + Ent.nbytes()
                if at % 4 or end > page.h.aux:
                    raise FormatError("entry offset", offset + 304, f"<= {page.h.aux}", at)
                ent = Ent.decode(page.heap, at, offset=offset + 304)
                if not ent.len or end + ent.len > page.h.aux:
                    raise FormatError("entry length", offset + 304 + at, "in heap", ent.len)
                name = page.heap[end : end + ent.len]
                directory = ent.dir_hi << 32 | ent.dir_lo
                value = entry_hash(sb.hash_seed, directory, ent.kind, name)
                if bucket_of(value, sb.hash_buckets) != index or value >> 48 != page.fp[i]:
                    raise FormatError("entry hash", offset + 304 + at, f"bucket {index}", name)
                yield Entry(
                    directory,
                    ent.ino_hi << 32 | ent.ino_lo,
                    ent.cookie_hi << 32 | ent.cookie_lo,
                    value,
                    ent.kind,
                    ent.owner,
                    ent.type,
                    name,
                )
            ptr = page.more
            if not ptr.page:
                return
        raise FormatError("bucket", sb.meta_off, f"chain of <= {sb.meta_pages} pages", "longer")

    def entries(self) -> Iterator[Entry]:
        """All entries, in no order."""
        for index, ptr, _ in self.table(self.root.hash, self.super.hash_buckets, Kind.HASH):
            yield from self._bucket(index, ptr)

    def lookup(
        self, directory: int, name: bytes, kind: int = EntryKind.NAME, owner: int = 0
    ) -> Entry | None:
        """The entry with this name that is published, or private to ``owner`` (host + 1)."""
        sb = self.super
        value = entry_hash(sb.hash_seed, directory, kind, name)
        index = bucket_of(value, sb.hash_buckets)
        got = self.leaf(self.root.hash, sb.hash_buckets, index, Kind.HASH)
        if got is None:
            return None
        for entry in self._bucket(index, got[0]):
            if (entry.dir, entry.kind, entry.name, entry.owner) == (directory, kind, name, owner):
                return entry
        return None

    def listdir(self, directory: int) -> list[Entry]:
        """Entries of a directory or namespace in the order of its listing."""
        slot = directory & 0xFFFF_FFFF
        out = []
        by_cookie = {e.cookie: e for e in self.entries() if e.dir == directory}
        for kind in (Rec.LIST, Rec.KEYS):
            for rec in self.records_of(kind, slot):
                cookie = rec.k.b if kind is Rec.LIST else rec.k.c
                entry = by_cookie.get(cookie)
                if entry is None or (entry.hash, entry.ino) != (rec.x, rec.y):
                    raise FormatError(
                        "listing", self.super.meta_off, f"entry with cookie {cookie}", entry
                    )
                out.append(entry)
        return out

    def resolve(self, path: str | bytes, owner: int = 0) -> Obj:
        """The object a path leads to; symlinks are not followed. FileNotFoundError."""
        raw = path.encode() if isinstance(path, str) else path
        ino = 1
        for name in [part for part in raw.split(b"/") if part]:
            entry = self.lookup(ino, name) or (self.lookup(ino, name, owner=owner))
            if entry is None:
                raise FileNotFoundError(path)
            ino = entry.ino
        return self.obj(ino)

    def links(self, obj: Obj) -> list[tuple[int, int, int]]:
        """Back references of an object: (directory, cookie, hash)."""
        out = [(obj.parent, obj.cookie, obj.hash)] if obj.cookie else []
        out += [(r.k.b, r.k.c, r.x) for r in self.records_of(Rec.LINK, obj.slot)]
        return out

    # -- data ----------------------------------------------------------------------------

    def _check_extent(self, addr: int, length: int, what: str) -> None:
        good = gdev(addr) == 0 and gidx(addr) >= 0 and length > 0
        if not good or gidx(addr) + length > self.super.data_granules:
            raise FormatError(
                what, self.super.data_off, f"in {self.super.data_granules} granules", (addr, length)
            )

    def extents(self, obj: Obj, *, overlay: bool = False) -> list[Extent]:
        """Mapping of a file by file granule: the base, or the overlay."""
        out: list[Extent] = []
        if not overlay and obj.file.inl_addr:
            out.append(Extent(0, obj.file.inl_addr, obj.file.inl_len, False))
        for rec in self.records_of(Rec.EXT, obj.slot):
            if rec.k.c == int(overlay):
                out.append(Extent(rec.k.b, rec.x, rec.y & 0xFFFF_FFFF, overlay))
        end = 0
        for e in out:
            if e.addr or not overlay:
                self._check_extent(e.addr, e.length, f"extent of inode {obj.ino:#x}")
            if e.granule < end:
                raise FormatError(
                    f"extents of inode {obj.ino:#x}", 0, f"granule >= {end}", e.granule
                )
            end = e.granule + e.length
        return out

    def read_file(self, obj: Obj, offset: int = 0, size: int | None = None) -> bytes:
        """Content of a file as other hosts see it (the base); nothing is verified."""
        end = obj.size if size is None else min(obj.size, offset + size)
        if end - offset > READ_MAX:
            raise FormatError(
                f"size of inode {obj.ino:#x}", 0, f"<= {READ_MAX} to be read at once", end - offset
            )
        out = bytearray(max(0, end - offset))
        for e in self.extents(obj):
            low = max(offset, e.granule * GRANULE)
            high = min(end, (e.granule + e.length) * GRANULE)
            if low < high:
                at = self.super.data_off + gidx(e.addr) * GRANULE + low - e.granule * GRANULE
                out[low - offset : high - offset] = self.read(at, high - low, "data")
        return bytes(out)

    def sums(self, obj: Obj) -> list[int]:
        """Chunk checksums of a file."""
        if obj.nsums <= INLINE_SUMS:
            return list(obj.inline_sums[: obj.nsums])
        nleaves = -(-obj.nsums // SUMS)
        if nleaves > READ_MAX // PAGE:
            raise FormatError(f"sums of inode {obj.ino:#x}", 0, "fewer", obj.nsums)
        if obj.sums_height != height_of(nleaves):
            raise FormatError(
                f"sums of inode {obj.ino:#x}", 0, f"height {height_of(nleaves)}", obj.sums_height
            )
        out = [0] * (nleaves * SUMS)
        for index, ptr, raw in self.table(obj.sums_root, nleaves, Kind.SUMS):
            page = SumsPage.decode(raw, offset=self.page_offset(ptr.page))
            out[index * SUMS : (index + 1) * SUMS] = page.s
        return out[: obj.nsums]

    def bad_chunks(self, obj: Obj) -> list[int]:
        """Chunks of a sealed file whose content is not what its checksum says."""
        step = self.super.chunk_bytes
        mapped = self.extents(obj)
        bad = []
        for i, expected in enumerate(self.sums(obj)):
            low, high = i * step // GRANULE, (i + 1) * step // GRANULE
            hole = not any(e.granule < high and e.granule + e.length > low for e in mapped)
            found = 0 if hole else chunk_sum(self.read_file(obj, i * step, step))
            if found != expected:
                bad.append(i)
        return bad

    def blob(self, obj: Obj) -> bytes:
        """Extended attributes as stored, or a long symlink's target."""
        out = b""
        ptr = obj.blob
        while ptr.page and len(out) <= XATTR_MAX + PAGE:
            offset = self.page_offset(ptr.page)
            page = Blob.decode(self.page(ptr, Kind.BLOB), offset=offset)
            out += page.data[: page.h.aux]
            ptr = page.next
        if len(out) != obj.blob_len:
            raise FormatError(f"blob of inode {obj.ino:#x}", 0, f"{obj.blob_len} bytes", len(out))
        return out

    def xattrs(self, obj: Obj) -> dict[bytes, bytes]:
        """Extended attributes that are stored."""
        if obj.fmt == 0o12:
            return {}
        raw = self.blob(obj)
        out: dict[bytes, bytes] = {}
        at = 0
        while at < len(raw):
            head = raw[at : at + 4]
            name_len, value_len = head[0], int.from_bytes(head[2:4], "little")
            end = at + 4 + name_len + value_len
            if len(head) < 4 or not name_len or end > len(raw):
                raise FormatError(f"xattrs of inode {obj.ino:#x}", 0, "an entry", f"byte {at}")
            name = raw[at + 4 : at + 4 + name_len]
            if out and name <= max(out):
                raise FormatError(f"xattrs of inode {obj.ino:#x}", 0, "sorted names", name)
            out[name] = raw[at + 4 + name_len : end]
            at = end
        return out

    def readlink(self, obj: Obj) -> bytes:
        """Target of a symlink."""
        return obj.v[: obj.size] if obj.size <= INLINE_LINK else self.blob(obj)

    # -- space ---------------------------------------------------------------------------

    @property
    def nregions(self) -> int:
        """Regions of the pool."""
        return -(-self.super.data_granules // self.super.region_granules)

    @property
    def region_height(self) -> int:
        """Height of the table of regions: it has room for the pool's maximum size."""
        sb = self.super
        most = (sb.max_size_bytes - sb.data_off) // GRANULE
        return height_of(-(-most // sb.region_granules))

    def space(self) -> list[Space]:
        """Every run of granules that is not free, by address."""
        out = []
        for rec in self.records_of(Rec.OWN):
            y = rec.x
            out.append(
                Space(rec.k.b, y & 0xFFFF_FFFF, Rec.OWN, rec.y, y >> 32 & 0xFF, y >> 40 & 0xFF)
            )
        out += [Space(r.k.c, r.x, Rec.QUAR, 0, 0, 0) for r in self.records_of(Rec.QUAR)]
        out += [Space(r.k.b, r.x, Rec.BAD, r.y, 0, 0) for r in self.records_of(Rec.BAD)]
        for s in out:
            self._check_extent(s.addr, s.length, s.kind.name)
        return sorted(out, key=lambda s: s.addr)

    def region_bits(self) -> set[int]:
        """Granules whose region bit is set."""
        sb = self.super
        out: set[int] = set()
        regions = self.table(self.root.region, self.nregions, Kind.REGION, self.region_height)
        for index, ptr, raw in regions:
            page = Region.decode(raw, offset=self.page_offset(ptr.page))
            base = index * sb.region_granules
            for i, word in enumerate(page.bits):
                while word:
                    bit = (word & -word).bit_length() - 1
                    out.add(base + i * 64 + bit)
                    word &= word - 1
        return out

    def map_bits(self) -> set[int]:
        """Metadata pages whose map bit is set."""
        nleaves = -(-self.super.meta_pages // MAP_BITS)
        out: set[int] = set()
        for index, ptr, raw in self.table(self.root.map, nleaves, Kind.MAP):
            page = Map.decode(raw, offset=self.page_offset(ptr.page))
            for i, word in enumerate(page.bits):
                while word:
                    bit = (word & -word).bit_length() - 1
                    out.add(index * MAP_BITS + i * 64 + bit)
                    word &= word - 1
        return out

    def log(self) -> list[LogEnt]:
        """Freed metadata pages that wait."""
        out: list[LogEnt] = []
        for _, ptr, raw in self.table(self.root.log, self.log_leaves, Kind.LOG):
            page = Log.decode(raw, offset=self.page_offset(ptr.page))
            out += page.e[: page.h.count]
        return out

    def reachable(self) -> dict[int, str]:
        """Every page the state's root reaches, with what it is; each only once."""
        sb, root, ref = self.super, self.root, self.state()[0]
        seen: dict[int, str] = {}

        def add(ptr: Ptr, what: str) -> None:
            if ptr.page in seen:
                raise FormatError(
                    "page used twice", self.page_offset(ptr.page), seen[ptr.page], what
                )
            seen[ptr.page] = what

        def tables(ptr: Ptr, level: int, what: str) -> None:
            if ptr.page and level:
                add(ptr, f"{what} table level {level}")
                for child in self._table_page(ptr, level).child:
                    tables(child, level - 1, what)

        def nodes(ptr: Ptr, level: int) -> None:
            add(ptr, f"records level {level}")
            if level:
                offset = self.page_offset(ptr.page)
                node = Node.decode(self.page(ptr, Kind.BNODE), offset=offset)
                for e in node.e[: node.h.count]:
                    nodes(e.p, level - 1)
            else:
                self.page(ptr, Kind.BLEAF)

        add(ref.page, "root")
        for ptr, nleaves, kind in (
            (root.map, -(-sb.meta_pages // MAP_BITS), Kind.MAP),
            (root.log, self.log_leaves, Kind.LOG),
            (root.obj, self.obj_leaves, Kind.OBJ),
            (root.hash, sb.hash_buckets, Kind.HASH),
            (root.region, self.nregions, Kind.REGION),
            (root.stamp, -(-sb.inodes // STAMPS), Kind.STAMP),
        ):
            height = self.region_height if kind is Kind.REGION else height_of(nleaves)
            tables(ptr, height, kind.name)
            for index, leaf, raw in self.table(ptr, nleaves, kind, height):
                add(leaf, f"{kind.name} {index}")
                while kind is Kind.HASH:
                    more = Bucket.decode(raw).more
                    if not more.page:
                        break
                    add(more, f"HASH {index} overflow")
                    raw = self.page(more, Kind.HASH)
        if root.bt.page:
            nodes(root.bt, root.bt_height)
        for obj in self.objects():
            ptr = obj.blob
            while ptr.page:
                add(ptr, f"blob of inode {obj.ino:#x}")
                ptr = Blob.decode(self.page(ptr, Kind.BLOB)).next
            if obj.fmt == 8 and obj.nsums > INLINE_SUMS:
                nleaves = -(-obj.nsums // SUMS)
                tables(obj.sums_root, height_of(nleaves), f"sums of inode {obj.ino:#x}")
                for _, leaf, _ in self.table(obj.sums_root, nleaves, Kind.SUMS):
                    add(leaf, f"sums of inode {obj.ino:#x}")
        return seen


def log_leaves(meta_pages: int) -> int:
    """Log pages that a pool with so many metadata pages may have."""
    return meta_pages // (LOG_MAX // 2) + 4

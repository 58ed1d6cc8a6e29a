"""The layout of a request ring, declared in Python: the twin of ``belugafs/_core/ring.h``.

``docs/ring.md`` is the specification; ``tests/t6_library/test_ring_format.py`` holds the three
together. Used by tests and for looking into a ring; nothing on the fast path is Python.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, ClassVar, Final

import xxhash

from belugafs.format import U16, U32, U64, Array, FormatError, Struct

I32 = Annotated[int, "i"]

MAGIC: Final = b"BELURING"
VERSION: Final = 1
SLOTS_MAX: Final = 256
SMALL: Final = 1024
CHUNK: Final = 4096
AREA_MAX: Final = 64 << 20
LINES_OFF: Final = 4096
TEXT: Final = 256
LINE: Final = 64
AGAIN: Final = 1
OPEN: Final = 1
CLOSED: Final = 2


class Line(IntEnum):
    """Lines before the requests."""

    HEAD = 0
    CLIENT = 2
    SERVER = 4
    SLEEP = 6


class Op(IntEnum):
    """What can be asked."""

    PING = 1
    NS_CREATE = 2
    PUT = 3
    DELETE = 4
    PIN = 5
    UNPIN = 6
    RESERVE = 7
    COMMIT = 8
    RELEASE = 9


@dataclass(frozen=True)
class Head(Struct):
    """The first line; writer: the client, once."""

    C: ClassVar = ("rg_head", "")
    magic: Annotated[bytes, Array("s", 8)]
    version: U32
    slots: U32
    nonce: U64
    client: U64
    start: U64
    req_bytes: U32
    rep_bytes: U32
    size_bytes: U64
    csum: U64


@dataclass(frozen=True)
class ClientState(Struct):
    """Writer: the client."""

    C: ClassVar = ("rg_state", "")
    state: U64
    asleep: Annotated[tuple[int, ...], Array("Q", SLOTS_MAX // 64)]
    pad: Annotated[tuple[int, ...], Array("Q", 3)]


@dataclass(frozen=True)
class Mark(Struct):
    """Writer: the server."""

    C: ClassVar = ("rg_mark", "")
    state: U64
    epoch: U64
    pid: U64
    pad: Annotated[tuple[int, ...], Array("Q", 4)]
    csum: U64


@dataclass(frozen=True)
class Request(Struct):
    """Writer: the client."""

    C: ClassVar = ("rg_req", "")
    pos: U64
    op: U16
    flags: U16
    slot: U32
    number: U64
    off: U32
    len: U32
    rep_off: U32
    rep_cap: U32
    arg: U64
    psum: U64
    csum: U64


@dataclass(frozen=True)
class Reply(Struct):
    """Writer: the server."""

    C: ClassVar = ("rg_rep", "")
    pos: U64
    status: I32
    text_len: U32
    result: U64
    number: U64
    len: U32
    pad0: U32
    pad1: U64
    psum: U64
    csum: U64


@dataclass(frozen=True)
class Keys(Struct):
    """Head of the payload of a request on keys."""

    C: ClassVar = ("rg_keys", "")
    count: U32
    key_bytes: U32
    how: U32
    pad: U32


@dataclass(frozen=True)
class Room(Struct):
    """Payload of a reservation."""

    C: ClassVar = ("rg_room", "")
    size_bytes: U64
    count: U32
    pad: U32


@dataclass(frozen=True)
class Fill(Struct):
    """A block that is committed; behind the head of the keys."""

    C: ClassVar = ("rg_fill", "")
    index: U32
    nsums: U32
    filled_bytes: U64


STRUCTS: Final[tuple[type[Struct], ...]] = (
    Head,
    ClientState,
    Mark,
    Request,
    Reply,
    Keys,
    Room,
    Fill,
)


@dataclass(frozen=True)
class Shape:
    """Where things are in a ring, bytes from its start; and how long the payload ranges are."""

    rep_line: int
    req_pay: int
    rep_pay: int
    req_len: int
    rep_len: int
    size: int


def shape(slots: int, req_bytes: int, rep_bytes: int) -> Shape:
    """Geometry of a ring."""

    def pages(n: int) -> int:
        return (n + 4095) & ~4095

    lines, small = pages(slots * LINE), pages(slots * SMALL)
    rep_line = LINES_OFF + lines
    req_pay = rep_line + lines
    rep_pay = req_pay + small + req_bytes
    return Shape(
        rep_line,
        req_pay,
        rep_pay,
        small + req_bytes,
        small + rep_bytes,
        rep_pay + small + rep_bytes,
    )


def line_csum(line: bytes, nonce: int, index: int) -> int:
    """Checksum of a line's first 56 bytes; ``index``: which line of the ring it is."""
    return xxhash.xxh3_64_intdigest(line[:56], seed=nonce ^ index) or 1


def payload_sum(data: bytes, seed: int) -> int:
    """Of a payload; 0 for none."""
    return (xxhash.xxh3_64_intdigest(data, seed=seed & (1 << 64) - 1) or 1) if data else 0


def read_head(data: bytes) -> Head:
    """The head of a ring that ``data`` begins with. FormatError says what is wrong with it."""
    head = Head.decode(data)
    if head.magic != MAGIC:
        raise FormatError("request ring: magic", 0, MAGIC, head.magic)
    if head.version != VERSION:
        raise FormatError("request ring: version", 8, VERSION, head.version)
    want = line_csum(data[:LINE], head.nonce, Line.HEAD)
    if head.csum != want:
        raise FormatError("request ring: checksum of the head", 56, want, head.csum)
    if head.size_bytes != shape(head.slots, head.req_bytes, head.rep_bytes).size:
        raise FormatError("request ring: size", 48, "that of its geometry", head.size_bytes)
    return head

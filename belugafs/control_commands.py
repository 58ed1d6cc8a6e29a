"""What a mount does when it is told to: the commands of ``.beluga/control``.

A command is one line of words, the answer a JSON object. Commands run between the requests of
the mount, so each stops after about ``SLICE_S`` or the bytes it was given, and says how far it
has come; whoever wants more asks again (:mod:`belugafs.control_client`).
"""

import json
import time
from collections.abc import Callable
from typing import Any

from belugafs import _native

SLICE_S = 0.02
_EVICT_GRANULES = 1024  # asked of the core at a time: 4 MiB, or as many tiny blocks
_EVICTABLE_SLOTS = 8192  # looked at by the core at a time
_VERIFY_BYTES_MAX = 64 << 20

Answer = dict[str, Any]


class CommandError(ValueError):
    """No such command, or wrong words behind it. The caller's write is EINVAL."""


def run(pool: _native.Pool, line: bytes) -> bytes:
    """Run one command; the answer, with a newline. Raises CommandError and the core's errors."""
    try:
        words = line.decode("ascii").split()
    except UnicodeDecodeError as error:
        raise CommandError("a command is ASCII") from error
    if not words or words[0] not in _COMMANDS:
        raise CommandError(f"commands are {', '.join(_COMMANDS)}")
    return json.dumps(_COMMANDS[words[0]](pool, words[1:])).encode() + b"\n"


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 64:
        raise CommandError(f"{text!r} is no number")
    return int(text)


def evict(pool: _native.Pool, words: list[str]) -> Answer:
    """``evict BYTES``: drop least recently used blocks until so many bytes are free that were
    not. ``done`` says that there is no sense in asking again: enough went, or nothing more can.
    """
    if len(words) != 1:
        raise CommandError("evict BYTES")
    wanted = -(-_number(words[0]) // _native.GRANULE_BYTES)
    before = pool.statfs()
    freed, done = 0, wanted == 0
    until = time.monotonic() + SLICE_S
    while not done and time.monotonic() < until:
        got = pool.evict(min(wanted - freed, _EVICT_GRANULES))
        freed += got
        done = got == 0 or freed >= wanted
    blocks = pool.statfs()["evicted_blocks"] - before["evicted_blocks"]
    return {"freed_bytes": freed * _native.GRANULE_BYTES, "blocks": blocks, "done": done}


def evictable(pool: _native.Pool, words: list[str]) -> Answer:
    """``evictable SLOT``: the bytes that eviction could free in the objects from that inode slot
    on. ``next`` is where to go on; 0: that was all."""
    if len(words) != 1 or (slot := _number(words[0])) >= 1 << 32:
        raise CommandError("evictable SLOT")
    granules, more = 0, True
    until = time.monotonic() + SLICE_S
    while more and time.monotonic() < until:
        part, slot = pool.evictable(slot, _EVICTABLE_SLOTS)
        granules += part
        more = slot != 0
    return {"evictable_bytes": granules * _native.GRANULE_BYTES, "next": slot}


def verify(pool: _native.Pool, words: list[str]) -> Answer:
    """``verify BYTES INODE OFFSET [INODE OFFSET]...``: compare files with their checksums, from
    these offsets on, about BYTES in all. One result for each file that was begun, as
    ``Pool.verify`` gives it, or with an ``error``, an errno."""
    if len(words) < 3 or len(words) % 2 == 0:
        raise CommandError("verify BYTES INODE OFFSET [INODE OFFSET]...")
    left = min(_number(words[0]), _VERIFY_BYTES_MAX)
    files = [(_number(words[at]), _number(words[at + 1])) for at in range(1, len(words), 2)]
    until = time.monotonic() + SLICE_S
    results: list[dict[str, int]] = []
    for ino, offset in files:
        if results and (left <= 0 or time.monotonic() > until):
            break
        try:
            found = pool.verify(ino, offset, left)
            left -= found["checked_bytes"] + found["unchecked_bytes"]
        except _native.CoreError as error:
            found = {"error": error.errno or 0}
        results.append(found)
    return {"files": results}


_COMMANDS: dict[str, Callable[[_native.Pool, list[str]], Answer]] = {
    "evict": evict,
    "evictable": evictable,
    "verify": verify,
}

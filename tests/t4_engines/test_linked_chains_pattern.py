"""Files published by link(2) and pinned by locks, as spoolcache does it.

A chain is written to a temporary file and synced, linked to its name (EEXIST: another process
was first), the directory is synced, and the temporary name goes. Readers hold an open file
description lock on a byte range; who wants to remove a chain asks for a conflicting one first.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HEADER = struct.Struct("<8s32sQ")
MAGIC = b"CHAIN-1\0"
KIB = 1024
MIB = KIB * KIB

# struct flock of Linux on 64 bits: type, whence, start, length, pid (0 for such locks).
_FLOCK = struct.Struct("hh4xqqi4x")


def ofd(fd: int, command: int, kind: int, start: int, length: int) -> int:
    """An open file description lock; returns the type that the kernel answers."""
    answer = fcntl.fcntl(fd, command, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))
    return int(_FLOCK.unpack(answer)[0])


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def publish(top: Path, name: str, tokens: bytes, payload: bytes) -> bool:
    """Store a chain; False when there was one of that name."""
    unfinished = top / "tmp" / f"{name}.{os.getpid()}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(unfinished, flags, 0o600)
    try:
        empty = HEADER.pack(bytes(8), bytes(32), 0)
        whole = len(empty) + len(tokens) + len(payload)
        assert os.writev(fd, [empty, tokens, payload]) == whole
        digest = hashlib.sha256(tokens + payload).digest()
        os.lseek(fd, 0, os.SEEK_SET)
        assert os.write(fd, HEADER.pack(MAGIC, digest, len(tokens))) == HEADER.size
        os.fsync(fd)
    finally:
        os.close(fd)
    try:
        os.link(unfinished, top / name)
        first = True
    except FileExistsError:
        first = False
    sync_directory(top)
    os.unlink(unfinished)
    sync_directory(top / "tmp")
    return first


def read_chain(fd: int) -> tuple[bytes, bytes]:
    """Tokens and payload of an open chain, checked."""
    size = os.fstat(fd).st_size
    header, rest = bytearray(HEADER.size), bytearray(size - HEADER.size)
    os.lseek(fd, 0, os.SEEK_SET)
    assert os.readv(fd, [header, rest]) == size
    magic, digest, ntokens = HEADER.unpack(header)
    assert magic == MAGIC
    assert hashlib.sha256(rest).digest() == digest
    return bytes(rest[:ntokens]), bytes(rest[ntokens:])


@pytest.fixture
def top(kv_dir: Path) -> Path:
    (kv_dir / "tmp").mkdir(mode=0o700)
    return kv_dir


def test_link_publishes_once(top: Path) -> None:
    tokens, payload = os.urandom(4000), os.urandom(3 * MIB + 17)
    assert publish(top, "chain", tokens, payload)
    assert not publish(top, "chain", b"other", b"late")
    assert os.listdir(top / "tmp") == []
    found = os.stat(top / "chain")
    assert (found.st_nlink, found.st_mode & 0o777) == (1, 0o600)
    fd = os.open(top / "chain", os.O_RDONLY | os.O_NOFOLLOW)
    try:
        assert read_chain(fd) == (tokens, payload)
        os.utime(fd, ns=(10**18 + 1, 10**18 + 2))
        assert os.fstat(fd).st_mtime_ns == 10**18 + 2
    finally:
        os.close(fd)
    os.symlink("chain", top / "trap")
    with pytest.raises(OSError) as caught:
        os.open(top / "trap", os.O_RDONLY | os.O_NOFOLLOW)
    assert caught.value.errno == errno.ELOOP


RACER = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
spec = spec_from_file_location("pattern", sys.argv[1])
pattern = module_from_spec(spec)
spec.loader.exec_module(pattern)
top, who = Path(sys.argv[2]), sys.argv[3]
sys.stdin.readline()
for number in range(30):
    print(int(pattern.publish(top, f"chain{number}", who.encode(), who.encode() * 5000)))
"""


def test_processes_that_race_for_a_name_have_one_winner(top: Path) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, __file__, str(top), who],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for who in ("left", "right")
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    results = [racer.communicate(timeout=60)[0].split() for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    assert [int(a) + int(b) for a, b in zip(*results, strict=True)] == [1] * 30
    for number in range(30):
        fd = os.open(top / f"chain{number}", os.O_RDONLY)
        try:
            tokens, payload = read_chain(fd)
        finally:
            os.close(fd)
        winner = "left" if results[0][number] == "1" else "right"
        assert (tokens, payload) == (winner.encode(), winner.encode() * 5000)
    assert os.listdir(top / "tmp") == []


EVICTOR = """
import errno, fcntl, os, struct, sys
flock = struct.Struct("hh4xqqi4x")
fd = os.open(sys.argv[1], os.O_RDWR)
lock = flock.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
held = flock.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, lock))[0]
try:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock)
    os.unlink(sys.argv[1])
    print("removed", held == fcntl.F_UNLCK)
except OSError as error:
    print(errno.errorcode[error.errno], held == fcntl.F_RDLCK)
"""


def try_to_remove(path: Path) -> str:
    command = [sys.executable, "-c", EVICTOR, str(path)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=30, check=True
    ).stdout.strip()


def test_a_reader_pins_by_lock(top: Path) -> None:
    payload = os.urandom(MIB)
    publish(top, "chain", b"tokens", payload)
    first = os.open(top / "chain", os.O_RDONLY)
    second = os.open(top / "chain", os.O_RDONLY)
    for fd in (first, second):  # shared among readers, also within one process
        ofd(fd, fcntl.F_OFD_SETLK, fcntl.F_RDLCK, 0, 1)
    assert try_to_remove(top / "chain") == "EAGAIN True"
    os.close(first)  # a lock of this kind goes with its own descriptor only
    assert try_to_remove(top / "chain") == "EAGAIN True"
    ofd(second, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, 0, 1)
    assert try_to_remove(top / "chain") == "removed True"
    assert read_chain(second) == (b"tokens", payload)  # open: whole, though it has no name
    os.close(second)
    assert not (top / "chain").exists()


def test_one_process_at_a_time_has_the_lock_file(top: Path) -> None:
    """flock(2), shared and exclusive, against another process."""
    asker = (
        "import fcntl, os, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)\n"
        "for kind in (fcntl.LOCK_SH, fcntl.LOCK_EX):\n"
        "    try: fcntl.flock(fd, kind | fcntl.LOCK_NB); print(1, end='')\n"
        "    except BlockingIOError: print(0, end='')\n"
    )

    def ask() -> str:
        command = [sys.executable, "-c", asker, str(top / "lock")]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=True
        ).stdout

    fd = os.open(top / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_SH)
    assert ask() == "10"
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert ask() == "00"
    os.close(fd)
    assert ask() == "11"


def test_what_was_published_outlives_the_daemon(mounted_pool: Any) -> None:
    top = Path(mounted_pool.path)
    (top / "tmp").mkdir()
    for number in range(8):
        assert publish(top, f"chain{number}", b"t" * 100, bytes([number]) * 300_000)
    mounted_pool.kill9()
    mounted_pool.mount()
    assert sorted(os.listdir(top)) == [*(f"chain{number}" for number in range(8)), "tmp"]
    for number in range(8):
        fd = os.open(top / f"chain{number}", os.O_RDONLY)
        assert read_chain(fd) == (b"t" * 100, bytes([number]) * 300_000)
        os.close(fd)
    assert os.listdir(top / "tmp") == []


def test_a_full_pool_evicts_chains(mounted_pool: Any) -> None:
    """Twice what the pool holds: a chain that has one name is a block, however it got it."""
    top = Path(mounted_pool.path)
    (top / "tmp").mkdir()
    for number in range(128):
        assert publish(top, f"chain{number:03}", b"tokens", bytes([number]) * MIB)
        assert os.getxattr(top / f"chain{number:03}", "user.beluga.class") == b"block"
    kept = sorted(name for name in os.listdir(top) if name.startswith("chain"))
    assert 16 <= len(kept) < 64
    assert kept[-1] == "chain127"

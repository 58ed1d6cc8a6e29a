"""Files of a mount, used as engines use them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import threading
from pathlib import Path
from typing import Any

import pytest

KIB = 1024
MIB = KIB * KIB


@pytest.fixture
def top(mounted_pool: Any) -> Path:
    path: Path = mounted_pool.path
    return path


@contextlib.contextmanager
def opened(path: Path, flags: int, mode: int = 0o644) -> Any:
    fd = os.open(path, flags, mode)
    try:
        yield fd
    finally:
        os.close(fd)


def test_vllm_stores_and_loads_a_block(mounted_pool: Any, top: Path) -> None:
    """tmp name, O_EXCL and O_DIRECT, one write of the whole, rename; then one read."""
    data = mmap.mmap(-1, 5 * MIB)
    data.write(os.urandom(5 * MIB))
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_TRUNC | os.O_DIRECT
    with opened(top / "block.tmp", flags) as fd:
        assert os.write(fd, data) == 5 * MIB
    assert not os.access(top / "block", os.F_OK)
    os.rename(top / "block.tmp", top / "block")
    assert os.access(top / "block", os.F_OK)
    assert os.stat(top / "block").st_size == 5 * MIB
    back = mmap.mmap(-1, 5 * MIB)
    with opened(top / "block", os.O_RDONLY | os.O_DIRECT) as fd:
        assert os.readv(fd, [back]) == 5 * MIB
    assert back[:] == data[:]
    assert os.getxattr(top / "block", "user.beluga.class") == b"block"
    assert mounted_pool.settled_state(top / "block") == "sealed"
    with pytest.raises(FileExistsError):
        os.open(top / "block", flags)


@pytest.mark.parametrize("length", [1, 511, 4095, 4096, 4097, 300_001])
@pytest.mark.parametrize("shift", [0, 1])
def test_direct_io_takes_any_alignment(top: Path, length: int, shift: int) -> None:
    data = bytearray(os.urandom(length + 1))
    view = memoryview(data)[shift : shift + length]
    with opened(top / "f", os.O_CREAT | os.O_RDWR | os.O_DIRECT) as fd:
        assert os.pwrite(fd, view, 3) == length
        assert os.pread(fd, length + 100, 0) == bytes(3) + bytes(view)
        assert os.pread(fd, 10, length + 3) == b""
    with opened(top / "f", os.O_RDONLY) as fd:
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)
        assert os.pread(fd, length, 3) == bytes(view)


def test_private_mapping(top: Path) -> None:
    data = os.urandom(3 * MIB + 5)
    (top / "f").write_bytes(data)
    with opened(top / "f", os.O_RDONLY) as fd:
        mapping = mmap.mmap(fd, len(data), flags=mmap.MAP_PRIVATE)
        os.posix_fadvise(fd, 0, len(data), os.POSIX_FADV_SEQUENTIAL)
    with mapping:  # the descriptor is closed
        os.unlink(top / "f")
        assert mapping[:] == data
        mapping[0:4] = b"mine"
    assert not (top / "f").exists()


def test_shared_mapping_is_seen_by_read_and_stays(mounted_pool: Any, top: Path) -> None:
    with opened(top / "f", os.O_CREAT | os.O_RDWR) as fd:
        os.ftruncate(fd, MIB)
        with mmap.mmap(fd, MIB) as mapping:
            mapping[4096:8192] = b"q" * 4096
            assert os.pread(fd, 4096, 4096) == b"q" * 4096
            mapping.flush()
            os.pwrite(fd, b"z" * 10, 0)
            assert mapping[:10] == b"z" * 10
            mapping[MIB - 3 :] = b"end"
    expected = b"z" * 10 + bytes(4086) + b"q" * 4096 + bytes(MIB - 8192 - 3) + b"end"
    assert (top / "f").read_bytes() == expected
    mounted_pool.remount()
    assert (top / "f").read_bytes() == expected


def test_rename_over_an_open_file(top: Path) -> None:
    (top / "f").write_bytes(b"old" * 10000)
    with open(top / "f", "rb", buffering=0) as reader:
        assert reader.read(3) == b"old"
        (top / "f.tmp").write_bytes(b"new" * 10000)
        os.replace(top / "f.tmp", top / "f")
        assert reader.read() == (b"old" * 10000)[3:]
        assert os.fstat(reader.fileno()).st_nlink == 0
    assert (top / "f").read_bytes() == b"new" * 10000


def test_rename_while_open_for_writing(top: Path) -> None:
    """safetensors: rename, then close."""
    with open(top / "f.tmp", "wb", buffering=0) as file:
        file.truncate(100_000)
        file.write(b"head")
        os.rename(top / "f.tmp", top / "f")
        file.write(b"more")
    assert (top / "f").read_bytes() == b"headmore" + bytes(99_992)


def test_unlink_while_open(mounted_pool: Any, top: Path) -> None:
    with opened(top / "f", os.O_CREAT | os.O_RDWR) as fd:
        os.unlink(top / "f")
        os.write(fd, b"x" * MIB)
        assert os.pread(fd, 2 * MIB, 0) == b"x" * MIB
        found = os.fstat(fd)
        assert (found.st_nlink, found.st_size) == (0, MIB)
        assert os.listdir(top) == []
    mounted_pool.await_stat("used_granules", 0)


def test_sparse_and_offsets(top: Path) -> None:
    with opened(top / "f", os.O_CREAT | os.O_RDWR) as fd:
        os.ftruncate(fd, 1 << 40)
        assert os.fstat(fd).st_size == 1 << 40
        assert os.pread(fd, 4096, 1 << 39) == bytes(4096)
        os.pwrite(fd, b"here", (1 << 39) + 5)
        assert os.pread(fd, 10, 1 << 39) == bytes(5) + b"here" + bytes(1)
        assert os.fstat(fd).st_blocks * 512 <= 2 * MIB  # a huge page, in a directory pool
    os.unlink(top / "f")


def test_parallel_writes_to_one_file(top: Path) -> None:
    """Many threads, each its own part, through descriptors of their own; then rename."""
    parts = [os.urandom(200_000) for _ in range(8)]
    (top / "f.tmp").write_bytes(b"")

    def write(number: int) -> None:
        with opened(top / "f.tmp", os.O_WRONLY) as fd:
            assert os.pwrite(fd, parts[number], number * 200_000) == 200_000

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in reversed(threads):
        thread.start()
    for thread in threads:
        thread.join()
    os.rename(top / "f.tmp", top / "f")
    assert (top / "f").read_bytes() == b"".join(parts)


@pytest.mark.parametrize(
    "name", [b"n" * 255, "ä".encode() * 127, b"\xff\xfe\x80", b"a\nb\t*?", b"-rf", b" ", b"..."]
)
def test_names(top: Path, name: bytes) -> None:
    path = os.path.join(os.fsencode(top), name)
    with open(path, "wb") as file:
        file.write(b"x")
    assert os.listdir(os.fsencode(top)) == [name]
    os.rename(path, path[:-1] + b"z")
    assert os.listdir(os.fsencode(top)) == [name[:-1] + b"z"]
    os.unlink(path[:-1] + b"z")


def test_names_that_are_too_long(top: Path) -> None:
    for call in (
        lambda: (top / ("n" * 256)).write_bytes(b""),
        lambda: (top / ("n" * 256)).stat(),
        lambda: (top / ("n" * 256)).mkdir(),
    ):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.ENAMETOOLONG


def test_a_deep_path(top: Path) -> None:
    path = top
    for number in range(40):
        path = path / f"directory{number}"
        path.mkdir()
    (path / "f").write_bytes(b"deep")
    assert (path / "../../../f").exists() is False
    assert (path / "f").read_bytes() == b"deep"


def test_locks(top: Path) -> None:
    (top / "f").write_bytes(b"x")
    with open(top / "f", "r+b") as one, open(top / "f", "r+b") as two:
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(one, fcntl.LOCK_UN)
        fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_miss_is_enoent_also_right_after_a_hit(mounted_pool: Any, top: Path) -> None:
    """The kernel remembers the name for a second; open must not say ESTALE."""
    for number in range(50):
        path = top / f"{number}"
        path.write_bytes(b"x")
        assert path.exists()
        with opened(path, os.O_RDONLY):
            os.unlink(path)
        with pytest.raises(FileNotFoundError):
            os.open(path, os.O_RDONLY)


@pytest.mark.parametrize("unmounted_pool", [32 * MIB], indirect=True)
def test_eviction_under_readers(mounted_pool: Any, top: Path) -> None:
    """Names that the kernel still remembers, of blocks that are gone: ENOENT, or the whole
    right block; nothing else, ever."""
    size = 400_000
    written = 0
    wrong: list[object] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            for number in range(max(0, written - 80), written):
                try:
                    data = (top / f"{number}").read_bytes()
                except FileNotFoundError:
                    continue
                except OSError as error:
                    wrong.append(error)
                    return
                if data != number.to_bytes(4, "little") * (size // 4):
                    wrong.append((number, len(data)))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for number in range(400):
            temporary = top / f"{number}.tmp"
            temporary.write_bytes(number.to_bytes(4, "little") * (size // 4))
            temporary.rename(top / f"{number}")
            written = number + 1
            found = os.statvfs(top)
            assert found.f_bfree <= found.f_blocks
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert not wrong
    assert int(mounted_pool.stats()["evicted_blocks"]) > 100


@pytest.mark.parametrize("unmounted_pool", [16 * MIB], indirect=True)
def test_a_full_pool_without_eviction(unmounted_pool: Any) -> None:
    unmounted_pool.mount("evict=none")
    top = unmounted_pool.path
    whole = 0
    with pytest.raises(OSError) as caught:
        for number in range(100):
            (top / f"{number}").write_bytes(b"x" * MIB)
            whole = number + 1
    assert caught.value.errno == errno.ENOSPC
    assert whole >= 5
    (top / f"{whole}").unlink()
    (top / "0").unlink()
    (top / "again").write_bytes(b"y" * MIB)
    assert (top / "again").read_bytes() == b"y" * MIB


def test_timestamps(top: Path) -> None:
    (top / "f").write_bytes(b"x")
    os.utime(top / "f", ns=(123_456_789, 987_654_321))
    found = os.stat(top / "f")
    assert (found.st_atime_ns, found.st_mtime_ns) == (123_456_789, 987_654_321)
    with open(top / "f", "ab") as file:
        file.write(b"y")
    changed = os.stat(top / "f")
    assert changed.st_mtime_ns > 10**18
    assert changed.st_size == 2

"""The extension module itself: arguments, errors, lifetimes. What the core does is tested
elsewhere."""

from __future__ import annotations

import errno
import gc
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MIB = 1 << 20


@pytest.fixture
def fd(pool_file: Path) -> Any:
    fd = os.open(pool_file, os.O_RDWR)
    yield fd
    os.close(fd)


def file_with(pool: Any, name: bytes, data: bytes) -> int:
    attr, fh = pool.create(1, name)
    assert pool.write(fh, 0, data) == len(data)
    pool.flush(fh)
    pool.release(fh)
    return int(attr.ino)


# ---- mkfs, peek, fsck ---------------------------------------------------------------------------


def test_mkfs_says_what_peek_says(native: Any, pool_dir: Path) -> None:
    with open(pool_dir / "p", "w+b") as file:
        file.truncate(64 * MIB)
        uuid = os.urandom(16)
        made = native.mkfs(file.fileno(), 64 * MIB, uuid=uuid, label=b"hello", inodes=1000, hosts=4)
        seen = native.peek(file.fileno(), 64 * MIB)
    assert made == seen
    assert seen["uuid"] == uuid
    assert seen["label"].rstrip(b"\0") == b"hello"
    assert (seen["size_bytes"], seen["nhosts"]) == (64 * MIB, 4)
    assert seen["inodes"] >= 1000


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, ValueError),
        ({"uuid": b"short"}, ValueError),
        ({"uuid": "x" * 16}, TypeError),
        ({"uuid": bytes(16), "label": b"x" * 65}, ValueError),
        ({"uuid": bytes(16), "inodes": -1}, OverflowError),
        ({"uuid": bytes(16), "inodes": 1 << 32}, OverflowError),
        ({"uuid": bytes(16), "hosts": 1.5}, TypeError),
        ({"uuid": bytes(16), "max_size_bytes": 1 << 64}, OverflowError),
        ({"uuid": bytes(16), "no_such": 1}, TypeError),
    ],
)
def test_mkfs_arguments(
    native: Any, fd: int, arguments: dict[str, Any], error: type[Exception]
) -> None:
    before = os.pread(fd, 8192, 0)
    with pytest.raises(error):
        native.mkfs(fd, 64 * MIB, **arguments)
    assert os.pread(fd, 8192, 0) == before


def test_sizes_and_descriptors(native: Any, fd: int) -> None:
    for size in (0, 1 << 63):
        with pytest.raises(ValueError, match="size_bytes"):
            native.peek(fd, size)
    with pytest.raises(OverflowError):
        native.peek(fd, -1)
    with pytest.raises(OSError) as caught:
        native.peek(-1, 4096)
    assert caught.value.errno == errno.EBADF


def test_peek_says_what_is_wrong(native: Any, pool_dir: Path) -> None:
    with open(pool_dir / "p", "w+b") as file:
        file.truncate(MIB)
        with pytest.raises(native.PoolFormatError, match="all zero") as caught:
            native.peek(file.fileno(), MIB)
    assert isinstance(caught.value, native.CoreError)
    assert isinstance(caught.value, OSError)
    assert caught.value.errno is not None


def test_an_exception_in_fscks_callback_comes_out(native: Any, fd: int, core_pool: Any) -> None:
    file_with(core_pool, b"f", b"x" * MIB)
    core_pool.close()
    os.pwrite(fd, b"\xff" * 16, 100)  # a damaged superblock copy is a finding

    class Stop(Exception):
        pass

    calls = []

    def stop(*finding: Any) -> None:
        calls.append(finding)
        raise Stop

    with pytest.raises(Stop):
        native.fsck(fd, 64 * MIB, True, stop)
    assert len(calls) == 1
    assert [type(part) for part in calls[0]] == [int, str, str]
    os.pwrite(fd, os.pread(fd, 4096, 4096), 0)


# ---- names and errors ---------------------------------------------------------------------------


def test_names_are_bytes_or_str(core_pool: Any) -> None:
    core_pool.mkdir(1, "Käse")
    assert core_pool.lookup(1, "Käse".encode()).ino == core_pool.lookup(1, "Käse").ino
    core_pool.mkdir(1, b"\xff\xfe")
    assert core_pool.lookup(1, os.fsdecode(b"\xff\xfe")).ino
    for name in (1, None, bytearray(b"x")):
        with pytest.raises(TypeError):
            core_pool.lookup(1, name)
    for name in ("a\0b", b"a\0b"):
        with pytest.raises(ValueError, match="null"):
            core_pool.mkdir(1, name)


def test_errors_have_errno_and_text(native: Any, core_pool: Any) -> None:
    with pytest.raises(native.CoreError) as caught:
        core_pool.lookup(1, b"none")
    assert caught.value.errno == errno.ENOENT
    assert caught.value.strerror
    with pytest.raises(native.CoreError) as caught:
        core_pool.getattr(1 << 62)
    assert caught.value.errno in (errno.ESTALE, errno.ENOENT)


@pytest.mark.parametrize(
    "call",
    [
        lambda pool: pool.getattr(-1),
        lambda pool: pool.lookup(1 << 64, b"x"),
        lambda pool: pool.setattr(1, mode=1 << 32),
        lambda pool: pool.setattr(1, size=-1),
        lambda pool: pool.setattr(1, mtime_ns=1 << 63),
        lambda pool: pool.mkdir(1, b"x", uid=-1),
        lambda pool: pool.read(1, 0, -1),
        lambda pool: pool.read(1, 0, 1 << 63),
        lambda pool: pool.open(1, 1 << 32),
        lambda pool: pool.declare_dead(1 << 32),
    ],
)
def test_numbers_are_never_cut(core_pool: Any, call: Callable[[Any], Any]) -> None:
    with pytest.raises(OverflowError):
        call(core_pool)


@pytest.mark.parametrize(
    "call",
    [
        lambda pool: pool.getattr("1"),
        lambda pool: pool.getattr(1.0),
        lambda pool: pool.lookup(1),
        lambda pool: pool.lookup(1, b"x", 2),
        lambda pool: pool.read(1, 0),
        lambda pool: pool.write(1, 0, "text"),
        lambda pool: pool.read_into(1, 0, b"constant"),
        lambda pool: pool.readdir(),
        lambda pool: pool.rename(1, b"a", 1),
    ],
)
def test_wrong_types_are_type_errors(core_pool: Any, call: Callable[[Any], Any]) -> None:
    with pytest.raises((TypeError, BufferError)):
        call(core_pool)


def test_bounds(core_pool: Any) -> None:
    for call in (
        lambda: core_pool.readdir(1, 0, 0),
        lambda: core_pool.readdir(1, 0, 1 << 20),
        lambda: core_pool.extents(1, 0),
        lambda: core_pool.block_exists(1, b"x" * 33, 32),
        lambda: core_pool.block_exists(1, b"x" * 32, 0),
        lambda: core_pool.block_match(1, b"x" * 128, 128),
    ):
        with pytest.raises(ValueError, match=r"max|key"):
            call()


def test_attr_is_a_named_tuple(native: Any, core_pool: Any) -> None:
    attr = core_pool.getattr(native.ROOT_INO)
    assert (attr.ino, attr[0], attr.nlink) == (1, 1, 2)
    assert len(attr) == 17
    with pytest.raises(AttributeError):
        attr.ino = 2


def test_arguments_of_pool(native: Any, fd: int) -> None:
    good = {"host_uuid": bytes(16), "boot_id": bytes(16)}
    for change in (
        {"host_uuid": b"x"},
        {"boot_id": b""},
        {"evict": "fifo"},
        {"verify": "maybe"},
        {"coherence": "auto"},
        {"high_permille": 1001},
        {"high_permille": 900, "low_permille": 950},
        {"slot": 16},
        {"slot": -2},
        {"suspect_s": -1.0},
        {"suspect_s": float("nan")},
    ):
        with pytest.raises(ValueError):
            native.Pool(fd, 64 * MIB, **{**good, **change})
    with pytest.raises(ValueError):
        native.Pool(fd, 64 * MIB)


# ---- data ---------------------------------------------------------------------------------------


def test_read_write(core_pool: Any) -> None:
    data = os.urandom(300_000)
    ino = file_with(core_pool, b"f", data)
    fh = core_pool.open(ino)
    assert core_pool.read(fh, 0, 1 << 20) == data
    assert core_pool.read(fh, 299_999, 10) == data[-1:]
    assert core_pool.read(fh, 300_000, 10) == b""
    assert core_pool.read(fh, 0, 0) == b""
    into = bytearray(1000)
    assert core_pool.read_into(fh, 5, memoryview(into)[10:20]) == 10
    assert into[10:20] == data[5:15]
    assert into[20:] == bytes(980)
    core_pool.release(fh)
    with pytest.raises(OSError):
        core_pool.read(fh, 0, 1)


def test_closing_gives_up_an_open_batch(attach: Any, pool_file: Path) -> None:
    """As after an exception between its calls; it used to wait for itself."""
    pool = attach(pool_file)
    ns = pool.ns_create("llama")
    pool.batch_begin()
    pool.block_put(ns, b"k" * 32, b"x" * 4096)
    pool.close()
    again = attach(pool_file)
    assert again.block_exists(again.ns_create("llama"), b"k" * 32, 32) == b"\0"


def test_listing_batches(core_pool: Any) -> None:
    names = {b"n%d" % number for number in range(100)}
    for name in names:
        core_pool.mkdir(1, name)
    seen = []
    after = 0
    while batch := core_pool.readdir(1, after, 7):
        assert len(batch) <= 7
        seen += [name for name, _, _, _ in batch]
        after = batch[-1][1]
    assert sorted(seen) == sorted(names)
    plus = core_pool.readdirplus(1, 0, 4096)
    assert [name for name, _, _ in plus] == seen
    assert all(core_pool.lookup(1, name).ino == attr.ino for name, _, attr in plus)


def test_xattrs(core_pool: Any) -> None:
    core_pool.setxattr(1, b"user.a", b"\0\1")
    core_pool.setxattr(1, "user.b", b"")
    assert sorted(core_pool.listxattr(1)) == [b"user.a", b"user.b"]
    assert core_pool.getxattr(1, "user.a") == b"\0\1"
    core_pool.removexattr(1, b"user.a")
    assert core_pool.listxattr(1) == [b"user.b"]
    with pytest.raises(OSError) as caught:
        core_pool.getxattr(1, b"user.a")
    assert caught.value.errno == errno.ENODATA


def test_buffer_shows_the_data_and_outlives_the_pool(core_pool: Any) -> None:
    data = os.urandom(MIB)
    ino = file_with(core_pool, b"f", data)
    (_, address, length, overlay), *rest = core_pool.extents(ino)
    assert (length, overlay, rest) == (256, False, [])
    start = ((address & ((1 << 56) - 1)) - 1) * 4096
    view = core_pool.buffer
    assert view.readonly
    assert len(view) == core_pool.statfs()["data_granules"] * 4096
    part = view[start : start + MIB]
    assert part == data
    with pytest.raises(TypeError):
        view[0] = 1
    core_pool.close()
    del view
    gc.collect()
    assert part == data  # still mapped
    with pytest.raises(OSError):
        _ = core_pool.buffer


def test_prefault(core_pool: Any, pool_file: Path) -> None:
    before = pool_file.stat().st_blocks
    assert core_pool.prefault(32 * MIB, MIB) in (True, False)
    assert core_pool.prefault(63 * MIB, 1 << 60) in (True, False)  # cut at the end
    assert pool_file.stat().st_blocks >= before
    for offset in (1, 65 * MIB):
        with pytest.raises(ValueError):
            core_pool.prefault(offset, 1)
    with pytest.raises(OverflowError):
        core_pool.prefault(-1, 1)


# ---- lifetime -----------------------------------------------------------------------------------


def test_close(native: Any, attach: Callable[..., Any], pool_file: Path) -> None:
    with attach(pool_file) as pool:
        assert not pool.closed
        pool.mkdir(1, b"d")
    assert pool.closed
    pool.close()
    pool.close(clean=False)
    with pytest.raises(native.CoreError) as caught:
        pool.getattr(1)
    assert caught.value.errno == errno.EBADF
    with attach(pool_file) as pool:
        assert pool.lookup(1, b"d")


def test_not_closed_is_a_warning_and_no_damage(
    native: Any, attach: Callable[..., Any], pool_file: Path, fd: int
) -> None:
    pool = native.Pool(fd, 64 * MIB, host_uuid=b"h" * 16, boot_id=b"b" * 16)
    file_with(pool, b"closed", b"x" * 1000)
    pool.create(1, b"open")
    with pytest.warns(ResourceWarning, match="not closed"):
        del pool
        gc.collect()
    pool = attach(pool_file)
    assert [name for name, _, _, _ in pool.readdir(1)] == [b"closed"]


def test_close_waits_for_other_threads(attach: Callable[..., Any], pool_file: Path) -> None:
    for _ in range(5):
        pool = attach(pool_file)
        errors: list[int | None] = []
        calls = [0]

        def work(pool: Any = pool, errors: Any = errors, calls: Any = calls) -> None:
            try:
                while True:
                    pool.readdirplus(1, 0, 100)
                    pool.statfs()
                    calls[0] += 1
            except OSError as closed:
                errors.append(closed.errno)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        while calls[0] < 20:
            time.sleep(0.001)
        pool.close()
        for thread in threads:
            thread.join(10)
        assert errors == [errno.EBADF] * 4


def test_a_forked_child_is_no_second_writer(core_pool: Any) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            core_pool.mkdir(1, b"child")
        except RuntimeError:
            core_pool.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    core_pool.mkdir(1, b"parent")
    assert [name for name, _, _, _ in core_pool.readdir(1)] == [b"parent"]


def test_calls_run_without_the_gil(core_pool: Any) -> None:
    """While one thread copies, another runs Python."""
    attr, fh = core_pool.create(1, b"f")
    core_pool.write(fh, 0, bytes(16 * MIB))
    stop = threading.Event()
    longest = [0.0]

    def watch() -> None:
        last = time.perf_counter()
        while not stop.is_set():
            now = time.perf_counter()
            longest[0] = max(longest[0], now - last)
            last = now

    thread = threading.Thread(target=watch)
    thread.start()
    into = bytearray(16 * MIB)
    for _ in range(20):
        assert core_pool.read_into(fh, 0, into) == len(into)
    stop.set()
    thread.join()
    core_pool.flush(fh)
    core_pool.release(fh)
    assert longest[0] < 0.5
    assert attr.ino

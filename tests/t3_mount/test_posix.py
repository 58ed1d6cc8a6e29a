"""What POSIX asks of a filesystem, where a random sequence would not find it by itself: other
users, times, limits, locks between processes, what libfuse leaves to the daemon."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import itertools
import mmap
import os
import resource
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from blocks import expect_used, wait_for

PAGE = mmap.PAGESIZE
MIB = 1 << 20
USER, OTHER = 1234, 4321
F_OFD_SETLK = 37

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can act as other users, and mount for them"
)


@pytest.fixture
def top(mounted_pool: Any) -> Path:
    path: Path = mounted_pool.path
    path.chmod(0o777)
    path.parent.chmod(0o711)  # other users have to reach it
    return path


@pytest.fixture
def descriptors() -> Iterator[list[int]]:
    """Closed after the test."""
    opened: list[int] = []
    yield opened
    for fd in opened:
        os.close(fd)


def errno_of(call: Callable[[], object]) -> str:
    """The name of the errno that the call fails with, "" if it does not."""
    try:
        call()
    except OSError as error:
        assert error.errno is not None
        return errno.errorcode[error.errno]
    return ""


def as_user(uid: int, call: Callable[[], object], groups: tuple[int, ...] = ()) -> str:
    """``errno_of`` in a child that is this user, with a group of the same number."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        text = "the child failed"
        try:
            os.setgroups(groups)
            os.setgid(uid)
            os.setuid(uid)
            text = errno_of(call)
        except BaseException as failure:
            text = repr(failure)
        finally:
            os.write(writer, text.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        result = pipe.read()
    os.waitpid(child, 0)
    return result


# ---- other users --------------------------------------------------------------------------------


@needs_root
def test_permissions_of_other_users(top: Path) -> None:
    (top / "f").write_bytes(b"secret")
    os.chown(top / "f", USER, USER)
    os.chmod(top / "f", 0o640)
    read, append = (lambda: open(top / "f").close()), (lambda: open(top / "f", "a").close())
    assert (as_user(USER, read), as_user(USER, append)) == ("", "")
    assert (as_user(OTHER, read), as_user(OTHER, append)) == ("EACCES", "EACCES")
    assert (as_user(OTHER, read, (USER,)), as_user(OTHER, append, (USER,))) == ("", "EACCES")
    assert as_user(OTHER, lambda: os.chmod(top / "f", 0o777)) == "EPERM"
    assert as_user(OTHER, lambda: os.chown(top / "f", OTHER, -1)) == "EPERM"
    assert as_user(OTHER, lambda: os.utime(top / "f", (1, 1))) == "EPERM"
    assert as_user(OTHER, lambda: os.truncate(top / "f", 0)) == "EACCES"
    assert as_user(USER, lambda: os.mkdir(top / "d", 0o700)) == ""
    assert as_user(OTHER, lambda: os.listdir(top / "d")) == "EACCES"
    assert as_user(OTHER, lambda: os.stat(top / "d/x")) == "EACCES"
    found = (top / "d").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (USER, USER, 0o700)


@needs_root
def test_sticky_directories_protect_names(top: Path) -> None:
    top.chmod(0o1777)
    (top / "f").write_bytes(b"x")
    os.chown(top / "f", USER, USER)
    assert as_user(OTHER, lambda: os.unlink(top / "f")) == "EPERM"
    assert as_user(OTHER, lambda: os.rename(top / "f", top / "g")) == "EPERM"
    assert as_user(USER, lambda: os.rename(top / "f", top / "g")) == ""
    assert as_user(USER, lambda: os.unlink(top / "g")) == ""


@needs_root
def test_a_group_directory_gives_its_group(top: Path) -> None:
    (top / "d").mkdir()
    os.chown(top / "d", 0, OTHER)
    os.chmod(top / "d", 0o2777)
    assert as_user(USER, lambda: (top / "d/f").write_bytes(b"")) == ""
    assert as_user(USER, lambda: os.mkdir(top / "d/e")) == ""
    assert (top / "d/f").stat().st_gid == (top / "d/e").stat().st_gid == OTHER
    assert (top / "d/e").stat().st_mode & stat.S_ISGID


@needs_root
def test_what_clears_set_user_id(top: Path) -> None:
    """Writing, truncating and giving away do, for those who aren't root; giving away always."""
    path = top / "f"

    def write() -> None:
        fd = os.open(path, os.O_RDWR)
        os.write(fd, b"new")
        os.close(fd)

    def write_direct() -> None:
        fd = os.open(path, os.O_RDWR | os.O_DIRECT)
        os.write(fd, b"new")
        os.close(fd)

    calls: dict[str, Callable[[], object]] = {
        "write": write,
        "write O_DIRECT": write_direct,
        "truncate": lambda: os.truncate(path, 2),
        "O_TRUNC": lambda: os.close(os.open(path, os.O_WRONLY | os.O_TRUNC)),
        "chown": lambda: os.chown(path, -1, USER),
    }
    for name, root in itertools.product(calls, (False, True)):
        path.write_bytes(b"program")
        os.chown(path, USER, USER)
        os.chmod(path, 0o6777)
        assert as_user(0 if root else USER, calls[name]) == ""
        kept = root and name != "chown"
        assert stat.S_IMODE(path.stat().st_mode) == (0o6777 if kept else 0o777), name


@needs_root
def test_a_new_owner_takes_set_user_id_of_all_but_directories(top: Path) -> None:
    kinds: dict[str, Callable[[Path], object]] = {
        "file": Path.touch,
        "directory": Path.mkdir,
        "fifo": os.mkfifo,
        "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
        "device": lambda path: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3)),
        "block device": lambda path: os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(1, 3)),
    }
    for kind, executable in itertools.product(kinds, (False, True)):
        path = top / kind
        kinds[kind](path)
        mode = 0o6775 if executable else 0o6764
        for root in (False, True):
            os.chown(path, USER, USER)
            os.chmod(path, mode)
            change = functools.partial(os.chown, path, USER, -1)
            assert as_user(0 if root else USER, change) == ""
            left = mode if kind == "directory" else mode & (0o777 if executable else 0o2777)
            assert stat.S_IMODE(path.stat().st_mode) == left, (kind, executable, root)
        path.rmdir() if kind == "directory" else path.unlink()


@needs_root
def test_attributes_of_root_are_not_shown_to_others(top: Path) -> None:
    (top / "f").write_bytes(b"x")
    os.chmod(top / "f", 0o666)
    os.setxattr(top / "f", "trusted.note", b"1")
    os.setxattr(top / "f", "user.note", b"2")
    assert os.listxattr(top / "f") == ["trusted.note", "user.note"]

    def look() -> None:
        assert os.listxattr(top / "f") == ["user.note"]
        os.getxattr(top / "f", "trusted.note")

    assert as_user(OTHER, look) == "ENODATA"
    assert as_user(OTHER, lambda: os.setxattr(top / "f", "trusted.note", b"")) == "EPERM"


# ---- times --------------------------------------------------------------------------------------


def test_times_far_away(top: Path) -> None:
    """What the pool can't hold becomes the nearest that it can, as on every filesystem."""
    end_ns = (1 << 63) - 1
    (top / "f").write_bytes(b"x")
    for given_s, stored_ns in (
        (-1, -(10**9)),
        ((1 << 33) + 5, ((1 << 33) + 5) * 10**9),
        (1 << 40, end_ns),
        (-(1 << 40), -end_ns),
    ):
        os.utime(top / "f", (given_s, given_s))
        found = os.stat(top / "f")
        assert (found.st_atime_ns, found.st_mtime_ns) == (stored_ns, stored_ns)


def test_utimensat_now_and_omit(top: Path) -> None:
    """llm-d's evictor moves the access time alone, to the nanosecond."""
    path = top / "f"
    path.write_bytes(b"x")
    os.utime(path, ns=(1_000_000_007, 2_000_000_009))
    libc = ctypes.CDLL(None, use_errno=True)
    now, omit = 0x3FFFFFFF, 0x3FFFFFFE

    def utimensat(access: int, modify: int) -> os.stat_result:
        times = struct.pack("4q", 0, access, 0, modify)
        assert libc.utimensat(-100, os.fsencode(path), times, 0) == 0
        return path.stat()

    before_ns = time.time_ns() - 10**7
    found = utimensat(now, omit)
    assert found.st_atime_ns >= before_ns and found.st_mtime_ns == 2_000_000_009
    found = utimensat(omit, omit)
    assert found.st_atime_ns >= before_ns and found.st_mtime_ns == 2_000_000_009
    found = utimensat(omit, now)
    assert found.st_mtime_ns >= before_ns
    found = utimensat(17, 19)
    assert (found.st_atime_ns, found.st_mtime_ns) == (17, 19)


def test_truncating_to_the_same_size_changes_times(top: Path, descriptors: list[int]) -> None:
    path = top / "f"
    path.write_bytes(b"")
    calls: list[Callable[[], object]] = [
        lambda: os.truncate(path, 0),
        lambda: descriptors.append(os.open(path, os.O_RDONLY | os.O_TRUNC)),
        lambda: descriptors.append(os.open(path, os.O_WRONLY | os.O_TRUNC)),
        lambda: os.ftruncate(descriptors[-1], 0),
    ]
    for call in calls:
        os.utime(path, ns=(5, 5))
        call()
        assert path.stat().st_mtime_ns > 10**18


@pytest.mark.parametrize("end", ["close", "kill -9"])
def test_utimes_while_a_file_is_being_written(mounted_pool: Any, top: Path, end: str) -> None:
    """It holds until the next write, whatever else changes, and also where it sets what was."""
    path = top / "f"
    path.write_bytes(b"x")
    os.utime(path, ns=(5, 5))
    with open(path, "r+b", buffering=0) as file:

        def mtime_ns(call: Callable[[], object]) -> int:
            call()
            return os.stat(path).st_mtime_ns

        assert mtime_ns(lambda: file.write(b"y")) > 10**18
        assert mtime_ns(lambda: os.utime(path, ns=(5, 5))) == 5
        assert mtime_ns(lambda: os.chmod(path, 0o600)) == 5
        written_ns = mtime_ns(lambda: file.write(b"z"))
        assert written_ns > 10**18
        assert mtime_ns(lambda: os.link(path, top / "g")) == written_ns
        assert mtime_ns(lambda: os.setxattr(path, "user.a", b"")) == written_ns
        assert mtime_ns(lambda: os.fsync(file.fileno())) == written_ns
        assert mtime_ns(lambda: os.utime(path, ns=(7, 7))) == 7
        if end == "kill -9":
            mounted_pool.kill9()
            with contextlib.suppress(OSError):
                file.close()
            mounted_pool.mount()
    assert path.read_bytes() == b"yz"
    assert os.stat(path).st_mtime_ns == 7


def test_closing_a_new_file_leaves_the_directory_alone(top: Path) -> None:
    with open(top / "f", "wb") as file:
        file.write(b"x" * 100_000)
        file.flush()
        os.utime(top, ns=(5, 5))
    assert os.stat(top).st_mtime_ns == 5


# ---- open flags ---------------------------------------------------------------------------------


def test_read_only_truncation_reads(top: Path, descriptors: list[int]) -> None:
    (top / "f").write_bytes(b"old")
    descriptors.append(os.open(top / "f", os.O_RDONLY | os.O_TRUNC))
    (top / "f").write_bytes(b"newer")
    assert os.read(descriptors[0], 100) == b"newer"
    assert errno_of(lambda: os.write(descriptors[0], b"x")) == "EBADF"


def test_append_can_be_switched(top: Path, descriptors: list[int]) -> None:
    for direct in (0, os.O_DIRECT):
        flags = os.O_CREAT | os.O_RDWR | os.O_APPEND | direct
        descriptors.append(os.open(top / f"f{direct}", flags))
        switch_append(descriptors[-1], direct)


def switch_append(fd: int, direct: int) -> None:
    os.write(fd, b"12345")
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, b"678")
    assert os.pread(fd, 100, 0) == b"12345678"
    fcntl.fcntl(fd, fcntl.F_SETFL, direct)
    assert os.pwrite(fd, b"ab", 1) == 2
    assert os.pread(fd, 100, 0) == b"1ab45678"
    fcntl.fcntl(fd, fcntl.F_SETFL, direct | os.O_APPEND)
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, b"9")
    assert os.pread(fd, 100, 0) == b"1ab456789"


def test_many_append_to_one_file(top: Path) -> None:
    """Each line whole, none lost."""
    script = (
        "import os, sys\n"
        "fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)\n"
        "for n in range(200): os.write(fd, f'{sys.argv[2]} {n:06d}\\n'.encode())\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", script, str(top / "log"), str(number)])
        for number in range(3)
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    lines = (top / "log").read_text().splitlines()
    assert sorted(lines) == sorted(f"{w} {n:06d}" for w in range(3) for n in range(200))


def test_direct_and_buffered_writes_of_one_file_agree(top: Path, descriptors: list[int]) -> None:
    buffered = os.open(top / "f", os.O_CREAT | os.O_RDWR)
    direct = os.open(top / "f", os.O_RDWR | os.O_DIRECT)
    descriptors += [buffered, direct]
    os.pwrite(buffered, b"a" * 3 * PAGE, 0)
    with mmap.mmap(buffered, 3 * PAGE) as mapping:
        assert os.pwrite(direct, b"b" * PAGE, PAGE) == PAGE
        assert mapping[:] == b"a" * PAGE + b"b" * PAGE + b"a" * PAGE
        mapping[5:8] = b"map"
        assert os.pread(direct, 10, 0) == b"aaaaamapaa"
        fcntl.fcntl(direct, fcntl.F_SETFL, 0)
        assert os.pread(direct, 10, 0) == b"aaaaamapaa"


# ---- no short reads and writes ------------------------------------------------------------------


@pytest.mark.parametrize("direct", [0, os.O_DIRECT])
@pytest.mark.parametrize("unmounted_pool", [128 * MIB], indirect=True)
def test_large_calls_are_never_short(top: Path, descriptors: list[int], direct: int) -> None:
    """Larger than a request, beginning and ending anywhere."""
    length = 24 * MIB + 12_345
    data = os.urandom(length)
    fd = os.open(top / "f", os.O_CREAT | os.O_RDWR | direct)
    descriptors.append(fd)
    assert os.pwrite(fd, data, 77) == length
    back = bytearray(length)
    assert os.preadv(fd, [back], 77) == length
    assert back == data
    pieces = [bytearray(1 * MIB + 1) for _ in range(20)]
    assert os.preadv(fd, pieces, 78) == 20 * MIB + 20
    assert b"".join(pieces) == data[1 : 20 * MIB + 21]
    assert os.writev(fd, pieces) == 20 * MIB + 20


# ---- mappings -----------------------------------------------------------------------------------


def test_a_private_mapping_keeps_stores_to_itself(top: Path, descriptors: list[int]) -> None:
    (top / "f").write_bytes(b"a" * 2 * PAGE)
    fd = os.open(top / "f", os.O_RDWR)
    descriptors.append(fd)
    with mmap.mmap(fd, 2 * PAGE, flags=mmap.MAP_PRIVATE) as mapping:
        mapping[:4] = b"mine"
        assert os.pread(fd, 4, 0) == b"aaaa"
        os.pwrite(fd, b"theirs", PAGE)
        assert mapping[PAGE : PAGE + 6] == b"theirs"
    assert (top / "f").read_bytes() == b"a" * PAGE + b"theirs" + b"a" * (PAGE - 6)


def test_two_processes_share_a_mapping(top: Path) -> None:
    (top / "f").write_bytes(bytes(PAGE))
    script = (
        "import mmap, sys\n"
        "with open(sys.argv[1], 'r+b') as f, mmap.mmap(f.fileno(), 0) as m:\n"
        "    assert m[:5] == b'hello'\n"
        "    m[5:11] = b' world'\n"
    )
    with open(top / "f", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[:5] = b"hello"
        subprocess.run([sys.executable, "-c", script, str(top / "f")], check=True, timeout=30)
        assert mapping[:11] == b"hello world"
        assert os.pread(file.fileno(), 11, 0) == b"hello world"


def test_a_store_after_close_is_kept(mounted_pool: Any, top: Path) -> None:
    """The mapping outlives its descriptor."""
    (top / "f").write_bytes(bytes(2 * PAGE))
    with open(top / "f", "r+b") as file:
        mapping = mmap.mmap(file.fileno(), 0)
    with mapping:
        mapping[PAGE : PAGE + 4] = b"late"
    mounted_pool.remount()
    assert (top / "f").read_bytes() == bytes(PAGE) + b"late" + bytes(PAGE - 4)


# ---- limits -------------------------------------------------------------------------------------


def test_sizes_of_files(mounted_pool: Any, top: Path, descriptors: list[int]) -> None:
    """8 TiB is the end, without a byte of it being taken for a hole."""
    limit = 1 << 43
    fd = os.open(top / "f", os.O_CREAT | os.O_RDWR)
    descriptors.append(fd)
    os.ftruncate(fd, limit)
    assert os.pwrite(fd, b"last", limit - 4) == 4
    assert os.pread(fd, 10, limit - 6) == b"\0\0last"
    assert os.fstat(fd).st_blocks * 512 <= 2 * MIB  # a huge page, in a directory pool
    assert errno_of(lambda: os.ftruncate(fd, limit + 1)) == "EFBIG"
    is_unseen = int(mounted_pool.stats().get("promises", 0)) > 0
    if is_unseen:  # nobody stops it, and it doesn't stay
        assert os.pwrite(fd, b"x", limit) == 1
    else:
        assert errno_of(lambda: os.pwrite(fd, b"x", limit)) == "EFBIG"
    assert os.fstat(fd).st_size == limit
    assert os.pread(fd, 10, limit - 6) == b"\0\0last" + b"x" * is_unseen
    os.close(descriptors.pop())
    assert os.stat(top / "f").st_size == limit
    descriptors.append(os.open(top / "f", os.O_RDWR))
    assert mounted_pool.settled_state(top / "f") in ("sealed", "dirty")
    fd = descriptors[-1]
    os.ftruncate(fd, 3)
    os.ftruncate(fd, limit)
    assert os.pread(fd, 10, limit - 6) == bytes(6)


def test_rlimit_fsize(top: Path) -> None:
    def write() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        with open(top / "f", "wb", buffering=0) as file:
            assert file.write(b"x" * 2000) == 1000
            file.write(b"x")

    signal_ignored = "import signal"  # Python ignores SIGXFSZ by itself
    assert signal_ignored and as_user(os.geteuid(), write) == "EFBIG"


def test_symbolic_links(top: Path) -> None:
    os.symlink("x" * 4095, top / "long")
    assert os.readlink(top / "long") == "x" * 4095
    assert os.lstat(top / "long").st_size == 4095
    os.symlink("loop", top / "loop")
    assert errno_of(lambda: os.stat(top / "loop")) == "ELOOP"
    assert errno_of(lambda: os.open(top / "loop", os.O_NOFOLLOW)) == "ELOOP"
    assert errno_of(lambda: os.symlink("", top / "empty")) == "ENOENT"


def test_what_is_refused_and_how(top: Path, descriptors: list[int]) -> None:
    (top / "f").write_bytes(b"x")
    fd = os.open(top / "f", os.O_RDWR)
    descriptors.append(fd)
    found = {
        "link of a directory": errno_of(lambda: os.link(top, top / "l")),
        "unlink of a directory": errno_of(lambda: os.unlink(top)),
        "whiteout": errno_of(lambda: renameat2(top / "f", top / "g", 4)),
        "ioctl": errno_of(lambda: fcntl.ioctl(fd, 0x80086601, bytes(8))),
        "security attribute": errno_of(lambda: os.setxattr(fd, "security.x", b"")),
        "our attribute": errno_of(lambda: os.setxattr(fd, "user.beluga.state", b"")),
        "large attribute": errno_of(lambda: os.setxattr(fd, "user.x", bytes(65_537))),
    }
    assert found == {
        "link of a directory": "EPERM",
        "unlink of a directory": "EISDIR",
        "whiteout": "EINVAL",
        "ioctl": "ENOTTY",
        "security attribute": "ENOTSUP",
        "our attribute": "EPERM",
        "large attribute": "E2BIG",
    }


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length)):
        raise OSError(ctypes.get_errno(), "")


KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE, COLLAPSE_RANGE = 1, 2, 16, 8


def test_room_and_holes(mounted_pool: Any, top: Path, descriptors: list[int]) -> None:
    """fallocate, and where data and holes are said to be."""
    fd = os.open(top / "f", os.O_RDWR | os.O_CREAT)
    descriptors.append(fd)
    if mounted_pool.transport == "pyfuse3":
        assert errno_of(lambda: fallocate(fd, 0, 0, 4096)) == "ENOTSUP"
        os.posix_fallocate(fd, 0, 10_000)
        assert os.fstat(fd).st_size == 10_000
        return
    fallocate(fd, 0, 0, 1 << 20)
    assert (os.fstat(fd).st_size, os.fstat(fd).st_blocks) == (1 << 20, 2048)
    assert os.pread(fd, 1 << 20, 0) == bytes(1 << 20)
    fallocate(fd, KEEP_SIZE, 1 << 20, 8192)
    assert (os.fstat(fd).st_size, os.fstat(fd).st_blocks) == (1 << 20, 2064)
    os.pwrite(fd, b"x" * 100_000, 0)
    fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 4096, 8192)
    assert os.pread(fd, 16384, 0) == b"x" * 4096 + bytes(8192) + b"x" * 4096
    assert os.fstat(fd).st_blocks == 2048
    assert os.lseek(fd, 0, os.SEEK_HOLE) == 4096
    assert os.lseek(fd, 4096, os.SEEK_DATA) == 12288
    assert errno_of(lambda: os.lseek(fd, 1 << 20, os.SEEK_DATA)) == "ENXIO"
    fallocate(fd, ZERO_RANGE, 100, 5000)
    assert os.pread(fd, 5200, 0) == b"x" * 100 + bytes(5100)[:3996] + bytes(1104)
    assert errno_of(lambda: fallocate(fd, COLLAPSE_RANGE, 0, 4096)) == "ENOTSUP"
    assert errno_of(lambda: fallocate(fd, 0, 0, 0)) == "EINVAL"


def test_a_file_without_a_name(mounted_pool: Any, top: Path) -> None:
    """O_TMPFILE: nobody sees it before it is linked, nothing is left if it isn't."""
    if mounted_pool.transport == "pyfuse3":
        assert errno_of(lambda: os.open(top, os.O_TMPFILE | os.O_RDWR)) == "ENOTSUP"
        return
    before = int(mounted_pool.stats()["inodes_used"])
    os.close(os.open(top, os.O_TMPFILE | os.O_RDWR))
    fd = os.open(top, os.O_TMPFILE | os.O_WRONLY)
    os.write(fd, b"whole" * 1000)
    assert os.fstat(fd).st_nlink == 0 and os.listdir(top) == []
    at_empty_path, at_fdcwd = 0x1000, -100
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.linkat(fd, b"", at_fdcwd, os.fsencode(top / "f"), at_empty_path) == 0
    os.close(fd)
    assert (top / "f").read_bytes() == b"whole" * 1000
    mounted_pool.await_stat("inodes_used", before + 1)


# ---- renaming -----------------------------------------------------------------------------------


def renameat2(old: Path, new: Path, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags):
        raise OSError(ctypes.get_errno(), "")


@pytest.mark.parametrize("state", ["sealed", "open for the first time", "open again"])
def test_names_change_places_while_open(mounted_pool: Any, top: Path, state: str) -> None:
    (top / "d").mkdir()
    (top / "d/old").write_bytes(b"old")
    if state != "open for the first time":
        (top / "new").write_bytes(b"ne")
    with open(top / "new", "r+b" if state == "open again" else "ab", buffering=0) as file:
        file.seek(0, os.SEEK_END)
        if state != "sealed":
            file.write(b"w")
        renameat2(top / "new", top / "d/old", 2)
        assert (top / "new").read_bytes() == b"old"
        file.write(b"er")
        assert (top / "d/old").stat().st_size == os.fstat(file.fileno()).st_size
    content = (top / "d/old").read_bytes()
    assert content.endswith(b"er")
    assert errno_of(lambda: renameat2(top / "new", top / "d/old", 1)) == "EEXIST"
    assert errno_of(lambda: renameat2(top / "new", top / "none", 2)) == "ENOENT"
    renameat2(top / "d", top / "new", 2)
    mounted_pool.remount()
    assert (top / "d").read_bytes() == b"old"
    assert (top / "new/old").read_bytes() == content


# ---- locks --------------------------------------------------------------------------------------

_LOCKER = """
import fcntl, os, struct, sys
kind, path = sys.argv[1:]
fd = os.open(path, os.O_RDWR)
if kind == "flock":
    fcntl.flock(fd, fcntl.LOCK_EX)
elif kind == "posix":
    fcntl.lockf(fd, fcntl.LOCK_EX, 100, 50)
else:
    fcntl.fcntl(fd, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 50, 100, 0))
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["flock", "posix", "ofd"])
def test_locks_between_processes(top: Path, descriptors: list[int], kind: str) -> None:
    """Held until the other one ends, also if it is killed; parts of a file are apart."""
    (top / "f").write_bytes(bytes(1000))
    fd = os.open(top / "f", os.O_RDWR)
    descriptors.append(fd)

    def lock(start: int, length: int) -> None:
        if kind == "flock":
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif kind == "posix":
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
        else:
            asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, start, length, 0)
            fcntl.fcntl(fd, F_OFD_SETLK, asked)

    holder = subprocess.Popen(
        [sys.executable, "-c", _LOCKER, kind, str(top / "f")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdin and holder.stdout
    try:
        assert holder.stdout.readline() == b"locked\n"
        assert errno_of(lambda: lock(100, 10)) in ("EAGAIN", "EACCES")
        if kind != "flock":
            lock(0, 50)
        holder.kill()
        holder.wait(10)
        lock(100, 10)
    finally:
        holder.kill()
        holder.wait(10)
        holder.stdin.close()
        holder.stdout.close()


# ---- directories --------------------------------------------------------------------------------


def test_a_listing_is_stable_while_others_write(top: Path) -> None:
    """What is there from the beginning to the end is listed exactly once."""
    (top / "d").mkdir()
    for number in range(3000):
        os.mknod(top / f"d/stays{number}")
    stop = threading.Event()

    def churn() -> None:
        number = 0
        while not stop.is_set():
            os.mknod(top / f"d/new{number}")
            if number >= 50:
                os.unlink(top / f"d/new{number - 50}")
            if number % 7 == 0:
                os.rename(top / f"d/new{number}", top / f"d/new{number}.renamed")
                os.rename(top / f"d/new{number}.renamed", top / f"d/new{number}")
            number += 1

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(10):
            names = [entry.name for entry in os.scandir(top / "d")]
            stays = [name for name in names if name.startswith("stays")]
            assert len(stays) == len(set(stays)) == 3000
    finally:
        stop.set()
        thread.join()


def test_reading_on_in_a_directory_that_is_being_emptied(top: Path) -> None:
    """rm -r: each name that is read is removed at once; nothing is passed over."""
    (top / "d").mkdir()
    for number in range(2000):
        os.mknod(top / f"d/{number}")
    with os.scandir(top / "d") as entries:
        for entry in entries:
            os.unlink(entry.path)
    os.rmdir(top / "d")


def test_fsync_of_a_directory_keeps_names(mounted_pool: Any, top: Path) -> None:
    (top / "d").mkdir()
    (top / "d/f.tmp").write_bytes(b"whole")
    os.rename(top / "d/f.tmp", top / "d/f")
    directory = os.open(top / "d", os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(directory)
    os.close(directory)
    mounted_pool.kill9()
    mounted_pool.mount()
    assert (top / "d/f").read_bytes() == b"whole"
    assert os.listdir(top / "d") == ["f"]


def test_special_files(top: Path) -> None:
    os.mkfifo(top / "fifo")
    done: list[bytes] = []
    reader = threading.Thread(target=lambda: done.append((top / "fifo").read_bytes()))
    reader.start()
    (top / "fifo").write_bytes(b"through")
    reader.join(10)
    assert done == [b"through"]
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        here = os.getcwd()
        os.chdir(top)
        try:
            server.bind("socket")
            server.listen()
            client.connect("socket")
        finally:
            os.chdir(here)
    if os.geteuid() == 0:
        os.mknod(top / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        assert (top / "null").stat().st_rdev == os.makedev(1, 3)
        assert errno_of(lambda: os.open(top / "null", os.O_RDWR)) == "EACCES"  # nodev


# ---- space --------------------------------------------------------------------------------------


def test_statfs_and_st_blocks_agree(top: Path) -> None:
    """What a file takes is what is no longer free; what is removed is free."""
    before = os.statvfs(top)
    assert before.f_bsize == before.f_frsize == 4096
    assert before.f_namemax == 255
    (top / "d").mkdir()
    sizes = [0, 1, 4096, 4097, 1_000_000]
    for size in sizes:
        (top / f"d/{size}").write_bytes(b"x" * size)
    taken = sum((top / f"d/{size}").stat().st_blocks for size in sizes) * 512
    assert taken == sum(-(-size // 4096) * 4096 for size in sizes)
    after = os.statvfs(top)
    assert (before.f_bfree - after.f_bfree) * 4096 == taken
    assert before.f_ffree - after.f_ffree == len(sizes) + 1
    du = subprocess.run(["du", "-sB1", top], capture_output=True, text=True, check=True)
    assert int(du.stdout.split()[0]) == taken
    for size in sizes:
        (top / f"d/{size}").unlink()
    (top / "d").rmdir()
    expect_used(top, (before.f_blocks - before.f_bfree) * 4096)
    wait_for(lambda: os.statvfs(top).f_ffree == before.f_ffree)

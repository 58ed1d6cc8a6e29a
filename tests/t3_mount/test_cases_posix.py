"""What users of caches on filesystems have met, in plain POSIX: names, sizes, visibility,
concurrent writers, direct I/O. Nothing here is special to belugafs."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from blocks import KIB, MIB, content, get, put, running, used_bytes


@pytest.fixture
def top(mounted_pool: Any) -> Path:
    path: Path = mounted_pool.path
    return path


@pytest.fixture
def fd(top: Path) -> Iterator[int]:
    number = os.open(top / "file", os.O_CREAT | os.O_RDWR, 0o600)
    yield number
    os.close(number)


# ---- identity ------------------------------------------------------------------------------------


def test_the_same_name_in_two_namespaces(top: Path) -> None:
    """Two models, one hash of the same tokens: other bytes, and removing one leaves the other."""
    leaf = "9f86d081884c7d65" * 4
    put(top, f"modelA/{leaf}", 10_000)
    put(top, f"modelB/{leaf}", 20_000)
    assert get(top, f"modelA/{leaf}") == content(f"modelA/{leaf}", 10_000)
    os.unlink(top / f"modelA/{leaf}")
    assert get(top, f"modelA/{leaf}") is None
    assert get(top, f"modelB/{leaf}") == content(f"modelB/{leaf}", 20_000)


@pytest.mark.parametrize("shape", ["{0:016x}" + "f" * 48, "f" * 48 + "{0:016x}", "{0:x}" * 2])
def test_names_are_compared_whole(top: Path, shape: str) -> None:
    """Names that share a tail, a head, a length: each has its own bytes; those not stored, none."""
    for number in range(0, 1024, 2):
        put(top, f"k/{shape.format(number)}", 512)
    for number in range(1024):
        name = f"k/{shape.format(number)}"
        assert get(top, name) == (None if number % 2 else content(name, 512))


# ---- visibility ----------------------------------------------------------------------------------


def test_sizes_are_right_at_every_moment(top: Path) -> None:
    """A poller never sees another size than the whole one under a final name; a writer sees its
    own size after each write."""
    (top / "v").mkdir()
    seen = set()

    def poll() -> None:
        for number in range(8):
            try:
                seen.add(os.stat(top / f"v/{number}").st_size)
            except FileNotFoundError:
                continue

    with running(poll) as errors:
        for number in range(200):
            put(top, f"v/{number % 8}", 65536)
            assert os.stat(top / f"v/{number % 8}").st_size == 65536
    assert errors == [] and seen <= {65536}
    with open(top / "v/w", "w+b", buffering=0) as file:
        for number in range(1, 50):
            file.write(b"x" * 777)
            assert os.fstat(file.fileno()).st_size == number * 777
            assert os.stat(top / "v/w").st_size == number * 777
        assert os.pread(file.fileno(), 10, 49 * 777 - 5) == b"x" * 5


def test_a_name_that_is_replaced_is_whole_at_every_moment(top: Path) -> None:
    """Readers of a name that is renamed over 150 times: one content or the other."""
    wanted = [content("0", MIB), content("1", MIB)]

    def store(number: int) -> None:
        (top / "k.tmp").write_bytes(wanted[number % 2])
        os.rename(top / "k.tmp", top / "k")

    def read() -> None:
        data = get(top, "k")
        assert data in wanted, len(data or b"")

    store(0)
    with running(*[read] * 4) as errors:
        for number in range(150):
            store(number)
    assert errors == []


# ---- direct I/O, mappings ------------------------------------------------------------------------


@pytest.mark.parametrize("more", [0, os.O_TRUNC, os.O_EXCL, os.O_SYNC, os.O_DSYNC | os.O_TRUNC])
def test_direct_io_with_every_flag(top: Path, more: int) -> None:
    data = mmap.mmap(-1, MIB)
    data.write(content("d", MIB))
    fd = os.open(top / "d", os.O_CREAT | os.O_RDWR | os.O_DIRECT | more, 0o600)
    try:
        assert os.pwrite(fd, data, 0) == MIB
        back = mmap.mmap(-1, MIB)
        assert os.preadv(fd, [back], 0) == MIB
        assert back[:] == data[:]
    finally:
        os.close(fd)


@pytest.mark.parametrize("flags", [0, os.O_DIRECT])
def test_a_shared_mapping_outlives_its_descriptor(top: Path, flags: int) -> None:
    path = put(top, "m")
    fd = os.open(path, os.O_RDONLY | flags)
    mapping = mmap.mmap(fd, MIB, mmap.MAP_SHARED, mmap.PROT_READ)
    os.close(fd)
    os.unlink(path)
    assert mapping[:] == content("m", MIB)
    mapping.close()


def test_preallocation(top: Path, fd: int) -> None:
    """posix_fallocate gives the size, its space, and zeros, whatever the C library does for it."""
    os.posix_fallocate(fd, 0, 8 * MIB)
    found = os.fstat(fd)
    assert found.st_size == 8 * MIB
    assert os.pread(fd, MIB, 3 * MIB) == bytes(MIB)
    os.pwrite(fd, content("g", MIB), 5 * MIB)
    assert os.pread(fd, MIB, 5 * MIB) == content("g", MIB)
    assert os.pread(fd, MIB, 6 * MIB) == bytes(MIB)


# ---- space ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("unmounted_pool", [64 * MIB, 512 * MIB], indirect=True)
def test_rewriting_in_place_takes_no_space(top: Path, fd: int) -> None:
    """Neither does a file that grows hold much more than it has, in a pool of any size: while it
    is written, a quarter; sealed, nothing."""
    for number in range(4):
        os.pwrite(fd, content(f"{number}", MIB), number * MIB)
        taken = os.fstat(fd).st_blocks * 512
        assert taken <= (number + 1) * MIB * 5 // 4
    os.fsync(fd)
    before = used_bytes(top)
    for number in range(50):
        os.pwrite(fd, bytes([number]) * MIB, number % 4 * MIB)
    os.fsync(fd)
    assert used_bytes(top) == before
    again = os.open(top / "file", os.O_RDWR)
    os.close(again)


def test_st_blocks_is_the_size_rounded_up(top: Path) -> None:
    unit = os.statvfs(top).f_frsize
    assert unit == 4096
    for size in (0, 1, 4095, 4096, 4097, 131072, MIB - 1, MIB + 1, 2_621_440, 5 * MIB):
        found = os.stat(put(top, f"du/{size}", size))
        assert found.st_size == size
        assert found.st_blocks * 512 == -(-size // unit) * unit


def test_inodes_are_counted_and_numbered(top: Path) -> None:
    before = os.statvfs(top)
    assert 0 < before.f_bavail <= before.f_bfree <= before.f_blocks
    assert 0 < before.f_ffree <= before.f_files
    numbers = {os.stat(put(top, f"in/{number}", 10)).st_ino for number in range(300)}
    assert len(numbers) == 300
    after = os.statvfs(top)
    assert (after.f_files, after.f_ffree) == (before.f_files, before.f_ffree - 301)
    for number in range(300):
        (top / f"in/{number}").unlink()
    (top / "in").rmdir()
    assert os.statvfs(top).f_ffree == before.f_ffree


def test_a_shortened_file_is_short_and_not_more(top: Path) -> None:
    """A reader of a file that was cut gets what is there, at once."""
    path = put(top, "slot.bin", 3 * MIB)
    os.truncate(path, 2 * MIB + 17)
    assert get(top, "slot.bin") == content("slot.bin", 3 * MIB)[: 2 * MIB + 17]
    os.truncate(path, 0)
    assert get(top, "slot.bin") == b""
    with open(path, "rb") as file:
        assert file.read(10) == b""


# ---- names ---------------------------------------------------------------------------------------


def test_long_names_and_paths(top: Path) -> None:
    longest = os.statvfs(top).f_namemax
    assert longest == 255
    (top / ("a" * longest)).write_bytes(b"x")
    assert os.listdir(top) == ["a" * longest]
    for call in (os.stat, os.mkdir, os.unlink, lambda path: os.open(path, os.O_CREAT)):
        with pytest.raises(OSError) as caught:
            call(top / ("a" * (longest + 1)))
        assert caught.value.errno == errno.ENAMETOOLONG
    path = os.fspath(top)
    while len(path) + 201 < 4000:
        path += "/" + "b" * 200
        os.mkdir(path)
    with open(path + "/f", "wb") as file:
        file.write(b"deep")
    with open(path + "/f", "rb") as file:
        assert file.read() == b"deep"


ODD = [
    *(b"org@model", b"@@x", b"sp ace", b"tab\tx", b"new\nline", b"%2F", b"-rf", b"..x", b"..."),
    *(b"*?<>|:\\\"'", "模型".encode(), "e\u0301".encode(), "\u00e9".encode(), b"UPPER", b"upper"),
    *(b".hid", b"x" * 64 + b".data", b"\xff\xfe\x80", b"\x01\x1b[31m", b"\xe2\x80\xae"),
]


def test_any_byte_but_slash_and_nul(mounted_pool: Any) -> None:
    """Names come back as they were given; our tools print them on one line, unambiguously."""
    top = os.fsencode(mounted_pool.path / "odd")
    os.mkdir(top)
    for name in ODD:
        with open(os.path.join(top, name), "wb") as file:
            file.write(name)
    assert sorted(os.listdir(top)) == sorted(ODD)
    for name in ODD:
        with open(os.path.join(top, name), "rb") as file:
            assert file.read() == name
    for parent, number in ((b"none", errno.ENOENT), (b"UPPER", errno.ENOTDIR)):
        with pytest.raises(OSError) as caught:
            os.open(os.path.join(top, parent, b"f"), os.O_CREAT | os.O_WRONLY)
        assert caught.value.errno == number
    where = str(mounted_pool.path / "odd")
    mounted = mounted_pool.command("belugafs.cli", "ls", where).stdout
    mounted_pool.umount()
    unmounted = mounted_pool.command("belugafs.cli", "ls", f"{mounted_pool.pool_path}:odd").stdout
    assert mounted == unmounted
    lines = unmounted.splitlines()
    assert len(set(lines)) == len(lines) == len(ODD)
    assert all(line.isprintable() for line in lines)


# ---- two writers ---------------------------------------------------------------------------------


WRITERS = r"""
import os, sys
top, me = sys.argv[1:3]
os.makedirs(f"{top}/c/d/e", exist_ok=True)
won = 0
for number in range(100):
    try:
        os.close(os.open(f"{top}/c/d/e/x{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        won += 1
    except FileExistsError:
        pass
    temporary = f"{top}/c/d/e/y{number}.{me}.tmp"
    with open(temporary, "wb") as file:
        file.write(b"z" * 70000)
    os.rename(temporary, f"{top}/c/d/e/y{number}")
print(won)
"""


def test_many_processes_store_the_same_names(top: Path) -> None:
    """mkdir -p, O_EXCL and rename over each other: no call fails, each O_EXCL has one winner."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITERS, str(top), str(number)], stdout=subprocess.PIPE
        )
        for number in range(6)
    ]
    won = [int(process.communicate(timeout=60)[0]) for process in processes]
    assert all(process.returncode == 0 for process in processes)
    assert sum(won) == 100
    assert len(os.listdir(top / "c/d/e")) == 200
    assert {os.stat(top / f"c/d/e/y{number}").st_size for number in range(100)} == {70000}


def test_exactly_one_makes_a_directory(top: Path) -> None:
    for number in range(20):
        outcomes: list[int] = []
        barrier = threading.Barrier(6)

        def make(
            path: Path = top / f"d{number}",
            outcomes: list[int] = outcomes,
            barrier: threading.Barrier = barrier,
        ) -> None:
            barrier.wait()
            try:
                path.mkdir()
                outcomes.append(0)
            except OSError as error:
                outcomes.append(error.errno or -1)

        threads = [threading.Thread(target=make) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == [0] + [errno.EEXIST] * 5


def test_locks_of_processes_and_of_open_files(top: Path) -> None:
    """POSIX and OFD locks on a file's ranges, between descriptors and between processes."""
    (top / "lock").write_bytes(b"x" * 100)
    code = (
        "import fcntl, sys\n"
        "with open(sys.argv[1], 'r+b') as file:\n"
        "    try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, int(sys.argv[2]))\n"
        "    except OSError: sys.exit(7)\n"
    )

    def other(start: int) -> int:
        command = [sys.executable, "-c", code, str(top / "lock"), str(start)]
        return subprocess.run(command, timeout=20, check=False).returncode

    with open(top / "lock", "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 10, 0)
        assert [other(0), other(5), other(10)] == [7, 7, 0]
        fcntl.lockf(file, fcntl.LOCK_UN, 10, 0)
        assert other(0) == 0
        import struct

        whole = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, whole)
        with open(top / "lock", "r+b") as second, pytest.raises(BlockingIOError):
            fcntl.fcntl(second, fcntl.F_OFD_SETLK, whole)
        assert other(50) == 7
    assert other(0) == 0


# ---- modes, ordinary tools -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("umask", "asked", "got"), [(0o077, 0o777, 0o700), (0o022, 0o666, 0o644), (0, 0o640, 0o640)]
)
def test_modes_are_kept_exactly(top: Path, umask: int, asked: int, got: int) -> None:
    old = os.umask(umask)
    try:
        os.mkdir(top / "d", asked)
        os.close(os.open(top / "d/f", os.O_CREAT | os.O_WRONLY, asked))
    finally:
        os.umask(old)
    for path in (top / "d", top / "d/f"):
        found = os.stat(path)
        assert found.st_mode & 0o7777 == got
        assert (found.st_uid, found.st_gid) == (os.getuid(), os.getgid())
    os.chmod(top / "d/f", 0o400)
    assert os.stat(top / "d/f").st_mode & 0o7777 == 0o400


def test_what_others_can_read(unmounted_pool: Any) -> None:
    """A pool that mkfs makes, and the daemon's log, are nobody else's business."""
    pool = unmounted_pool.pool_path.with_name("by-mkfs")
    done = unmounted_pool.command("belugafs.mkfs", "--size", "16M", str(pool))
    assert done.returncode == 0, done.stderr
    assert pool.stat().st_mode & 0o077 == 0
    unmounted_pool.mount()
    assert unmounted_pool.log_path.stat().st_mode & 0o022 == 0


def test_a_mix_of_tools_on_one_directory(top: Path) -> None:
    """Files that are no blocks: configurations, manifests, logs."""
    script = """
        echo 1 > a; echo 2 >> a; test "$(cat a)" = "$(printf '1\\n2')"
        cp a b; mv b c; ln -s a l; test "$(cat l)" = "$(cat c)"; rm l
        truncate -s 100000 a; test "$(stat -c %s a)" = 100000; : > a; test ! -s a
        mkdir -p t/u; echo x > t/u/v; tar cf t.tar t; rm -r t; tar xf t.tar; grep -q x t/u/v
        chmod 600 c; touch -d 2001-01-01 c; test "$(stat -c %Y c)" -lt 1000000000
        sed -i s/1/one/ c; test "$(head -1 c)" = one
        dd if=/dev/zero of=big bs=64k count=20 conv=fsync status=none; cmp -n 100 big /dev/zero
    """
    subprocess.run(["sh", "-ec", script], cwd=top, check=True, timeout=60)


def test_random_reads_and_writes_match_a_copy(top: Path, fd: int) -> None:
    """pread, pwrite, truncate and reopening at odd offsets, beside a bytearray."""
    rng = random.Random(4)
    model = bytearray()
    for _ in range(400):
        at, size = rng.randrange(300_000), rng.randrange(1, 60_000)
        what = rng.random()
        if what < 0.5:
            data = rng.randbytes(size)
            os.pwrite(fd, data, at)
            model.extend(bytes(max(0, at + size - len(model))))
            model[at : at + size] = data
        elif what < 0.6:
            os.ftruncate(fd, at)
            del model[at:]
            model.extend(bytes(at - len(model)))
        else:
            assert os.pread(fd, size, at) == model[at : at + size]
    with open(top / "file", "rb") as file:
        assert file.read() == model
    assert os.fstat(fd).st_size == len(model)
    assert KIB * 4 * (os.fstat(fd).st_blocks // 8) <= 2 * (len(model) + 64 * KIB)

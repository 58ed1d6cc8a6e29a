"""Passthrough on directory pools: the kernel reads, writes and maps files by itself."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from belugafs.transport import kernel_release
from belugafs.transport.passthrough import SINCE, refusal

sys.path.insert(0, os.path.dirname(__file__))
from blocks import expect_blocks_of, open_files_limit

KIB = 1 << 10
MIB = 1 << 20

pytestmark = [
    pytest.mark.skipif(
        os.geteuid() != 0, reason="only root may mount the tmpfs of a directory pool"
    ),
    pytest.mark.skipif(kernel_release() < SINCE, reason="passthrough takes Linux 6.9"),
    pytest.mark.parametrize("pool_kind", ["directory"]),
]


# Into a smaller pool a file of which nothing is known is written by way of the daemon.
with_room = pytest.mark.parametrize("unmounted_pool", [256 * MIB], indirect=True)


@pytest.fixture
def passing(unmounted_pool: Any) -> Any:
    """A mounted directory pool with passthrough, whatever the other tests run with."""
    unmounted_pool.mount("transport=direct,passthrough=auto")
    assert unmounted_pool.passthrough, "CONFIG_FUSE_PASSTHROUGH isn't set in this kernel"
    expect_blocks_of(unmounted_pool.path, 32 * MIB)
    return unmounted_pool


def backing(pool: Any, path: Path) -> Path:
    found: Path = pool.stored_at(path, 0)[0]
    return found


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Mapping:
    """Shared memory of an open file, past its close: mmap.mmap has a descriptor of its own."""

    def __init__(self, path: Path, flags: int) -> None:
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if flags & os.O_ACCMODE else 0)
        with opened(path, flags) as fd:
            self._size = os.fstat(fd).st_size
            place = _libc.mmap(None, self._size, prot, mmap.MAP_SHARED, fd, 0)
        assert place not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
        self._place = place
        self._bytes = (ctypes.c_char * self._size).from_address(place)

    def read(self) -> bytes:
        return bytes(self._bytes)

    def store(self, offset: int, data: bytes) -> None:
        self._bytes[offset : offset + len(data)] = data  # type: ignore[assignment]

    def close(self) -> None:
        assert _libc.munmap(self._place, self._size) == 0


@contextlib.contextmanager
def stopped(pool: Any) -> Iterator[None]:
    """The daemon answers nobody. What would ask it hangs, until the watchdog aborts."""
    pool.stop_daemon()
    try:
        yield
    finally:
        os.kill(pool.daemon_pid, signal.SIGCONT)


def test_a_mapping_is_the_pools_own_memory(passing: Any) -> None:
    path = passing.path / "f"
    path.write_bytes(b"x" * MIB)
    with (
        opened(path, os.O_RDWR) as fd,
        opened(backing(passing, path), os.O_RDWR) as below,
        mmap.mmap(fd, MIB) as ours,
        mmap.mmap(below, MIB) as pools,
    ):
        ours[MIB - 4 :] = b"ours"
        assert pools[MIB - 4 :] == os.pread(below, 4, MIB - 4) == b"ours"
        pools[:5] = b"pools"
        assert ours[:5] == os.pread(fd, 5, 0) == b"pools"
        os.pwrite(fd, b"written", 100)
        assert ours[100:107] == pools[100:107] == b"written"
    assert path.read_bytes()[:5] == b"pools"


@with_room
def test_what_is_open_needs_no_daemon(passing: Any) -> None:
    path = passing.path / "f"
    with opened(path, os.O_CREAT | os.O_RDWR) as fd:
        os.write(fd, b"-" * MIB)
        mapping = mmap.mmap(fd, MIB)  # asks for the size
        os.pwrite(fd, b"-", 0)  # the first after that asks for the file's capabilities
        with stopped(passing):
            for number in range(1, 64):
                os.pwrite(fd, bytes([number]) * 4096, number * 4096)
            assert os.pread(fd, 2, 63 * 4096) == b"\x3f\x3f"
            assert os.write(fd, b"more") == 4
            mapping[5000] = 0xFF
            assert os.pread(fd, 1, 5000) == b"\xff"
        mapping.close()
        assert os.fstat(fd).st_size == MIB + 4


@with_room
def test_reads_and_writes_are_no_requests(passing: Any) -> None:
    def requests() -> int:
        return int(passing.stats()["fuse_requests"])

    with opened(passing.path / "f", os.O_CREAT | os.O_RDWR) as fd:
        os.write(fd, b"-" * MIB)
        looking = -(requests() - requests())
        before = requests()
        for number in range(1000):
            os.pwrite(fd, b"w" * 1000, number * 1000)
            os.pread(fd, 1000, number * 1000)
        # The release of what was looked into comes when the kernel likes.
        assert requests() - before < looking + 50


def test_attributes_after_writing_are_those_of_the_content(passing: Any) -> None:
    path = passing.path / "f"
    with opened(path, os.O_CREAT | os.O_RDWR) as fd:
        before_ns = os.fstat(fd).st_mtime_ns
        for number in range(1, 20):
            os.pwrite(fd, b"x" * 5000, number * 10_000)
            assert os.fstat(fd).st_size == path.stat().st_size == number * 10_000 + 5000
        assert path.stat().st_mtime_ns > before_ns
        assert path.stat().st_blocks == backing(passing, path).stat().st_blocks
        assert os.lseek(fd, 0, os.SEEK_END) == 195_000
        os.ftruncate(fd, 100)
        assert backing(passing, path).stat().st_size == path.stat().st_size == 100
        os.posix_fallocate(fd, 0, 8192)
        assert backing(passing, path).stat().st_size == path.stat().st_size == 8192
        with opened(path, os.O_RDWR | os.O_APPEND) as other:
            os.write(other, b"end")
            os.pwrite(fd, b"+", 8195)
            os.write(other, b"end")
        assert os.pread(fd, 100, 8192) == b"end+end"


def test_backing_ids_are_closed(passing: Any) -> None:
    """One to an inode, however often it is open, and none when it isn't."""
    top = passing.path
    for number in range(10_000):
        fd = os.open(top / f"{number % 10}", os.O_CREAT | os.O_RDWR)
        os.close(fd)
    passing.await_stat("backing_ids", 0)
    flags = [os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_APPEND, os.O_RDONLY | os.O_DIRECT]
    fds = [os.open(top / "0", flag) for flag in flags]
    assert int(passing.stats()["backing_ids"]) == 1
    for number in range(1, 10):
        fds += [os.open(top / f"{number}", flags[number % 3])]
    assert int(passing.stats()["backing_ids"]) == 10
    for fd in fds:
        os.close(fd)
    passing.await_stat("backing_ids", 0)


@pytest.fixture
def many_files() -> Iterator[int]:
    """How many files this process may have open."""
    with open_files_limit(110_000) as limit:
        yield limit


@pytest.mark.parametrize(
    "count", [3000, pytest.param(100_000, marks=pytest.mark.full_size)], ids=str
)
@pytest.mark.timeout(600)
def test_many_files_open_at_once(
    unmounted_pool: Any, make_pool: Any, attach: Any, many_files: int, count: int
) -> None:
    if count + 1000 > many_files:
        pytest.skip(f"only {many_files} open files are allowed here, and it can't be raised")
    path = make_pool(count * 9 * KIB + 64 * MIB, inodes=count + 100)
    with attach(path) as pool:
        for number in range(count):
            _, fh = pool.create(1, b"%d" % number, 0o600, 0, 0, os.O_WRONLY)
            pool.write(fh, 0, b"%d" % number)
            pool.flush(fh)
            pool.release(fh)
    unmounted_pool.pool_path = path
    unmounted_pool.mount("transport=direct,passthrough=auto")
    fds = []
    try:
        for number in range(count):
            fds.append(os.open(unmounted_pool.path / f"{number}", os.O_RDONLY))
        assert int(unmounted_pool.stats()["backing_ids"]) == count
        for number in range(0, count, 97):
            assert os.pread(fds[number], 100, 0) == b"%d" % number
    finally:
        for fd in fds:
            os.close(fd)
    unmounted_pool.await_stat("backing_ids", 0, limit_s=60)


def test_unlinked_and_evicted_while_mapped(passing: Any) -> None:
    """The mapping keeps its bytes, and its pages, which nobody else gets."""
    top = passing.path
    data = {name: os.urandom(MIB) for name in ("unlinked", "evicted")}
    mappings = {}
    for name, content in data.items():
        (top / name).write_bytes(content)
        assert passing.settled_state(top / name) == "sealed"
        mappings[name] = Mapping(top / name, os.O_RDONLY)
    os.unlink(top / "unlinked")
    for number in range(100):
        (top / f"{number}").write_bytes(bytes([number]) * MIB)
    with pytest.raises(FileNotFoundError):
        os.open(top / "evicted", os.O_RDONLY)
    for name, mapping in mappings.items():
        assert mapping.read() == data[name]
        mapping.close()


def test_the_daemon_is_killed_under_a_mapping(passing: Any) -> None:
    top = passing.path
    (top / "read").write_bytes(b"r" * MIB)
    (top / "written").write_bytes(b"w" * MIB)
    read = Mapping(top / "read", os.O_RDONLY)
    written = Mapping(top / "written", os.O_RDWR)
    passing.kill9()
    assert read.read() == b"r" * MIB
    written.store(0, b"later")
    passing.mount()
    assert (top / "written").read_bytes() == b"later" + b"w" * (MIB - 5)
    assert os.getxattr(top / "written", "user.beluga.state") == b"sealed,unverified"
    written.store(0, b"again")
    assert (top / "written").read_bytes()[:5] == b"again"
    written.close()
    assert passing.settled_state(top / "written") == "sealed"
    read.close()
    done = passing.command("belugafs.verify", str(top))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_mapping_that_outlives_its_close_is_no_damage(passing: Any) -> None:
    """Map for writing, close, store, verify: unverified until the mapping is gone."""
    path = passing.path / "f"
    path.write_bytes(b"x" * MIB)
    mapping = Mapping(path, os.O_RDWR)
    for number in range(3):
        mapping.store(number, bytes([number]))
        time.sleep(0.15)
        assert os.getxattr(path, "user.beluga.state") in (b"dirty", b"sealed,unverified")
        done = passing.command("belugafs.verify", str(path))
        assert done.returncode == 0, done.stdout + done.stderr
        assert path.read_bytes()[: number + 1] == bytes(range(number + 1))
    mapping.close()
    assert passing.settled_state(path) == "sealed"
    assert os.getxattr(path, "user.beluga.class") == b"ordinary"
    passing.remount()
    assert path.read_bytes() == bytes(range(3)) + b"x" * (MIB - 3)


def test_damage_is_found_before_anybody_gets_at_it(passing: Any) -> None:
    """As over the plain path: what is right can be read, the rest is EIO, a mapping a bus error."""
    path = passing.path / "f"
    path.write_bytes(b"d" * MIB)
    assert passing.settled_state(path) == "sealed"
    passing.remount()
    with opened(backing(passing, path), os.O_RDWR) as below:
        os.pwrite(below, b"D", 600 * KIB)
    passing.expect_log("checksum|damaged")
    for flags in (os.O_RDONLY, os.O_RDWR):
        with opened(path, flags) as fd:
            assert os.pread(fd, 256 * KIB, 0) == b"d" * 256 * KIB
            with pytest.raises(OSError) as caught:
                os.pread(fd, 256 * KIB, 512 * KIB)
            assert caught.value.errno == errno.EIO
            assert int(passing.stats()["backing_ids"]) == 0
            reader = (
                "import mmap, sys\n"
                "with open(sys.argv[1], 'rb') as f, "
                "mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m: print(m[600 * 1024])\n"
            )
            done = subprocess.run([sys.executable, "-c", reader, str(path)], check=False)
            assert done.returncode == -7
    path.write_bytes(b"new")
    assert path.read_bytes() == b"new"
    passing.await_stat("backing_ids", 0)


def test_a_synchronous_write_outlives_the_daemon(passing: Any) -> None:
    top = passing.path
    sync = os.open(top / "sync", os.O_CREAT | os.O_RDWR | os.O_SYNC)
    plain = os.open(top / "plain", os.O_CREAT | os.O_RDWR)
    os.write(sync, b"kept")
    os.write(plain, b"lost")
    passing.kill9()
    for fd in (sync, plain):
        with contextlib.suppress(OSError):  # their daemon is gone
            os.close(fd)
    passing.mount()
    assert os.listdir(top) == ["sync"]
    assert (top / "sync").read_bytes() == b"kept"


def test_a_write_takes_set_user_id_away(passing: Any) -> None:
    path = passing.path / "f"
    path.write_bytes(b"x")
    path.chmod(0o4777)
    passing.path.chmod(0o777)
    passing.path.parent.chmod(0o711)
    script = "import os, sys; os.setuid(65534); os.write(os.open(sys.argv[1], os.O_RDWR), b'y')"
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)
    assert path.stat().st_mode & 0o7777 == 0o777


def test_it_can_be_switched_off(unmounted_pool: Any) -> None:
    unmounted_pool.mount("transport=direct,passthrough=off")
    assert not unmounted_pool.passthrough
    with opened(unmounted_pool.path / "f", os.O_CREAT | os.O_RDWR) as fd:
        os.write(fd, b"x")
        assert int(unmounted_pool.stats()["backing_ids"]) == 0
    config = (unmounted_pool.path / ".beluga/config").read_text()
    assert "passthrough_reason passthrough=off\n" in config


def test_a_transport_without_it_says_so(unmounted_pool: Any) -> None:
    done = unmounted_pool.try_mount("transport=pyfuse3,passthrough=auto")
    assert done.returncode == 0
    unmounted_pool.daemon_pid = int(unmounted_pool.stats()["pid"])
    assert done.stderr.count("no passthrough: the transport pyfuse3 has none") == 1
    assert not unmounted_pool.passthrough


def test_several_writers_into_a_full_pool(passing: Any) -> None:
    """Room is made ahead of them: nobody is told ENOSPC while there is something to evict."""
    top = passing.path
    script = (
        "import os, sys\n"
        "for n in range(40):\n"
        "    with open(f'{sys.argv[1]}.{n}', 'wb', buffering=0) as f:\n"
        "        assert sum(f.write(b'x' * 65536) for _ in range(32)) == 1 << 21\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", script, str(top / f"{number}")])
        for number in range(4)
    ]
    assert [writer.wait(90) for writer in writers] == [0] * 4
    assert int(passing.stats()["evicted_blocks"]) > 50


def test_doctor_and_mount_agree(passing: Any) -> None:
    done = passing.command("belugafs.cli", "doctor", "--json")
    (found,) = (item for item in json.loads(done.stdout) if item["name"] == "passthrough")
    assert found["state"] == "ok"


def test_doctor_says_why_not(pool_kind: str) -> None:
    """To a user who isn't root, and may not mount."""
    script = (
        "from belugafs import doctor; import os; os.setuid(65534); print(doctor._passthrough())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=20
    )
    assert "limited" in done.stdout
    assert "it takes root" in done.stdout


def test_refusals_are_said_in_words(pool_kind: str) -> None:
    assert "CONFIG_FUSE_PASSTHROUGH" in refusal(errno.ENOSYS)
    assert "overlayfs" in refusal(errno.ELOOP)
    assert "No space left" in refusal(errno.ENOSPC)

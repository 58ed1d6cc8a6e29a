"""Kinds of pools: what a path is, what is wrong with it, what lies there, who holds it, and
giving it memory.

tmpfs, hugetlbfs and regular files are the real ones. **The DAX device is not**: a tmpfs file
stands in for it, with a made-up sysfs and a made-up fstat that says "character device, size 0";
reads by descriptor and unaligned mappings fail as they do there. It checks our side of the
device's rules; that the rules are those, only a machine or a virtual machine with a real
/dev/dax0.0 can show.
"""

import contextlib
import gzip
import hashlib
import io
import lzma
import mmap
import os
import pickle
import resource
import shutil
import socket
import sqlite3
import stat
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from belugafs import pool
from belugafs._pool import alloc, base, host, kinds
from belugafs._pool.sniff import classify
from belugafs.exits import Exit
from belugafs.pool import PoolError, PoolInfo, PoolInUse, inspect_pool, open_pool, sniff

MIB = 1 << 20
KIB = 1 << 10
NOBODY = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root (mounts, nr_hugepages)")


@contextlib.contextmanager
def mounted(fs_type: str, options: str) -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="belugafs-test-"))
    subprocess.run(["mount", "-t", fs_type, "-o", options, "test", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)
        place.rmdir()


@pytest.fixture
def shm() -> Iterator[Path]:
    """A directory in tmpfs."""
    base = os.environ.get("BELUGAFS_TEST_SHM", "/dev/shm")
    place = Path(tempfile.mkdtemp(prefix="belugafs-test-", dir=base))
    yield place
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def hugetlbfs(
    alone: Callable[[str], contextlib.AbstractContextManager[None]],
) -> Iterator[Path]:
    """A hugetlbfs with at least 20 free pages of 2 MiB; the machine's setting is put back."""
    setting = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
    if os.geteuid() != 0:
        pytest.skip("needs root to set nr_hugepages and to mount hugetlbfs")
    if not setting.exists():
        pytest.skip("this kernel has no 2 MiB huge pages")
    with alone("huge_pages"):
        yield from _hugetlbfs(setting)


def _hugetlbfs(setting: Path) -> Iterator[Path]:
    former = setting.read_text()
    try:
        setting.write_text(str(int(former) + 20))
        if int(setting.read_text()) < int(former) + 20:
            pytest.skip("this machine has no 40 MiB of contiguous memory to spare")
        with mounted("hugetlbfs", "pagesize=2M") as place:
            yield place
    finally:
        setting.write_text(former)


def as_nobody(check: Callable[[], object]) -> None:
    """Run a check as an ordinary user, in a child: assertions count."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            check()
        except BaseException as error:
            os.write(write_fd, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write_fd)
    with open(read_fd, "rb") as report:
        text = report.read().decode()
    assert os.waitpid(pid, 0)[1] == 0
    assert text == ""


def refused(path: Path | str, code: Exit, *words: str, for_write: bool = True) -> str:
    with pytest.raises(PoolError) as caught:
        inspect_pool(str(path), for_write=for_write)
    message = str(caught.value)
    assert caught.value.exit_code is code, message
    assert str(path) in message
    for word in words:
        assert word in message
    return message


def make_file(path: Path, size_bytes: int, data: bytes = b"") -> Path:
    with path.open("wb") as file:
        file.write(data)
        os.posix_fallocate(file.fileno(), 0, size_bytes)
    path.chmod(0o600)
    return path


# ---- files ------------------------------------------------------------------------------------


def test_regular_file(tmp_path: Path) -> None:
    path = make_file(tmp_path / "pool", 4 * MIB)
    info = inspect_pool(str(path))
    assert info.kind in ("file", "tmpfs")  # where the temporary directory is a tmpfs
    assert info.size_bytes == info.file_bytes == 4 * MIB
    assert info.page_bytes == mmap.PAGESIZE
    assert info.numa_node is None
    assert info.exists


def test_tmpfs_file(shm: Path) -> None:
    info = inspect_pool(str(make_file(shm / "pool", 4 * MIB)))
    assert (info.kind, info.size_bytes, info.page_bytes) == ("tmpfs", 4 * MIB, mmap.PAGESIZE)
    assert info.mount_point == "/dev/shm"


@needs_root
def test_tmpfs_options_are_seen() -> None:
    with mounted("tmpfs", "size=8m,huge=always,mpol=bind:0") as place:
        info = inspect_pool(str(make_file(place / "pool", MIB)))
    assert info.huge == "always"
    assert info.numa_node == 0
    assert not any("huge" in note for note in info.notes)


def test_odd_size_leaves_the_tail_unused(shm: Path) -> None:
    path = make_file(shm / "pool", MIB + 5000)
    info = inspect_pool(str(path))
    assert info.size_bytes == MIB + 4096
    assert any("last 904 bytes" in note for note in info.notes)


def test_hugetlbfs_file(hugetlbfs: Path) -> None:
    path = hugetlbfs / "kind"
    path.touch(0o600)
    os.truncate(path, 4 * MIB)
    info = inspect_pool(str(path))
    assert (info.kind, info.size_bytes, info.page_bytes) == ("hugetlbfs", 4 * MIB, 2 * MIB)
    path.unlink()


def test_lax_mode_is_told(shm: Path) -> None:
    path = make_file(shm / "pool", MIB)
    path.chmod(0o644)
    assert any("chmod 600" in note for note in inspect_pool(str(path)).notes)


def test_new_file(shm: Path) -> None:
    info = pool.plan_new_pool(str(shm / "pool"), MIB + 1)
    assert (info.kind, info.size_bytes, info.exists) == ("tmpfs", MIB, False)
    assert list(shm.iterdir()) == []


def test_link_to_a_pool(shm: Path) -> None:
    make_file(shm / "pool", MIB)
    (shm / "link").symlink_to("pool")
    assert inspect_pool(str(shm / "link")).size_bytes == MIB


# ---- what is no pool --------------------------------------------------------------------------


def test_missing(tmp_path: Path) -> None:
    refused(tmp_path / "pool", Exit.NOT_FOUND, "does not exist", "mkfs.belugafs --size 8G")
    refused("/dev/dax99.0", Exit.NOT_FOUND, "no such device", "daxctl list")
    refused("/dev/beluga.pool", Exit.NOT_FOUND, "/dev/shm/beluga.pool")
    with pytest.raises(PoolError, match=r"directory .*nodir does not exist"):
        pool.plan_new_pool(str(tmp_path / "nodir/pool"), MIB)
    with pytest.raises(PoolError, match="no such device"):
        pool.plan_new_pool("/dev/dax99.0", MIB)
    assert list(tmp_path.iterdir()) == []


def test_other_types_have_their_own_answer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        messages = {
            refused(tmp_path, Exit.IS_DIRECTORY, "no pool", str(tmp_path / "pool")),
            refused(tmp_path / "fifo", Exit.NOT_A_POOL_TYPE, "FIFO"),
            refused(tmp_path / "socket", Exit.NOT_A_POOL_TYPE, "socket"),
            refused("/dev/null", Exit.OTHER_DEVICE, "not a DAX device"),
        }
    assert len(messages) == 4


@needs_root
def test_block_devices(tmp_path: Path) -> None:
    os.mknod(tmp_path / "disk", stat.S_IFBLK | 0o600, os.makedev(7, 200))
    refused(tmp_path / "disk", Exit.BLOCK_DEVICE, "block device")
    os.mknod(tmp_path / "pmem1", stat.S_IFBLK | 0o600, os.makedev(7, 200))
    refused(tmp_path / "pmem1", Exit.FSDAX, "-e namespace1.0 --mode=devdax")


def test_no_permission(shm: Path) -> None:
    path = make_file(shm / "pool", MIB)
    shm.chmod(0o755)

    def check() -> None:
        refused(path, Exit.PERMISSION, "no permission to read and write")
        refused(path, Exit.PERMISSION, "no permission to read ", for_write=False)

    as_nobody(check)
    path.chmod(0o444)
    as_nobody(lambda: refused(path, Exit.PERMISSION))
    as_nobody(lambda: inspect_pool(str(path), for_write=False))
    shm.chmod(0o700)
    as_nobody(lambda: refused(path, Exit.PERMISSION, "no permission to reach"))


@needs_root
def test_read_only_filesystem() -> None:
    with mounted("tmpfs", "size=8m") as place:
        path = make_file(place / "pool", MIB)
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        refused(path, Exit.PERMISSION, "mounted read-only")
        assert inspect_pool(str(path), for_write=False).size_bytes == MIB


@needs_root
def test_sparse_file_on_a_full_filesystem() -> None:
    with mounted("tmpfs", "size=8m") as place:
        path = place / "pool"
        path.touch(0o600)
        os.truncate(path, 6 * MIB)
        assert inspect_pool(str(path)).size_bytes == 6 * MIB  # there is room yet
        make_file(place / "other", 4 * MIB)
        refused(path, Exit.SPARSE, "6 MiB of it are not allocated", "4 MiB is free")
        assert inspect_pool(str(path), check_space=False).size_bytes == 6 * MIB


# ---- DAX devices (stand-in, see the top) --------------------------------------------------------

DAX_DRIVER = "device_dax"
MAJOR, MINOR = 252, 7
REAL_MAP_RANGE = pool.map_range


class FakeDax:
    """A tmpfs file that the code under test sees as /dev/dax0.0."""

    def __init__(self, node: Path, sysfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = node
        self.device = sysfs / "devices/platform/hmem.0/dax0.0"
        self.device.mkdir(parents=True)
        self.sysfs = sysfs
        (sysfs / "bus/dax/drivers").mkdir(parents=True)
        (sysfs / "dev/char").mkdir(parents=True)
        (sysfs / "dev/char" / f"{MAJOR}:{MINOR}").symlink_to(self.device)
        (self.device / "subsystem").symlink_to(sysfs / "bus/dax")
        self.attribute("align", 2 * MIB)
        self.attribute("target_node", 1)
        self.attribute("resource", 0x100000000)
        self.driver(DAX_DRIVER)
        self.size(16 * MIB)
        monkeypatch.setattr(host, "SYSFS_ROOT", sysfs)
        monkeypatch.setattr(kinds, "file_status", self._file_status)
        monkeypatch.setattr(base, "_read_file", self._read_file)
        for module in (base, alloc):
            monkeypatch.setattr(module, "map_range", self._map_range)

    def size(self, size_bytes: int) -> None:
        make_file(self.node, size_bytes)
        self.attribute("size", size_bytes)

    def attribute(self, name: str, value: int) -> None:
        (self.device / name).write_text(f"{value:#x}\n" if name == "resource" else f"{value}\n")

    def driver(self, name: str | None) -> None:
        link = self.device / "driver"
        link.unlink(missing_ok=True)
        if name is not None:
            (self.sysfs / "bus/dax/drivers" / name).mkdir(exist_ok=True)
            link.symlink_to(self.sysfs / "bus/dax/drivers" / name)

    def _is_node(self, fd: int) -> bool:
        return os.path.samestat(os.fstat(fd), os.stat(self.node))

    def _file_status(self, fd: int) -> os.stat_result:
        real = os.fstat(fd)
        if not self._is_node(fd):
            return real
        fields = list(real)[:10]
        fields[0] = stat.S_IFCHR | 0o600
        fields[6] = 0
        return os.stat_result(fields, {"st_rdev": os.makedev(MAJOR, MINOR)})

    def _read_file(self, fd: int, offset: int, length: int) -> bytes:
        assert not self._is_node(fd), "read(2) on a DAX device is EINVAL"
        return os.pread(fd, length, offset)

    def _map_range(self, fd: int, offset: int, length: int, *, write: bool) -> mmap.mmap:
        if self._is_node(fd):
            assert offset % (2 * MIB) == 0 and length % (2 * MIB) == 0, "EINVAL on a DAX device"
        return REAL_MAP_RANGE(fd, offset, length, write=write)


@pytest.fixture
def dax(shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDax:
    return FakeDax(shm / "dax0.0", tmp_path / "sys", monkeypatch)


def test_dax_device(dax: FakeDax) -> None:
    info = inspect_pool(str(dax.node))
    assert (info.kind, info.size_bytes, info.page_bytes) == ("devdax", 16 * MIB, 2 * MIB)
    assert info.numa_node == 1


def test_dax_in_system_ram_mode(dax: FakeDax) -> None:
    dax.driver("kmem")
    refused(dax.node, Exit.SYSTEM_RAM, "daxctl reconfigure-device --force --mode=devdax dax0.0")


def test_dax_without_driver_or_for_a_kernel_filesystem(dax: FakeDax) -> None:
    dax.driver(None)
    refused(dax.node, Exit.NO_DRIVER, "daxctl reconfigure-device --mode=devdax dax0.0")
    dax.driver("fsdev_dax")
    refused(dax.node, Exit.FSDAX, "daxctl reconfigure-device --mode=devdax dax0.0")


def test_dax_geometry(dax: FakeDax) -> None:
    dax.size(5 * MIB)
    refused(dax.node, Exit.BAD_DEVICE_SIZE, f"size of {5 * MIB} bytes", f"--size={4 * MIB}")
    dax.size(16 * MIB)
    dax.attribute("resource", 0x100100000)
    refused(dax.node, Exit.BAD_DEVICE_SIZE, "start at 0x100100000")
    dax.attribute("resource", 0x100000000)
    dax.attribute("size", 0)
    refused(dax.node, Exit.BAD_DEVICE_SIZE, "size of 0", "daxctl create-device --region=0")
    dax.size(6 * MIB)
    dax.attribute("align", 4 * MIB)
    refused(dax.node, Exit.BAD_DEVICE_SIZE, "multiple of 4 MiB", "--align=4M")


def test_dax_with_small_pages(dax: FakeDax) -> None:
    dax.attribute("align", 4096)
    info = inspect_pool(str(dax.node))
    assert info.page_bytes == 4096
    assert any("no huge pages" in note for note in info.notes)


def test_dax_node_missing_in_a_container(dax: FakeDax) -> None:
    (dax.sysfs / "bus/dax/devices/dax0.0").mkdir(parents=True)
    dax.node.unlink()
    refused(dax.node, Exit.NOT_FOUND, "no device node here", "--device /dev/dax0.0")


@needs_root
def test_dax_node_without_a_device_behind_it(
    dax: FakeDax, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real device node that the kernel answers with ENXIO, as it does without a driver."""
    monkeypatch.setattr(kinds, "file_status", os.fstat)
    # 240 to 254 are for local use; nothing has registered the minor.
    node = tmp_path / "dax0.0"
    os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(MAJOR, MINOR))
    refused(node, Exit.NO_DRIVER, "daxctl reconfigure-device")


def test_dax_content_is_read_and_written_through_mappings(dax: FakeDax) -> None:
    with open_pool(str(dax.node)) as opened:
        assert sniff(opened.fd, opened.info) == "empty"
        os.pwrite(opened.fd, b"\x7fELF", 0)
        assert sniff(opened.fd, opened.info) == "ELF program or library"
        pool.zero_range(opened.fd, opened.info, 0, 8192)
        assert sniff(opened.fd, opened.info) == "empty"
        os.pwrite(opened.fd, b"x", 16 * MIB - 1)
        assert sniff(opened.fd, opened.info) == "unknown data"


def test_dax_shorter_than_it_says_is_an_error_not_a_signal(
    dax: FakeDax, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel maps beyond the end without complaint; the first touch there is a SIGBUS. A
    mapping of a file that is cut afterwards behaves the same."""
    with open_pool(str(dax.node)) as opened:
        real_map = base.map_range

        def map_and_cut(fd: int, offset: int, length: int, *, write: bool) -> mmap.mmap:
            mapping = real_map(fd, offset, length, write=write)
            os.truncate(dax.node, 0)
            return mapping

        def check() -> None:
            monkeypatch.setattr(base, "map_range", map_and_cut)
            monkeypatch.setattr(alloc, "map_range", map_and_cut)
            with pytest.raises(PoolError) as caught:
                sniff(opened.fd, opened.info)
            assert caught.value.exit_code is Exit.IO_ERROR
            os.truncate(dax.node, 16 * MIB)
            with pytest.raises(OSError):
                pool.zero_range(opened.fd, opened.info, 0, 8192)
            os.truncate(dax.node, 16 * MIB)
            with pytest.raises(PoolError, match="shorter than the kernel says"):
                pool.allocate_and_populate(
                    opened.fd, opened.info, 16 * MIB, lambda done, total: None, False
                )

        pid = os.fork()  # a SIGBUS would end the test run
        if pid == 0:
            try:
                check()
            except BaseException as error:
                sys.__stderr__ and sys.__stderr__.write(repr(error))
                os._exit(1)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0


def test_dax_allocation_checks_the_size(dax: FakeDax) -> None:
    seen: list[tuple[int, int]] = []
    with open_pool(str(dax.node)) as opened:
        done = pool.allocate_and_populate(
            opened.fd, opened.info, 16 * MIB, lambda *both: seen.append(both), False
        )
        assert done.huge_fraction == 1.0
        assert seen == [(16 * MIB, 16 * MIB)]
        with pytest.raises(PoolError) as caught:
            pool.allocate_and_populate(
                opened.fd, opened.info, 18 * MIB, lambda done, total: None, False
            )
    assert caught.value.exit_code is Exit.TOO_LARGE


# ---- content ----------------------------------------------------------------------------------


def at(offset: int, data: bytes) -> bytes:
    return bytes(offset) + data


def zip_bytes() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data.pkl", b"x" * 100)
    return buffer.getvalue()


def sqlite_bytes() -> bytes:
    with tempfile.TemporaryDirectory() as place:
        database = sqlite3.connect(f"{place}/db")
        database.execute("create table t (x)")
        database.commit()
        database.close()
        return Path(place, "db").read_bytes()


def safetensors_bytes() -> bytes:
    header = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    return struct.pack("<Q", len(header)) + header + b"\1" * 8


FOREIGN: dict[str, tuple[bytes, str]] = {
    "ext4": (at(0x438, b"\x53\xef"), "ext2/ext3/ext4 filesystem"),
    "xfs": (b"XFSB" + bytes(100), "XFS filesystem"),
    "btrfs": (at(0x10040, b"_BHRfS_M"), "Btrfs filesystem"),
    "vfat": (
        b"\xeb\x58\x90mkfs.fat" + at(71, b"FAT32   ") + at(420, b"\x55\xaa"),
        "FAT filesystem",
    ),
    "fat16": (at(54, b"FAT16   ") + at(448, b"\x55\xaa"), "FAT filesystem"),
    "mbr": (at(510, b"\x55\xaa"), "MBR partition table or boot sector"),
    "gpt": (at(510, b"\x55\xaaEFI PART"), "GPT partition table"),
    "luks": (b"LUKS\xba\xbe\0\2", "LUKS encrypted volume"),
    "squashfs": (b"hsqs" + bytes(100), "squashfs filesystem"),
    "swap": (at(4086, b"SWAPSPACE2"), "swap space"),
    "raw nvdimm": (
        at(4096, b"NVDIMM_DAX_INFO\0"),
        "NVDIMM namespace in devdax mode (its raw memory)",
    ),
    "famfs": (struct.pack("<QQ", 0x87B282FF, 47), "famfs filesystem"),
    "zip": (zip_bytes(), "zip archive (or PyTorch checkpoint)"),
    "gzip": (gzip.compress(b"x"), "gzip data"),
    "xz": (lzma.compress(b"x"), "xz data"),
    "zstd": (b"\x28\xb5\x2f\xfd\x04\x00\x09\x00\x00x", "zstd data"),
    "elf": (Path("/proc/self/exe").read_bytes()[:65536], "ELF program or library"),
    "sqlite": (sqlite_bytes(), "SQLite database"),
    "gguf": (b"GGUF" + struct.pack("<IQQ", 3, 1, 1), "GGUF model"),
    "safetensors": (safetensors_bytes(), "safetensors model"),
    "pickle": (pickle.dumps({"a": 1}, 4), "Python pickle (or old PyTorch checkpoint)"),
    "text": (b"# my notes\ncaf\xc3\xa9\n", "text"),
    "random": (hashlib.shake_128(b"x").digest(9000), "unknown data"),
    "far end": (at(300 * KIB, b"\xff"), "unknown data"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_content(shm: Path, name: str) -> None:
    data, expected = FOREIGN[name]
    path = shm / "pool"
    path.write_bytes(data)
    with open_pool(str(path)) as opened:
        assert sniff(opened.fd, opened.info) == expected
        with pytest.raises(PoolError) as caught:
            pool.require_pool(opened.fd, opened.info)
    assert caught.value.exit_code is Exit.FOREIGN
    assert expected in str(caught.value)
    assert path.read_bytes() == data


def test_real_ext4(shm: Path) -> None:
    tool = shutil.which("mkfs.ext4", path=f"{os.environ['PATH']}:/sbin:/usr/sbin")
    if tool is None:
        pytest.skip("no mkfs.ext4 here")
    path = make_file(shm / "pool", 8 * MIB)
    subprocess.run([tool, "-q", "-F", path], check=True)
    with open_pool(str(path)) as opened:
        assert sniff(opened.fd, opened.info) == "ext2/ext3/ext4 filesystem"


def test_gpt_copy_at_the_end(shm: Path) -> None:
    path = make_file(shm / "pool", MIB)
    with path.open("r+b") as file:
        file.seek(MIB - 512)
        file.write(b"EFI PART")
    with open_pool(str(path)) as opened:
        assert sniff(opened.fd, opened.info) == "GPT partition table (its copy at the end)"


def test_belugafs_and_empty() -> None:
    magic = b"BELUGAFS" + bytes(100)
    assert classify(magic, b"") == "belugafs"
    assert classify(at(4096, magic), b"") == "belugafs"  # the first copy was hit
    assert classify(magic + at(972, b"\x53\xef"), b"") == "belugafs"  # whatever else it holds
    # ... but a filesystem made over it is what is there now
    ext4 = bytearray(at(4096, magic))
    ext4[0x438:0x43A] = b"\x53\xef"
    assert classify(bytes(ext4), b"") == "ext2/ext3/ext4 filesystem"
    assert classify(at(8192, magic), b"") == "unknown data"
    assert classify(bytes(4096), bytes(4096)) == "empty"
    assert classify(b"", b"") == "empty"


def test_require_pool(shm: Path) -> None:
    path = make_file(shm / "pool", MIB)
    with open_pool(str(path)) as opened:
        with pytest.raises(PoolError, match=r"no pool yet.*mkfs\.belugafs") as caught:
            pool.require_pool(opened.fd, opened.info)
        assert caught.value.exit_code is Exit.EMPTY
        os.pwrite(opened.fd, b"BELUGAFS", 0)
        pool.require_pool(opened.fd, opened.info)


# ---- locks and users ----------------------------------------------------------------------------

HOLD = """
import fcntl, mmap, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
if "lock" in sys.argv: fcntl.flock(fd, fcntl.LOCK_SH)
if "map" in sys.argv: kept = mmap.mmap(fd, 4096); os.close(fd)
if "fork" in sys.argv:
    parent = os.getpid()
    if os.fork(): os._exit(0)
    while os.getppid() == parent: time.sleep(0.001)
print(os.getpid(), flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def another_process(path: Path, *how: str) -> Iterator[int]:
    """A process that holds the file ("lock", "map", "fork": by a child of who took it)."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), *how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin and process.stdout
        yield int(process.stdout.readline())
        process.stdin.close()


@pytest.mark.parametrize("how", [("lock",), ("lock", "fork")], ids=" ".join)
def test_in_use_names_the_holder(shm: Path, how: tuple[str, ...]) -> None:
    path = make_file(shm / "pool", MIB)
    with another_process(path, *how) as pid:
        with pytest.raises(PoolInUse, match=f"in use by process {pid} ") as caught:
            open_pool(str(path), lock="exclusive")
        assert caught.value.exit_code is Exit.IN_USE
        assert [holder.pid for holder in caught.value.holders] == [pid]
        open_pool(str(path), lock="shared").close()
        open_pool(str(path), lock=None).close()
    deadline = time.monotonic() + 10
    while True:  # the grandchild is not ours to wait for
        try:
            open_pool(str(path), lock="exclusive").close()
            break
        except PoolInUse:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_holder_in_the_same_process(shm: Path) -> None:
    path = make_file(shm / "pool", MIB)
    with (
        open_pool(str(path), lock="exclusive"),
        pytest.raises(PoolInUse, match=f"process {os.getpid()} "),
    ):
        open_pool(str(path), readonly=True)


@pytest.mark.parametrize("how", [(), ("map",)], ids=["open", "mapped"])
def test_users_without_a_lock(shm: Path, how: tuple[str, ...]) -> None:
    path = make_file(shm / "pool", MIB)
    with open_pool(str(path)) as opened:
        with another_process(path, *how) as pid:
            assert [holder.pid for holder in pool.users_of(opened.fd, opened.info)] == [pid]
        assert pool.users_of(opened.fd, opened.info) == ()


@needs_root
def test_users_by_another_device_node(tmp_path: Path) -> None:
    """Each container has device nodes of its own: other inodes, same device."""
    nodes = [tmp_path / "here/dax9.9", tmp_path / "container/dax9.9"]
    for node in nodes:
        node.parent.mkdir()
        os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(1, 3))  # as /dev/null, to be opened
    with another_process(nodes[1]) as pid:
        assert [holder.pid for holder in host.users(nodes[0].stat(), "dax9.9")] == [pid]


def test_removed_while_it_is_opened(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_file(shm / "pool", MIB)
    monkeypatch.setattr(pool, "lock_pool", lambda *args: path.unlink())
    with pytest.raises(PoolError, match="was removed"):
        open_pool(str(path))


def test_descriptor_of_an_open_pool(shm: Path) -> None:
    path = make_file(shm / "pool", MIB)
    with open_pool(str(path), readonly=True) as opened:
        assert not os.get_inheritable(opened.fd)
        assert opened.path == str(path)
        with pytest.raises(OSError):
            os.pwrite(opened.fd, b"x", 0)
        fd = opened.fd
    with pytest.raises(OSError):
        os.fstat(fd)
    opened.close()


def test_size_is_that_of_the_locked_file(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mkfs that ends between our look and our lock must not leave us with the old size."""
    path = make_file(shm / "pool", MIB)
    real_lock = pool.lock_pool

    def grow_then_lock(*args: object) -> None:
        os.truncate(path, 2 * MIB)
        real_lock(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(pool, "lock_pool", grow_then_lock)
    with open_pool(str(path)) as opened:
        assert opened.info.size_bytes == 2 * MIB


# ---- taking memory ------------------------------------------------------------------------------


def take(path: Path, size_bytes: int, **options: bool) -> tuple[alloc.Allocation, list[int]]:
    seen: list[int] = []

    def progress(done_bytes: int, total_bytes: int) -> None:
        assert total_bytes == size_bytes
        seen.append(done_bytes)

    sparse = options.pop("sparse", False)
    with open_pool(str(path), check_space=False) as opened:
        done = pool.allocate_and_populate(
            opened.fd, opened.info, size_bytes, progress, sparse, **options
        )
    assert seen == sorted(seen) and seen[-1] == size_bytes
    return done, seen


def empty_file(path: Path) -> Path:
    path.touch(0o600)
    return path


def test_memory_is_taken_in_steps(shm: Path, tmp_path: Path) -> None:
    for place in (shm, tmp_path):
        path = empty_file(place / "pool")
        _, seen = take(path, 150 * MIB)
        assert seen == [0, 64 * MIB, 128 * MIB, 150 * MIB]
        assert path.stat().st_size == 150 * MIB
        assert path.stat().st_blocks * 512 >= 150 * MIB
        path.unlink()


def test_content_stays(shm: Path) -> None:
    path = shm / "pool"
    data = hashlib.shake_128(b"x").digest(MIB)
    path.write_bytes(data)
    take(path, 4 * MIB)
    assert path.read_bytes() == data + bytes(3 * MIB)
    take(path, 2 * MIB)
    assert path.stat().st_size == 4 * MIB


def test_kernel_without_populate(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alloc, "_MADV_POPULATE_WRITE", 9999)
    path = shm / "pool"
    path.write_bytes(b"abc" * 5000)
    take(path, 4 * MIB)
    assert path.read_bytes() == b"abc" * 5000 + bytes(4 * MIB - 15000)


def test_sparse(shm: Path) -> None:
    path = empty_file(shm / "pool")
    done, seen = take(path, 64 * MIB, sparse=True)
    assert done.populated_bytes == 0
    assert seen == [64 * MIB]
    assert (path.stat().st_size, path.stat().st_blocks) == (64 * MIB, 0)


def failed(path: Path, size_bytes: int, code: Exit, *words: str) -> None:
    former = path.stat()
    with pytest.raises(PoolError) as caught:
        take(path, size_bytes)
    assert caught.value.exit_code is code, caught.value
    for word in words:
        assert word in str(caught.value)
    assert path.stat().st_size == former.st_size
    assert path.stat().st_blocks == former.st_blocks


@needs_root
@pytest.mark.parametrize("huge", ["never", "advise", "always"])
@pytest.mark.parametrize("early", [True, False], ids=["known before", "found out"])
def test_full_tmpfs(huge: str, early: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not early:
        monkeypatch.setattr(alloc, "_check_room", lambda *args, **options: None)
    with mounted("tmpfs", f"size=8m,huge={huge}") as place:
        words = ("8 MiB is free", f"tmpfs on {place}", "remount,size=")
        failed(empty_file(place / "pool"), 16 * MIB, Exit.NO_SPACE, *words[0 if early else 1 :])
        take(place / "pool", 6 * MIB)


@needs_root
@pytest.mark.parametrize("huge", ["advise", "always"])
def test_huge_pages_of_tmpfs(huge: str) -> None:
    with mounted("tmpfs", f"size=40m,huge={huge}") as place:
        done, _ = take(empty_file(place / "pool"), 32 * MIB)
        # The kernel may have run out of whole huge pages; on an idle machine it has not.
        assert done.huge_fraction > 0.5


@needs_root
def test_no_huge_pages_of_tmpfs() -> None:
    with mounted("tmpfs", "size=8m,huge=never") as place:
        done, _ = take(empty_file(place / "pool"), 4 * MIB)
        assert done.huge_fraction == 0


def test_file_size_limit(shm: Path) -> None:
    path = empty_file(shm / "pool")

    def check() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))
        failed(path, 4 * MIB, Exit.TOO_LARGE, "ulimit -f", "1 MiB")

    shm.chmod(0o777)
    path.chmod(0o666)
    as_nobody(check)


def test_pool_larger_than_memory(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/mountinfo").write_bytes(Path("/proc/self/mountinfo").read_bytes())
    (proc / "meminfo").write_text("MemTotal: 9999 kB\nMemAvailable:    2048 kB\n")
    monkeypatch.setattr(host, "PROC_ROOT", proc)
    path = empty_file(shm / "pool")
    failed(path, 4 * MIB, Exit.NO_MEMORY, "needs 4 MiB", "only 2 MiB", "MemAvailable")
    take(path, 4 * MIB, ignore_memory=True)
    take(path, 5 * MIB)  # only the missing megabyte counts


def test_memory_limit_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc, group = tmp_path / "proc", tmp_path / "sys/fs/cgroup/pod/engine"
    (proc / "self").mkdir(parents=True)
    group.mkdir(parents=True)
    monkeypatch.setattr(host, "PROC_ROOT", proc)
    monkeypatch.setattr(host, "SYSFS_ROOT", tmp_path / "sys")
    (proc / "meminfo").write_text("MemAvailable: 1048576 kB\n")
    (proc / "self/cgroup").write_text("0::/pod/engine\n")
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("1000\n")
    assert host.available_memory() == host.Memory(1 << 30, "free memory (MemAvailable)")
    (group.parent / "memory.max").write_text(f"{100 * MIB}\n")
    (group.parent / "memory.current").write_text(f"{60 * MIB}\n")
    (group.parent / "memory.stat").write_text(f"anon 1\ninactive_file {5 * MIB}\nactive_file 0\n")
    memory = host.available_memory()
    assert memory is not None and memory.available_bytes == 45 * MIB
    assert "control group" in memory.bound


def test_memory_of_one_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = tmp_path / "devices/system/node/node1"
    node.mkdir(parents=True)
    monkeypatch.setattr(host, "SYSFS_ROOT", tmp_path)
    (node / "meminfo").write_text(
        "Node 1 MemTotal:  9999 kB\nNode 1 MemFree:  100 kB\nNode 1 Inactive(file):  50 kB\n"
    )
    memory = host.available_memory(1)
    assert memory == host.Memory(150 * KIB, "free memory of NUMA node 1")


def test_huge_pages_that_can_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "SYSFS_ROOT", tmp_path)
    monkeypatch.setattr(host, "PROC_ROOT", tmp_path)
    (tmp_path / "meminfo").write_text("Hugepagesize:       2048 kB\n")
    for kib in (2048, 1048576):
        place = tmp_path / f"kernel/mm/hugepages/hugepages-{kib}kB"
        place.mkdir(parents=True)
        (place / "nr_hugepages").write_text("10\n")
        (place / "free_hugepages").write_text("6\n")
        (place / "resv_hugepages").write_text("4\n")
        (place / "nr_overcommit_hugepages").write_text("3\n")
        (place / "surplus_hugepages").write_text("1\n")
    assert host.huge_pages(2 * MIB) == host.HugePages(10, 4, "sysctl vm.nr_hugepages={}")
    gigantic = host.huge_pages(1 << 30)
    assert gigantic is not None
    assert gigantic.setting.format(12) == f"echo 12 > {place}/nr_hugepages"
    assert host.huge_pages(16 * MIB) is None


def test_hugetlbfs_pages_are_taken(hugetlbfs: Path) -> None:
    path = empty_file(hugetlbfs / "pool")
    before = host.huge_pages(2 * MIB)
    done, _ = take(path, 8 * MIB)
    after = host.huge_pages(2 * MIB)
    assert before and after
    assert before.available - after.available == 4
    assert done == alloc.Allocation(8 * MIB, 1.0)
    path.unlink()


@pytest.mark.parametrize("early", [True, False], ids=["known before", "found out"])
def test_too_few_huge_pages(hugetlbfs: Path, early: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = host.huge_pages(2 * MIB)
    assert pages is not None
    if not early:
        monkeypatch.setattr(alloc, "_check_room", lambda *args, **options: None)
    wanted = pages.available + 3
    path = empty_file(hugetlbfs / "pool")
    command = f"sysctl vm.nr_hugepages={pages.total + 3}"
    failed(path, wanted * 2 * MIB, Exit.NO_HUGEPAGES, f"needs {wanted} more", command)
    path.unlink()


def test_hugetlbfs_range_is_zeroed(hugetlbfs: Path) -> None:
    path = empty_file(hugetlbfs / "pool")
    take(path, 2 * MIB)
    with open_pool(str(path)) as opened:
        with pool.map_range(opened.fd, 0, 2 * MIB, write=True) as mapping:
            mapping[:8] = b"BELUGAFS"
        assert sniff(opened.fd, opened.info) == "belugafs"
        pool.zero_range(opened.fd, opened.info, 0, 8192)
        assert sniff(opened.fd, opened.info) == "empty"
    path.unlink()


# ---- what the kernel says -----------------------------------------------------------------------


def test_mount_points_with_blanks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text(
        "42 27 0:39 / /mnt/my\\040pool rw,relatime shared:5 - fuse.belugafs /dev/shm/p\\134q rw\n"
        "not a line\n"
    )
    monkeypatch.setattr(host, "PROC_ROOT", tmp_path)
    assert host.mounts() == [
        host.Mount(42, "/mnt/my pool", "fuse.belugafs", "/dev/shm/p\\q", {"rw": ""})
    ]


def test_in_use_says_what_to_unmount(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_file(shm / "pool", MIB)
    mount = host.Mount(1, "/mnt/beluga", "fuse.belugafs", str(path), {})
    with open_pool(str(path)):
        monkeypatch.setattr(host, "mounts", lambda: [mount])
        with pytest.raises(PoolInUse, match="umount /mnt/beluga"):
            open_pool(str(path), lock="exclusive")


def test_pool_in_a_pool(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_file(shm / "pool", MIB)
    inside = host.Mount(1, str(shm), "fuse.belugafs", "x", {})
    monkeypatch.setattr(host, "mount_of", lambda fd: inside)
    refused(path, Exit.UNSUPPORTED, "a pool cannot be in a pool")


def test_plain_pool_info() -> None:
    info = PoolInfo("/p", "file", 4096, 4096, None, True)
    assert info.notes == ()

"""mkfs.belugafs from the outside: what it makes, what it refuses, what it leaves behind.

The C core is a small stand-in (``CORE``) that writes the two magic numbers and can be made to
fail or to wait; the tests at the end run the real one. The DAX device is a stand-in too, see
test_pool_kinds.py; here it is only asked for its size.
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from belugafs import mkfs
from belugafs._pool import host, make, request
from belugafs.exits import Exit
from belugafs.pool import PoolError, PoolInfo, open_pool, sniff

MIB = 1 << 20

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root (mounts, nr_hugepages)")

CORE = """
import mmap, os, sys, types

calls = []
check = lambda: None  # what happens before anything is written
on_mkfs = lambda: None  # what happens when one superblock is written

def mkfs(fd, size_bytes, *, max_size_bytes, inodes, hosts, label, uuid, page_bytes):
    calls.append(dict(locals()))
    check()
    with mmap.mmap(fd, size_bytes) as pool:
        pool[4096:4104] = b"BELUGAFS"
        on_mkfs()
        pool[:8] = b"BELUGAFS"
        pool[8:24] = uuid
        pool[24:24 + len(label)] = label
    return {
        "inodes": inodes or 1000,
        "data_off": 65536,
        "data_granules": (size_bytes - 65536) // 4096,
        "nhosts": hosts,
    }
"""


class Core(types.ModuleType):
    """The stand-in, as a module."""

    calls: list[dict[str, Any]]
    check: Callable[[], None]
    on_mkfs: Callable[[], None]
    peek: Callable[[int, int], dict[str, Any]]


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Core:
    module = Core("belugafs._native")
    exec(CORE, module.__dict__)
    monkeypatch.setitem(sys.modules, "belugafs._native", module)
    return module


@pytest.fixture
def shm() -> Iterator[Path]:
    """A directory in tmpfs."""
    base = os.environ.get("BELUGAFS_TEST_SHM", "/dev/shm")
    place = Path(tempfile.mkdtemp(prefix="belugafs-test-", dir=base))
    yield place
    shutil.rmtree(place)


@contextlib.contextmanager
def mounted(fs_type: str, options: str) -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="belugafs-test-"))
    subprocess.run(["mount", "-t", fs_type, "-o", options, "test", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)
        place.rmdir()


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.out))


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    def call(*args: str | Path) -> Result:
        capfd.readouterr()
        code = mkfs.main([str(arg) for arg in args], standalone_mode=False)
        captured = capfd.readouterr()
        return Result(code, captured.out, captured.err)

    return call


Run = Callable[..., Result]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def content(path: Path) -> str:
    with open_pool(str(path)) as opened:
        return sniff(opened.fd, opened.info)


# ---- success ------------------------------------------------------------------------------------


def test_new_pool(core: Core, run: Run, shm: Path) -> None:
    path = shm / "pool"
    former = os.umask(0o377)
    try:
        result = run("--size", "8M", "--label", "käse", path)
    finally:
        os.umask(former)
    assert result.code == 0 and result.err == ""
    found = path.stat()
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert found.st_size == 8 * MIB and found.st_blocks * 512 >= 8 * MIB
    assert found.st_nlink == 1
    assert content(path) == "belugafs"
    (call,) = core.calls
    assert call["size_bytes"] == call["max_size_bytes"] == 8 * MIB
    assert (call["inodes"], call["hosts"], call["label"]) == (0, 16, "käse".encode())
    assert len(call["uuid"]) == 16 and call["page_bytes"] == os.sysconf("SC_PAGE_SIZE")
    for word in ("8 MiB", "7.93 MiB for blocks", "1000", "tmpfs", "huge pages  no", "käse"):
        assert word in result.out
    assert result.out.splitlines()[-1] == f"next: mount -t belugafs {path} /mnt/beluga"


def test_options_reach_the_core(core: Core, run: Run, shm: Path) -> None:
    args = ("--size", "8M", "--max-size", "1G", "--inodes", "77", "--hosts", "3", shm / "p")
    assert run(*args).code == 0
    (call,) = core.calls
    assert (call["max_size_bytes"], call["inodes"], call["hosts"]) == (1 << 30, 77, 3)


def test_json(core: Core, run: Run, shm: Path) -> None:
    made = run("--json", "--size", "8M", shm / "p").json
    assert made["ok"] is True
    assert (made["kind"], made["size_bytes"], made["data_bytes"]) == (
        "tmpfs",
        8 * MIB,
        8 * MIB - 65536,
    )
    assert made["uuid"].replace("-", "") == core.calls[0]["uuid"].hex()
    refused = run("--json", "--size", "8M", shm / "p")
    assert refused.code == Exit.HOLDS_POOL
    assert refused.json["ok"] is False
    assert (refused.json["code"], refused.json["exit_code"]) == ("HOLDS_POOL", 20)
    assert refused.json["error"] in refused.err


def test_quiet(core: Core, run: Run, shm: Path) -> None:
    assert run("-q", "--size", "8M", shm / "p") == Result(0, "", "")


def test_sparse(core: Core, run: Run, shm: Path) -> None:
    result = run("--sparse", "--size", "64M", shm / "p")
    assert result.code == 0 and "note: sparse" in result.out
    assert (shm / "p").stat().st_blocks * 512 < MIB


def test_existing_file_with_its_own_size(core: Core, run: Run, shm: Path) -> None:
    path = shm / "p"
    path.write_bytes(bytes(MIB + 5000))
    result = run(path)
    assert result.code == 0 and "last 904 bytes" in result.out
    assert core.calls[0]["size_bytes"] == MIB + 4096
    assert path.stat().st_size == MIB + 5000
    assert content(path) == "belugafs"


def test_existing_file_with_another_size(core: Core, run: Run, shm: Path) -> None:
    path = shm / "p"
    path.write_bytes(bytes(4 * MIB))
    assert run("--size", "8M", path).code == 0
    assert path.stat().st_size == 8 * MIB
    assert run("--size", "2M", "--force", path).code == 0
    assert path.stat().st_size == 2 * MIB


def test_relative_path_and_odd_names(
    core: Core, run: Run, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shm)
    result = run("--size", "1M", "my pool")
    assert result.out.splitlines()[-1] == f"next: mount -t belugafs '{shm}/my pool' /mnt/beluga"
    assert run("--size", "1M", os.fsdecode(b"\xff\xfe")).code == 0
    assert (shm / os.fsdecode(b"\xff\xfe")).exists()


def test_filesystem_without_nameless_files(
    core: Core, run: Run, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)  # opens as on such a filesystem: EISDIR
    assert run("--size", "1M", shm / "p").code == 0
    assert content(shm / "p") == "belugafs"
    core.on_mkfs = failing
    assert run("--size", "1M", shm / "q").code == Exit.IO_ERROR
    assert [path.name for path in shm.iterdir()] == ["p"]


@pytest.mark.alone("huge_pages")
def test_hugetlbfs(core: Core, run: Run) -> None:
    setting = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
    if os.geteuid() != 0:
        pytest.skip("needs root to set nr_hugepages and to mount hugetlbfs")
    if not setting.exists():
        pytest.skip("this kernel has no 2 MiB huge pages")
    former = setting.read_text()
    try:
        setting.write_text(str(int(former) + 4))
        if int(setting.read_text()) < int(former) + 4:
            pytest.skip("this machine has no 8 MiB of contiguous memory to spare")
        with mounted("hugetlbfs", "pagesize=2M") as place:
            result = run("--size", "9M", place / "p")  # rounded down to whole pages
            assert result.code == 0, result.err
            assert "huge pages  yes" in result.out
            assert core.calls[0]["size_bytes"] == 8 * MIB
            assert core.calls[0]["page_bytes"] == 2 * MIB
            assert content(place / "p") == "belugafs"
            assert run("--force", place / "p").code == 0
            assert run("--size", "800M", place / "q").code == Exit.NO_HUGEPAGES
            assert [path.name for path in place.iterdir()] == ["p"]
            core.on_mkfs = failing
            assert run("--force", place / "p").code == Exit.IO_ERROR
            assert content(place / "p") == "empty"
    finally:
        setting.write_text(former)


# ---- refusals -----------------------------------------------------------------------------------


def test_usage_errors(core: Core, run: Run, shm: Path) -> None:
    path = shm / "p"
    for args in (
        [],
        [path],
        ["--size", "8X", path],
        ["--size", "0", path],
        ["--size", "8M", "--hosts", "17", path],
        ["--size", "8M", "--inodes", "0", path],
        ["--size", "8M", "--max-size", "4M", path],
        ["--size", "8M", "--label", "x" * 65, path],
        ["--size", "8M", "--no-such-option", path],
        ["--size", "8M", path, path],
    ):
        result = run(*args)
        assert result.code == Exit.USAGE, args
        assert result.err != ""
    assert "--size 8G" in run(path).err
    path.touch()
    assert "--size 8G" in run(path).err
    assert path.stat().st_size == 0
    assert core.calls == []


def test_help_names_every_exit_code(run: Run) -> None:
    result = run("--help")
    assert result.code == 0
    for code in Exit:
        assert f"\n  {int(code)} " in result.out
        assert code.meaning.split()[0] in result.out


def test_each_problem_has_its_own_code_and_leaves_nothing(
    core: Core, run: Run, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not depend on privileges; devices and the rest are in test_pool_kinds.py."""
    os.mkfifo(shm / "fifo")
    before = sorted(shm.iterdir())
    codes = [
        run("--size", "8M", path).code
        for path in (shm / "nodir/p", shm, shm / "fifo", "/dev/null", "/dev/dax99.0", "/dev/x")
    ]
    assert codes == [
        Exit.NOT_FOUND,
        Exit.FOREIGN,  # a directory that isn't empty
        Exit.NOT_A_POOL_TYPE,
        Exit.OTHER_DEVICE,
        Exit.NOT_FOUND,
        Exit.NOT_FOUND,
    ]
    assert run("--size", "1000", shm / "p").code == Exit.TOO_SMALL
    assert run("--size", "8M", f"{shm}/p/").code == Exit.NOT_FOUND
    monkeypatch.setitem(sys.modules, "belugafs._native", None)
    without_core = run("--size", "8M", shm / "p")
    assert without_core.code == Exit.UNSUPPORTED and "make build" in without_core.err
    assert sorted(shm.iterdir()) == before
    assert core.calls == []


def test_size_beyond_a_device(
    core: Core, run: Run, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shm / "dax0.0"
    path.write_bytes(bytes(4 * MIB))
    info = PoolInfo(str(path), "devdax", 4 * MIB, 2 * MIB, 1, True, file_bytes=4 * MIB)
    monkeypatch.setattr("belugafs._pool.kinds.classify_path", lambda name, fd: info)
    result = run("--size", "6M", path)
    assert result.code == Exit.TOO_LARGE
    assert "4 MiB" in result.err and f"{4 * MIB} bytes" in result.err
    result = run("--size", "3M", path)
    assert result.code == 0
    assert core.calls[0]["size_bytes"] == 2 * MIB
    assert "NUMA node   1" in result.out and "DAX device" in result.out


@needs_root
def test_full_filesystem(core: Core, run: Run) -> None:
    with mounted("tmpfs", "size=8m") as place:
        result = run("--size", "16M", place / "p")
        assert result.code == Exit.NO_SPACE
        assert "8 MiB is free" in result.err
        assert run("--sparse", "--size", "16M", place / "p").code == Exit.NO_SPACE
        assert list(place.iterdir()) == []
        assert os.statvfs(place).f_bfree == os.statvfs(place).f_blocks
        existing = place / "e"
        existing.write_bytes(b"\0" * 4096)
        assert run("--size", "16M", existing).code == Exit.NO_SPACE
        assert existing.read_bytes() == b"\0" * 4096


def test_pool_larger_than_memory_unless_forced(
    core: Core, run: Run, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "available_memory", lambda node=None: host.Memory(MIB, "a test"))
    assert run("--size", "8M", shm / "p").code == Exit.NO_MEMORY
    assert list(shm.iterdir()) == []
    assert run("--size", "8M", "--force", shm / "p").code == 0


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (bytes(0x438) + b"\x53\xef" + bytes(9000), "ext2/ext3/ext4 filesystem"),
        (b"my thesis\n" * 1000, "text"),
        (hashlib.shake_128(b"x").digest(20000), "unknown data"),
        (bytes(200_000) + b"EFI PART" + bytes(504), "GPT partition table (its copy at the end)"),
    ],
)
def test_foreign_content(core: Core, run: Run, shm: Path, data: bytes, name: str) -> None:
    path = shm / "p"
    path.write_bytes(data)
    before = (digest(path), path.stat().st_mtime_ns)
    result = run(path)
    assert result.code == Exit.FOREIGN
    assert name in result.err and "left untouched" in result.err
    assert (digest(path), path.stat().st_mtime_ns) == before
    forced = run("--force", path)
    assert forced.code == 0
    assert f"WARNING: overwriting what {path} holds: {name}" in forced.err
    assert content(path) == "belugafs"
    assert b"EFI PART" not in path.read_bytes()


def test_existing_pool(core: Core, run: Run, shm: Path) -> None:
    path = shm / "p"
    assert run("--size", "1M", path).code == 0
    before = digest(path)
    result = run(path)
    assert result.code == Exit.HOLDS_POOL
    assert f"mount -t belugafs {path}" in result.err
    core.peek = lambda fd, size_bytes: {
        "label": b"prod".ljust(64, b"\0"),
        "uuid": bytes(16),
        "created_s": 1_800_000_000,
        "blocks": 12,
    }
    uuid = "00000000-0000-0000-0000-000000000000"
    assert f"(label 'prod', uuid {uuid}, made 2027-01-1" in run(path).err
    assert "12 blocks)" in run(path).err
    assert digest(path) == before
    core.peek = damaged
    assert run(path).code == Exit.HOLDS_POOL
    assert run("--force", path).code == 0
    assert digest(path) != before
    assert core.calls[0]["uuid"] != core.calls[1]["uuid"]


def test_pool_mounted_on_another_host(core: Core, run: Run, shm: Path) -> None:
    path = shm / "p"
    assert run("--size", "1M", path).code == 0
    core.peek = lambda fd, size_bytes: {"hosts_live": 2}
    result = run("--force", path)
    assert result.code == Exit.IN_USE and "2 hosts" in result.err
    assert run("--force", "--force", path).code == 0


@pytest.mark.parametrize("lock", ["shared", None], ids=["mounted", "only open"])
def test_pool_in_use(core: Core, run: Run, shm: Path, lock: Any) -> None:
    path = shm / "p"
    assert run("--size", "1M", path).code == 0
    before = digest(path)
    hold = "import fcntl,sys; f=open(sys.argv[1],'rb+')\n"
    if lock:
        hold += "fcntl.flock(f, fcntl.LOCK_SH)\n"
    hold += "print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdin and holder.stdout
        holder.stdout.readline()
        for args in ((), ("--force",)):
            result = run(*args, path)
            assert result.code == Exit.IN_USE
            assert f"process {holder.pid} (" in result.err
            assert "--force --force" in result.err
        assert digest(path) == before
        forced = run("-ff", path)
        assert forced.code == 0
        assert f"WARNING: {path} is" in forced.err and str(holder.pid) in forced.err
        assert digest(path) != before
        holder.stdin.close()


def test_two_at_once(core: Core, shm: Path) -> None:
    path = shm / "p"
    results: list[object] = []
    both_written = threading.Barrier(2, timeout=30)
    core.on_mkfs = both_written.wait  # type: ignore[assignment]

    def work() -> None:
        try:
            results.append(make.make_pool(make.Request(str(path), size_bytes=MIB)))
        except Exception as error:
            results.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = [result for result in results if isinstance(result, PoolError)]
    (made,) = (result for result in results if isinstance(result, make.Summary))
    assert [error.exit_code for error in failed] == [Exit.IN_USE]
    assert content(path) == "belugafs"
    assert path.read_bytes()[8:24].hex() == made.uuid.replace("-", "")


def test_link_to_nothing_is_not_followed(core: Core, run: Run, shm: Path) -> None:
    """In a directory that everybody may write to, somebody else may have put it there."""
    (shm / "p").symlink_to(shm / "elsewhere")
    assert run("--size", "1M", shm / "p").code == Exit.NOT_FOUND
    assert not (shm / "elsewhere").exists()


# ---- failures in the middle -------------------------------------------------------------------


def failing() -> None:
    raise OSError(5, "made up")


def buggy() -> None:
    raise KeyError("a bug")


def damaged(fd: int, size_bytes: int) -> dict[str, Any]:
    raise ValueError("checksum")


def unfit() -> None:
    raise ValueError("12 inodes need more room")


def test_core_fails_on_a_new_file(core: Core, run: Run, shm: Path) -> None:
    core.on_mkfs = failing
    assert run("--size", "1M", shm / "p").code == Exit.IO_ERROR
    core.check = unfit
    result = run("--size", "1M", shm / "p")
    assert result.code == Exit.GEOMETRY and "12 inodes need more room" in result.err
    core.check = buggy
    result = run("--size", "1M", shm / "p")
    assert result.code == Exit.INTERNAL and "Traceback" in result.err
    assert list(shm.iterdir()) == []


def test_core_fails_on_an_old_pool(core: Core, run: Run, shm: Path) -> None:
    """What is left must not be half of the old and half of the new."""
    path = shm / "p"
    assert run("--size", "1M", path).code == 0
    core.on_mkfs = failing
    result = run("--force", "--size", "2M", path)
    assert result.code == Exit.IO_ERROR
    assert "held before is lost" in result.err
    assert path.read_bytes()[:8192] == bytes(8192)
    assert path.stat().st_size == MIB
    core.on_mkfs = lambda: None
    assert run(path).code == 0  # and it needs no force


def test_core_refuses_the_numbers(core: Core, run: Run, shm: Path) -> None:
    path = shm / "p"
    assert run("--size", "2M", path).code == 0
    before = digest(path)
    core.check = unfit
    for size in ("1M", "4M"):
        result = run("--force", "--size", size, path)
        assert result.code == Exit.GEOMETRY
        assert "lost" not in result.err
        assert digest(path) == before


# Where a child process finds what this one has imported.
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

# A process of its own, to be hit by signals; it says when it has got to the given step.
VICTIM = (
    """
import signal, sys, time, types
core = types.ModuleType("belugafs._native")
exec("""
    + repr(CORE)
    + """, core.__dict__)
sys.modules["belugafs._native"] = core
from belugafs import mkfs
from belugafs._pool import alloc

def wait(*args, **options):
    print("there", flush=True)
    time.sleep(60)

if sys.argv[1] == "taking memory":
    alloc._populate = wait
else:
    core.on_mkfs = wait
signal.signal(signal.SIGINT, signal.default_int_handler)
mkfs.main(sys.argv[2:])
"""
)


def hit(step: str, signum: int, *args: str | Path) -> tuple[int, str]:
    with subprocess.Popen(
        [sys.executable, "-c", VICTIM, step, *args],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "there\n"
        process.send_signal(signum)
        _, err = process.communicate(timeout=30)
        return process.returncode, err


STEPS = ["taking memory", "writing the pool"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("signum", "code"),
    [
        (signal.SIGINT, Exit.INTERRUPTED),
        (signal.SIGTERM, Exit.TERMINATED),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_signal_leaves_nothing(shm: Path, step: str, signum: int, code: int) -> None:
    returncode, err = hit(step, signum, "--size", "8M", shm / "p")
    assert returncode == code
    assert signum == signal.SIGKILL or "no pool was made" in err
    assert list(shm.iterdir()) == []


@pytest.mark.parametrize("step", STEPS)
def test_signal_on_an_old_pool(core: Core, run: Run, shm: Path, step: str) -> None:
    path = shm / "p"
    assert run("--size", "1M", path).code == 0
    before = digest(path)
    returncode, err = hit(step, signal.SIGINT, "--force", "--size", "8M", path)
    assert returncode == Exit.INTERRUPTED
    assert path.stat().st_size == MIB
    if step == "taking memory":
        assert digest(path) == before
        assert "lost" not in err
    else:
        assert path.read_bytes()[:8192] == bytes(8192)
        assert "held before is lost" in err


def test_progress_bar_only_on_a_terminal(shm: Path) -> None:
    code = """
import sys, types
core = types.ModuleType("belugafs._native")
exec(sys.argv[1], core.__dict__)
sys.modules["belugafs._native"] = core
from belugafs import mkfs
mkfs.main(sys.argv[2:])
"""
    terminal, inside = os.openpty()
    seen = {}
    for name, err in (("terminal", inside), ("pipe", subprocess.PIPE)):
        done = subprocess.run(
            [sys.executable, "-c", code, CORE, "--size", "1M", shm / name],
            env={**ENVIRONMENT, "TERM": "xterm"},
            stdout=subprocess.PIPE,
            stderr=err,
            check=True,
        )
        assert b"taking memory" not in done.stdout
        seen[name] = done.stderr
    os.set_blocking(terminal, False)
    assert b"taking memory" in os.read(terminal, 65536)
    assert seen["pipe"] == b""
    os.close(terminal)
    os.close(inside)


# ---- the real core ----------------------------------------------------------------------------


def test_limits_are_those_of_the_format() -> None:
    format_module = pytest.importorskip("belugafs.format")
    assert request.HOSTS_MAX == format_module.HOSTS_MAX
    assert format_module.MAGIC == b"BELUGAFS"
    assert (format_module.SB_OFF_A, format_module.SB_OFF_B) == (0, 4096)


def test_real_core(run: Run, shm: Path) -> None:
    pytest.importorskip("belugafs._native", reason="the C core is not built")
    path = shm / "p"
    result = run("--json", "--size", "64M", "--label", "x", path)
    assert result.code == 0, result.err
    assert 0 < result.json["data_bytes"] < 64 * MIB
    assert result.json["inodes"] > 0
    assert content(path) == "belugafs"
    assert run(path).code == Exit.HOLDS_POOL
    assert run("--force", path).code == 0
    before = digest(path)
    refused = run("--force", "--size", "64K", path)
    assert refused.code == Exit.GEOMETRY, refused.err
    assert digest(path) == before
    assert run("--size", "4K", shm / "q").code == Exit.GEOMETRY
    assert [name.name for name in shm.iterdir()] == ["p"]

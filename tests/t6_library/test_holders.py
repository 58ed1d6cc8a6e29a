"""Who holds what: processes that read in place, in ``belugafs status`` and ``belugafs holders``."""

from __future__ import annotations

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

import belugafs
from belugafs import _native, held, leases, mounts
from belugafs.format import LocalLease

pytestmark = pytest.mark.flat_pool

KEY_BYTES = 32
BLOCK_BYTES = 20 << 10

READER = """
import sys, belugafs
pool = belugafs.connect(sys.argv[1])
ns = pool.namespace("llama")
blocks = ns.read([i.to_bytes(32, "big") for i in range(int(sys.argv[2]))])
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def mounted(unmounted_pool: Any, attach: Any) -> Any:
    """Ten blocks in a pool that is mounted."""
    core = attach(unmounted_pool.pool_path)
    ns = core.ns_create("llama")
    for number in range(10):
        core.block_put(ns, number.to_bytes(KEY_BYTES, "big"), bytes([number]) * BLOCK_BYTES)
    core.close()
    unmounted_pool.mount()
    return unmounted_pool


@pytest.fixture
def reader(mounted: Any) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds four blocks."""
    command = [sys.executable, "-c", READER, str(mounted.path), "4"]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    yield child
    child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout):
        assert stream is not None
        stream.close()


def status(mounted: Any, *where: object) -> Any:
    done = mounted.command("belugafs.cli", "status", "--json", *map(str, where))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def holders(mounted: Any, *arguments: object, code: int = 0) -> Any:
    done = mounted.command("belugafs.cli", "holders", "--json", *map(str, arguments))
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def named(number: int) -> Path:
    """Where block ``number`` is in the mount, below its namespace."""
    name = number.to_bytes(KEY_BYTES, "big").hex()
    return Path("llama", name[:2], name[2:4], name)


def test_status_says_who_reads_in_place(mounted: Any, reader: subprocess.Popen[str]) -> None:
    (by,) = status(mounted, mounted.path)["readers"]
    command = Path(f"/proc/{reader.pid}/comm").read_text().strip()
    assert by["pid"] == reader.pid
    assert by["command"] == command
    assert by["uid"] == os.geteuid()
    assert (by["blocks"], by["bytes"]) == (4, 4 * BLOCK_BYTES)
    text = mounted.command("belugafs.cli", "status", str(mounted.path)).stdout
    assert f"4 blocks, 80 KiB by process {reader.pid} ({command}), since {by['since']}" in text
    # Another one, in this process; the one that holds more comes first.
    with belugafs.connect(mounted.path) as pool:
        keys = [number.to_bytes(KEY_BYTES, "big") for number in range(10)]
        with pool.namespace("llama").read(keys):
            found = [(by["pid"], by["blocks"]) for by in status(mounted, mounted.path)["readers"]]
            assert found == [(os.getpid(), 10), (reader.pid, 4)]
        assert [by["blocks"] for by in status(mounted, mounted.path)["readers"]] == [4, 0]


def test_reserved_room_is_told(mounted: Any) -> None:
    with belugafs.connect(mounted.path) as pool:
        ns = pool.namespace("llama")
        rooms = [ns.reserve([bytes([9, at]) * 16 for at in range(3)], 10_000) for _ in range(2)]
        (by,) = status(mounted, mounted.path)["readers"]
        assert (by["blocks"], by["reserved_bytes"]) == (0, 2 * 3 * 12288)
        text = mounted.command("belugafs.cli", "status", str(mounted.path)).stdout
        assert "0 blocks, 0 B, 72 KiB reserved by process" in text
        for room in rooms:
            room.drop()
        (by,) = status(mounted, mounted.path)["readers"]
        assert by["reserved_bytes"] == 0


def test_status_without_a_daemon(mounted: Any, reader: subprocess.Popen[str]) -> None:
    """Killed or unmounted: what is held is still said, until the process ends."""
    mounted.kill9()
    (dead,) = [r for r in status(mounted) if r["mount_point"] == str(mounted.path)]
    assert dead["error"]
    assert [(by["pid"], by["blocks"]) for by in dead["readers"]] == [(reader.pid, 4)]
    assert "4 blocks, 80 KiB by process" in mounted.command("belugafs.cli", "status").stdout
    mounted.mount()
    assert [by["blocks"] for by in status(mounted, mounted.path)["readers"]] == [4]
    mounted.umount()
    unmounted = status(mounted, mounted.pool_path)
    assert unmounted["mount_point"] is None
    assert [(by["pid"], by["blocks"]) for by in unmounted["readers"]] == [(reader.pid, 4)]
    reader.kill()
    reader.wait()
    assert status(mounted, mounted.pool_path)["readers"] == []


def test_others_are_told_nothing(mounted: Any, reader: subprocess.Popen[str]) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can ask as somebody else")
    config = {"library_socket": mounted.config()["library_socket"]}
    script = "import os; from belugafs import leases; os.setuid(65534); "
    script += f"print(leases.of_mount({config!r}))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "None\n"


def test_holders_of_a_file(mounted: Any, reader: subprocess.Popen[str]) -> None:
    leased, free = mounted.path / named(2), mounted.path / named(7)
    assert leased.exists() and free.exists()
    (by,) = holders(mounted, leased)
    assert (by["pid"], by["uses"]) == (reader.pid, ["reads 20 KiB of it in place"])
    assert holders(mounted, free) == []
    text = mounted.command("belugafs.cli", "holders", str(free)).stdout
    assert "nothing is seen to hold" in text
    with leased.open("rb") as file, leased.open("rb"), (mounted.path / named(3)).open("rb"):
        found = {by["pid"]: by["uses"] for by in holders(mounted, leased)}
        assert found == {os.getpid(): ["2 times open"], reader.pid: ["reads 20 KiB of it in place"]}
        memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    with memory:
        # Python's mapping has a descriptor of its own.
        uses = {by["pid"]: by["uses"] for by in holders(mounted, leased)}[os.getpid()]
        assert uses == ["open", "mapped"]
    text = mounted.command("belugafs.cli", "holders", str(leased)).stdout
    assert f"is held by process {reader.pid} (" in text
    # A directory is the mount's, whoever reads in place: that keeps no umount waiting.
    assert holders(mounted, mounted.path / "llama") == []
    assert "No such file" in holders(mounted, mounted.path / "none", code=2)["error"]


def test_all_that_is_leased_by_path(mounted: Any, reader: subprocess.Popen[str]) -> None:
    expected = [str(mounted.path / named(number)) for number in range(4)]
    entries = holders(mounted, "--leased", mounted.path)
    assert [entry["path"] for entry in entries] == expected
    assert {entry["pid"] for entry in entries} == {reader.pid}
    assert {entry["bytes"] for entry in entries} == {BLOCK_BYTES}
    assert [entry["inode"] for entry in entries] == [os.stat(path).st_ino for path in expected]
    # Deleted, it is held all the same, and listed without a name.
    os.unlink(expected[1])
    entries = holders(mounted, "--leased", mounted.path)
    assert [entry["path"] for entry in entries] == [expected[0], *expected[2:], None]
    text = mounted.command("belugafs.cli", "holders", "--leased", str(mounted.path)).stdout
    assert len(text.splitlines()) == 4
    assert "which has no name any more" in text
    reader.kill()
    reader.wait()
    text = mounted.command("belugafs.cli", "holders", "--leased", str(mounted.path)).stdout
    assert text == "nothing is read in place\n"


def test_leases_that_somebody_has_spoilt(mounted: Any, reader: subprocess.Popen[str]) -> None:
    """A process may write into its file what it likes, and cut it: nothing is believed."""
    directory = mounted.config()["library_socket"].removesuffix(".sock")
    (path,) = Path(directory).glob("lease.*")
    at = {field.name: field.offset for field in LocalLease.layout()}
    whole = path.read_bytes()

    def told(offset: int, data: bytes) -> Any:
        path_fd = os.open(path, os.O_RDWR)
        try:
            os.pwrite(path_fd, data, offset)
            return leases.of_mount(mounted.config())
        finally:
            os.pwrite(path_fd, whole, 0)
            os.close(path_fd)

    assert told(at["magic"], b"x") == []
    assert told(at["version"], b"\xff") == []
    (more,) = told(at["high"], b"\xff\xff\xff\xff")
    assert len(more.held) == 4
    (big,) = told(at["held"] + 8, b"\xff" * 8)
    assert big.size_bytes == (3 * BLOCK_BYTES) + 65536 * _native.GRANULE_BYTES
    (when,) = told(at["made_ns"], b"\xff" * 8)
    assert when.as_dict()["since"]
    os.truncate(path, at["held"])
    (cut,) = leases.of_mount(mounted.config()) or []
    assert cut.held == []
    os.truncate(path, 100)
    assert leases.of_mount(mounted.config()) == []
    os.truncate(path, len(whole))
    path.write_bytes(whole)


def test_a_mount_that_hangs_hangs_nobody(mounted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "_ANSWER_LIMIT_S", 0.5)
    mount = mounts.mount_holding(str(mounted.path))
    assert mount is not None
    os.kill(mounted.daemon_pid, signal.SIGSTOP)
    try:
        begin = time.monotonic()
        assert held.file_holders(mount, str(mounted.path / "llama/none")) is None
        assert time.monotonic() - begin < 20
    finally:
        os.kill(mounted.daemon_pid, signal.SIGCONT)

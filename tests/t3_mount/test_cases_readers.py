"""Eviction against those who read, write and look: a miss is ENOENT at open, and nothing else
is ever seen; a dead writer's rest goes first."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from blocks import KIB, MIB, audit, content, get, names, put, running, wait_for

DURATIONS = [
    pytest.param(5.0, id="short"),
    pytest.param(60.0, id="long", marks=[pytest.mark.full_size, pytest.mark.timeout(240)]),
]


@pytest.mark.parametrize("unmounted_pool", [32 * MIB], indirect=True)
def test_an_open_block_stays_readable(mounted_pool: Any) -> None:
    """Under pressure, and unlinked by somebody else: the descriptor reads on to the end."""
    top = mounted_pool.path
    path = put(top, "ev/a")
    with open(path, "rb", buffering=0) as file:
        head = file.read(1000)
        for number in range(80):
            put(top, f"fill/{number}")
        assert head + file.read() == content("ev/a", MIB)
        os.unlink(path)
        assert os.pread(file.fileno(), 2 * MIB, 0) == content("ev/a", MIB)
        assert os.fstat(file.fileno()).st_size == MIB
    with pytest.raises(FileNotFoundError):
        os.unlink(path)
    # the same by eviction: whoever is about to unlink finds it gone, and nothing worse
    path = put(top, "ev/b")
    for number in range(80):
        put(top, f"fill/{number}b")
    with pytest.raises(FileNotFoundError):
        os.unlink(path)
    with pytest.raises(FileNotFoundError):
        os.open(path, os.O_RDONLY)


@pytest.mark.parametrize("seconds", DURATIONS)
@pytest.mark.parametrize("unmounted_pool", [64 * MIB], indirect=True)
def test_readers_and_writers_under_constant_eviction(mounted_pool: Any, seconds: float) -> None:
    """Eight readers, four writers, 2,000 keys in a pool for some 200 of them."""
    top = mounted_pool.path
    size = 256 * KIB
    keys = [f"k/{number % 32:02x}/{number}" for number in range(2000)]
    for number in range(32):
        (top / f"k/{number:02x}").mkdir(parents=True)
    hits = 0

    def write() -> None:
        put(top, random.choice(keys), size)

    def read() -> None:
        nonlocal hits
        key = random.choice(keys)
        try:
            fd = os.open(top / key, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            assert os.fstat(fd).st_size == size, key
            data = os.read(fd, size + 1)
            assert data == content(key, size), (key, len(data))
            hits += 1
        finally:
            os.close(fd)

    with running(*[read] * 8, *[write] * 4) as errors:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not errors:
            time.sleep(0.1)
    assert errors == []
    assert hits > 10
    assert int(mounted_pool.stats()["evicted_blocks"]) > 10
    assert audit(top, size) == []


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(5.0, id="short"),
        pytest.param(300.0, id="long", marks=[pytest.mark.full_size, pytest.mark.timeout(480)]),
    ],
)
@pytest.mark.parametrize("unmounted_pool", [32 * MIB], indirect=True)
def test_no_call_waits_for_an_invalidation(mounted_pool: Any, seconds: float) -> None:
    """Sixteen threads look up, create, rename and list in the same directories while blocks go
    all the time: no call takes long, and none is left waiting in the kernel."""
    top = mounted_pool.path
    for number in range(4):
        (top / f"{number}").mkdir()
    slowest = 0.0

    def timed(call: Any) -> Any:
        def run() -> None:
            nonlocal slowest
            started = time.monotonic()
            with contextlib.suppress(FileNotFoundError):
                call(f"{random.randrange(4)}/{random.randrange(300)}")
            slowest = max(slowest, time.monotonic() - started)

        return run

    works = [
        timed(lambda name: os.stat(top / name)),
        timed(lambda name: put(top, name, 256 * KIB)),
        timed(lambda name: os.rename(top / name, top / f"{name}r")),
        timed(lambda name: os.listdir(top / name.split("/")[0])),
    ]
    with running(*works * 4) as errors:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not errors:
            time.sleep(0.1)
    assert errors == []
    assert slowest < 5
    assert int(mounted_pool.stats()["evicted_blocks"]) > 0
    connection = mounted_pool.connection()
    if connection is not None and connection.exists():
        wait_for(lambda: (connection / "waiting").read_text().strip() == "0")


WRITER = r"""
import os, sys, time
fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
os.write(fd, b"\5" * 2_000_000)
print("ready", flush=True)
sys.stdin.readline()
os.write(fd, b"\6" * 2_000_000)
os.close(fd)
os.rename(sys.argv[1], sys.argv[1].removesuffix(".tmp"))
print("done", flush=True)
"""


def start_writer(path: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.parametrize("unmounted_pool", [32 * MIB], indirect=True)
def test_what_a_dead_writer_left_goes_first(mounted_pool: Any) -> None:
    """Half a file of a killed process is evicted before any whole block; one that is still being
    written is not, and gets its final name."""
    top = mounted_pool.path
    put(top, "oldest", MIB)
    dead, live = start_writer(top / "dead.tmp"), start_writer(top / "live.tmp")
    dead.kill()
    dead.wait()
    wait_for(lambda: os.getxattr(top / "dead.tmp", "user.beluga.state") == b"abandoned")
    number = 0
    while int(mounted_pool.stats()["evicted_blocks"]) == 0:
        put(top, f"fill/{number}", MIB)
        number += 1
    assert not (top / "dead.tmp").exists()
    assert get(top, "oldest") == content("oldest", MIB)
    for number in range(60):
        put(top, f"more/{number}", MIB)
    live.communicate(b"\n", timeout=20)
    assert live.returncode == 0
    assert (top / "live").read_bytes() == b"\5" * 2_000_000 + b"\6" * 2_000_000
    assert [name for name in names(top) if "tmp" in name] == []


def test_what_a_dead_writer_unlinked_comes_back(mounted_pool: Any) -> None:
    """Open, unlink, write, and be killed: nothing is left."""
    code = (
        "import os, sys, time\n"
        "fd = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR); os.unlink(sys.argv[1])\n"
        "os.write(fd, bytes(5_000_000)); print('ready', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(mounted_pool.path / "x")], stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    assert int(mounted_pool.stats()["used_granules"]) >= 5_000_000 // 4096
    process.kill()
    process.wait()
    wait_for(lambda: mounted_pool.stats()["used_granules"] == "0")
    assert mounted_pool.stats()["inodes_used"] == "1"

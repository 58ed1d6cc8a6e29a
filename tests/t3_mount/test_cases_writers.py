"""Processes that write under the final name and are killed in the middle of it."""

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
from blocks import KIB, MIB, content, get, put, running, wait_for

SIZE = 640 * KIB
ROUNDS = [
    pytest.param(15, id="few"),
    pytest.param(200, id="two hundred", marks=[pytest.mark.full_size, pytest.mark.timeout(600)]),
]

# Each line of stdin is a name; the file is written in pieces and closed.
WRITER = r"""
import os, sys, time
sys.path.insert(0, sys.argv[2])
from blocks import content
top = sys.argv[1]
for line in sys.stdin:
    name = line.rstrip("\n")
    data = content(name, 640 << 10)
    fd = os.open(f"{top}/{name}", os.O_CREAT | os.O_WRONLY)
    for at in range(0, len(data), 64 << 10):
        os.write(fd, data[at : at + (64 << 10)])
        if at == 64 << 10: print("begun", flush=True)
        time.sleep(0.0005)
    os.close(fd)
    print("closed", flush=True)
"""


class Writer:
    """A process that writes files, to be killed."""

    def __init__(self, top: Path) -> None:
        command = [sys.executable, "-c", WRITER, str(top), os.path.dirname(__file__)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def write(self, name: str) -> None:
        """Begin; a part is written when this returns."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "begun\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize("count", ROUNDS)
def test_with_publish_close_nothing_short_can_be_opened(unmounted_pool: Any, count: int) -> None:
    """Somebody tries to open each name all the time: it isn't there, or it is whole."""
    unmounted_pool.mount("publish=close")
    top = unmounted_pool.path
    name = "none"

    def look() -> None:
        wanted = name
        with contextlib.suppress(FileNotFoundError):
            data = (top / wanted).read_bytes()
            assert data == content(wanted, SIZE), (wanted, len(data))

    whole = 0
    with running(look, look) as errors:
        for number in range(count):
            writer = Writer(top)
            name = f"f{number}"
            writer.write(name)
            time.sleep(random.uniform(0, 0.02))
            writer.kill()
            wait_for(lambda: unmounted_pool.stats()["open_for_write"] == "0")
            whole += name in os.listdir(top)
    assert errors == []
    for left in os.listdir(top):
        assert (top / left).read_bytes() == content(left, SIZE)
    # what was killed holds no space, once its turn has come
    assert int(unmounted_pool.stats()["nblocks"]) <= whole + count


@pytest.mark.parametrize("count", ROUNDS)
@pytest.mark.parametrize("unmounted_pool", [32 * MIB], indirect=True)
def test_by_default_the_half_file_is_there_and_marked(mounted_pool: Any, count: int) -> None:
    """As POSIX has it; its state tells, and it is the first to go."""
    top = mounted_pool.path
    put(top, "older", MIB)
    marked = []
    for number in range(count):
        writer = Writer(top)
        name = f"f{number}"
        writer.write(name)
        time.sleep(random.uniform(0, 0.01))
        writer.kill()
        wait_for(lambda: mounted_pool.stats()["open_for_write"] == "0")
        if not (top / name).exists():  # evicted: its turn had come
            continue
        data = (top / name).read_bytes()
        assert data == content(name, SIZE)[: len(data)]
        state = mounted_pool.settled_state(top / name)
        # killed between its last write and its close, it is marked too
        assert state == "abandoned" or (state == "sealed" and len(data) == SIZE)
        assert len(data) == SIZE or state == "abandoned"
        if state == "abandoned":
            marked.append(name)
        else:  # closed before the kill: a block like any other, which needn't go before another
            (top / name).unlink()
        assert mounted_pool.settled_state(top / "older") == "sealed"
    assert marked
    before = int(mounted_pool.stats()["evicted_blocks"])
    number = 0
    while int(mounted_pool.stats()["evicted_blocks"]) == before:
        put(top, f"fill{number}", 64 * KIB)
        number += 1
    # by open: stat may be answered out of the kernel's memory for a second
    assert any(get(top, name) is None for name in marked)
    assert get(top, "older") == content("older", MIB)


def test_output_of_a_command_that_timeout_ends(mounted_pool: Any) -> None:
    """The shell's descriptor was opened by somebody who wasn't killed: an ordinary file."""
    top = mounted_pool.path
    script = "timeout 0.4 sh -c 'while :; do echo x; done' > f || test $? = 124"
    subprocess.run(["bash", "-c", script], cwd=top, check=True, timeout=30)
    assert os.stat(top / "f").st_size > 100
    assert set((top / "f").read_bytes()) == {ord("x"), ord("\n")}
    assert mounted_pool.settled_state(top / "f") == "sealed"

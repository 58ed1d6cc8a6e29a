"""docs/semantics.md, run: its examples, and its table of crashes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs/semantics.md"
MIB = 1 << 20


def examples() -> Iterator[list[tuple[str, str]]]:
    """Each block of the page: its commands, each with what it is to print."""
    for block in re.findall(r"^```console\n(.*?)^```", PAGE.read_text(), re.M | re.S):
        steps: list[tuple[str, str]] = []
        for line in block.splitlines(keepends=True):
            command, output = steps[-1] if steps else ("", "")
            if line.startswith("$ "):
                steps.append((line[2:], ""))
            elif line.startswith("> ") or line == ">\n":
                steps[-1] = (command + line[2:], output)
            else:
                steps[-1] = (command, output + line)
        yield steps


def run(steps: list[tuple[str, str]], directory: Path) -> list[str]:
    """What each command prints, in one shell."""
    end = "\x01"
    script = "".join(f"{command}printf '{end}'\n" for command, _ in steps)
    here = os.path.dirname(sys.executable)
    environment = {**os.environ, "LC_ALL": "C", "PATH": f"{here}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", f"exec 2>&1\n{script}"],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    return done.stdout.split(end)[:-1]


@pytest.mark.flat_pool  # it shows figures of blocks
def test_the_examples_of_the_page(mounted_pool: Any) -> None:
    blocks = list(examples())
    assert len(blocks) >= 6
    directory = mounted_pool.path / "examples"
    directory.mkdir()
    for steps in blocks:
        printed = run(steps, directory)
        for (command, expected), found in zip(steps, printed, strict=True):
            assert found == expected, command


# ---- the table of crashes -----------------------------------------------------------------------

BASE = b"sealed" * 50_000
CHANGE = b"newer!" * 20_000

# A writer that stops in the state, says so, and waits to be killed.
WRITER = r"""
import os, sys
top, state = sys.argv[1:]
base, change = b"sealed" * 50_000, b"newer!" * 20_000
path = f"{top}/f"
def write(fd, data): assert os.write(fd, data) == len(data)
if state in ("new", "new synced", "removed"):
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
    write(fd, base)
    if state == "new synced": os.fsync(fd)
    if state == "removed": os.unlink(path)
elif state == "abandoned":
    child = os.fork()
    if not child:
        write(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR), base)
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
else:
    with open(path, "xb", buffering=0) as file: write(file.fileno(), base)
    if state.startswith("dirty"):
        fd = os.open(path, os.O_RDWR)
        os.lseek(fd, 60_000, 0)
        write(fd, change)
        if state == "dirty synced": os.fsync(fd)
    if state == "name":
        os.mkdir(f"{top}/d", 0o700)
        os.rename(path, f"{top}/d/f")
        os.setxattr(f"{top}/d/f", "user.note", b"kept")
        os.chmod(f"{top}/d/f", 0o600)
print("there", flush=True)
sys.stdin.read()
"""

# The first words of the rows of the table, and what the writer calls these states.
STATES = {
    "`new`: being": "new",
    "`new`, and synced": "new synced",
    "`sealed`": "sealed",
    "`dirty`: written": "dirty",
    "`dirty`, and synced": "dirty synced",
    "`abandoned`": "abandoned",
    "removed": "removed",
    "a name": "name",
}


def table() -> dict[tuple[str, str], str]:
    """(state, what dies): the cell of the page."""
    text = PAGE.read_text().partition("## Crashes")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|\n").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    header, _, *body = rows
    cells = {}
    for row in body:
        (state,) = (name for start, name in STATES.items() if row[0].startswith(start))
        for who, cell in zip(header[1:3], row[1:3], strict=True):
            cells[state, who] = cell
    return cells


def check(mounted_pool: Any, state: str, cell: str) -> None:
    """What is there now is what the cell says."""
    top = mounted_pool.path
    path = top / ("d/f" if state == "name" else "f")
    if cell == "gone":
        assert not path.exists()
        assert os.listdir(top) == []
        return
    content = path.read_bytes()
    changed = BASE[:60_000] + CHANGE + BASE[60_000 + len(CHANGE) :]
    if cell == "each byte old or new":
        assert len(content) == len(BASE)
        for byte, old, new in zip(content, BASE, changed, strict=True):
            assert byte in (old, new)
        return
    assert cell in ("whole", "as written", "`abandoned`")
    assert content == (changed if state.startswith("dirty") else BASE)
    expected = "abandoned" if cell == "`abandoned`" else "sealed"
    assert mounted_pool.settled_state(path) == expected
    if state == "name":
        assert os.getxattr(path, "user.note") == b"kept"
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700


def crash(mounted_pool: Any, state: str, who: str, cell: str) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(mounted_pool.path), state],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert writer.stdin and writer.stdout
    try:
        assert writer.stdout.readline() == b"there\n"
        if who == "daemon":
            mounted_pool.kill9()
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait(20)
        writer.stdin.close()
        writer.stdout.close()
    if who == "daemon":
        mounted_pool.assert_clean()
        mounted_pool.mount()
    check(mounted_pool, state, cell)
    subprocess.run(["rm", "-rf", *mounted_pool.path.glob("*")], check=True)


@pytest.mark.parametrize("who", ["writer", "daemon"])
def test_the_table_of_crashes(mounted_pool: Any, who: str) -> None:
    cells = {state: cell for (state, column), cell in table().items() if column == who}
    assert set(cells) == set(STATES.values())
    for state, cell in cells.items():
        crash(mounted_pool, state, who, cell)


def test_publish_close_leaves_no_name_of_a_killed_writer(unmounted_pool: Any) -> None:
    unmounted_pool.mount("publish=close")
    for state in ("new", "new synced"):
        crash(unmounted_pool, state, "writer", "gone")

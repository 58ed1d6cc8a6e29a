"""The table of docs/zero-copy.md: who gets the pool's own pages. Each row is looked at as it is,
and compared with what the page says."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from belugafs import pinning

MIB = 1 << 20
SIZE = 4 * MIB
PAGE = Path(__file__).parents[2] / "docs/zero-copy.md"

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may mount the tmpfs of a directory pool"
)
ROWS = [
    pytest.param("file", "", "flat pool: a file of the mount", id="flat mount"),
    pytest.param("file", "", "flat pool: the pool's file itself", id="flat pool"),
    *(
        pytest.param("directory", options, f"directory pool: {what}", id=what, marks=needs_root)
        for options, what in (
            ("off", "a file of the mount, without passthrough"),
            ("auto", "a file of the mount, with passthrough"),
            ("off", "the backing file itself"),
        )
    ),
]


def _table() -> dict[str, list[str]]:
    lines = PAGE.read_text().partition("| what is mapped |")[2].partition("\n\n")[0].splitlines()
    rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:])
    return {name: cells for name, *cells in rows}


def test_every_row_is_tested() -> None:
    assert set(_table()) == {str(row.values[2]) for row in ROWS}


def _huge_kib(mapping: mmap.mmap) -> int:
    """How much of a mapping, all of which was touched, is mapped by huge pages."""
    start = pinning.address_of(mapping)
    text = Path("/proc/self/smaps").read_text()
    one = re.search(rf"^{start:x}-.*?(?=^[0-9a-f]+-|\Z)", text, re.MULTILINE | re.DOTALL)
    assert one, hex(start)
    sizes = re.findall(r"^(?:ShmemPmdMapped|FilePmdMapped): +(\d+) kB", one[0], re.MULTILINE)
    return sum(map(int, sizes))


def _pinned(mapping: mmap.mmap) -> bool:
    found = pinning.pin_by_io_uring(pinning.address_of(mapping), SIZE)
    if found.works is None:
        pytest.skip(found.text)
    return found.works


@contextlib.contextmanager
def _mapped(place: Path, offset: int) -> Iterator[mmap.mmap]:
    fd = os.open(place, os.O_RDWR)
    try:
        with mmap.mmap(fd, SIZE, offset=offset) as mapping:
            assert sum(mapping[at] for at in range(0, SIZE, mmap.PAGESIZE)) >= 0  # touch all
            yield mapping
    finally:
        os.close(fd)


@pytest.mark.parametrize(("pool_kind", "passthrough", "row"), ROWS)
def test_row(unmounted_pool: Any, passthrough: str, row: str) -> None:
    own_pages, at_once, huge, pinned = _table()[row]
    unmounted_pool.mount(f"passthrough={passthrough}" if passthrough else "")
    path: Path = unmounted_pool.path / "f"
    path.write_bytes(b"\1" * SIZE)
    lines = (unmounted_pool.path / ".beluga/config").read_text().splitlines()
    config = dict(line.partition(" ")[::2] for line in lines)
    if row.endswith(", with passthrough") and config.get("passthrough") != "on":
        pytest.skip(f"no passthrough here: {config.get('passthrough_reason')}")
    stored = unmounted_pool.stored_at(path, 0)
    through = stored if row.endswith("itself") else (path, 0)
    with _mapped(*through) as mapping, _mapped(*stored) as pool:
        pool_huge = _huge_kib(pool)
        assert _huge_kib(mapping) == (pool_huge if huge == "as the pool's" else 0)
        mapping[5] = 2
        assert pool[5] == (2 if at_once == "yes" else 1)
        mapping[5] = 1
        pool[6] = 2
        assert mapping[6] == (2 if at_once == "yes" else 1)
        pool[6] = 1
        assert _pinned(mapping) == (pinned == "yes")
        assert own_pages == at_once  # the same pages are what makes it so
        if row.endswith("itself"):
            return  # what is stored there, and stays, is damage: nobody said that it would be
        mapping[7] = 3
        mapping.flush()
    fresh, offset = unmounted_pool.stored_at(path, 0)
    with open(fresh, "rb") as file:
        file.seek(offset)
        assert file.read(8) == b"\1\1\1\1\1\1\1\3"


@pytest.mark.parametrize(
    ("pool_kind", "options"),
    [
        ("file", ""),
        pytest.param("directory", "", marks=needs_root),
        ("file", "ro"),
        ("file", "transport=pyfuse3"),
    ],
)
def test_doctor_says_what_can_be_pinned(unmounted_pool: Any, pool_kind: str, options: str) -> None:
    """And what to do where it can't; nothing is left of the file that it is tried with."""
    unmounted_pool.mount(options)
    done = unmounted_pool.command("belugafs.cli", "doctor", "--json", str(unmounted_pool.path))
    name = f"mount {unmounted_pool.path}"
    (found,) = (item for item in json.loads(done.stdout) if item["name"] == name)
    with_passthrough = unmounted_pool.passthrough
    assert f"pool: {'directory' if pool_kind == 'directory' else 'tmpfs'}" in found["text"]
    assert "huge pages" in found["text"]
    if options == "ro":
        assert "read-only" in found["text"]
        return
    if "can't be tried" not in found["text"]:
        assert found["state"] == ("ok" if with_passthrough else "limited")
        assert ("can't be pinned" in found["text"]) != with_passthrough
        assert with_passthrough or "passthrough" in found["text"]  # the advice
    assert os.listdir(unmounted_pool.path) == []
    assert unmounted_pool.stats()["inodes_used"] == "1"


def test_doctor_tells_a_mount_that_is_dead_or_hangs(mounted_pool: Any) -> None:
    command = ("belugafs.cli", "doctor", str(mounted_pool.path))
    mounted_pool.stop_daemon()
    try:
        assert "doesn't answer" in mounted_pool.command(*command).stdout
    finally:
        os.kill(mounted_pool.daemon_pid, signal.SIGCONT)
    mounted_pool.kill9()
    assert "its daemon is dead; mounting it again heals it" in mounted_pool.command(*command).stdout
    done = mounted_pool.command("belugafs.cli", "doctor", "/")
    assert (done.returncode, "not in a belugafs mount" in done.stderr) == (1, True)

"""Blocks with a content that follows from their name, for tests on a mount."""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

KIB = 1 << 10
MIB = 1 << 20

BOTH_KINDS = pytest.mark.parametrize(
    "pool_kind",
    [
        "file",
        pytest.param(
            "directory",
            marks=pytest.mark.skipif(
                os.geteuid() != 0, reason="only root may mount the tmpfs of a directory pool"
            ),
        ),
    ],
)
"""For tests that make pools of one kind and of the other, whatever the rest of the run has."""


@contextlib.contextmanager
def open_files_limit(wanted: int) -> Iterator[int]:
    """How many files this process may have open meanwhile: as wanted, where that may be set."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, max(limit, before[1])))
    except ValueError:  # no CAP_SYS_RESOURCE
        limit = before[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def content(name: str, size: int) -> bytes:
    """No two names, and no two places of one content, have the same eight bytes."""
    key = int.from_bytes(hashlib.sha256(os.fsencode(name)).digest()[:8], "little") | 1
    numbers = np.arange(1, size // 8 + 2, dtype=np.uint64) * np.uint64(key)
    return numbers.tobytes()[:size]


def put(top: Path, name: str, size: int = MIB) -> Path:
    """Store a block as engines do: under a temporary name, then by rename."""
    path = top / name
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = f"{path}.{os.getpid()}-{threading.get_ident()}.tmp"
    with open(temporary, "wb", buffering=0) as file:
        data = content(name, size)
        assert file.write(data) == size
    os.rename(temporary, path)
    return path


def get(top: Path, name: str) -> bytes | None:
    """The bytes of a block, None where there is none."""
    try:
        with open(top / name, "rb", buffering=0) as file:
            return file.read()
    except FileNotFoundError:
        return None


def names(top: Path) -> list[str]:
    """All published names, sorted."""
    found = []
    for directory, _, files in os.walk(top):
        place = os.path.relpath(directory, top)
        found += [os.path.normpath(os.path.join(place, name)) for name in files]
    return sorted(name for name in found if not name.endswith(".tmp"))


def audit(top: Path, size: int = MIB) -> list[str]:
    """The names of blocks that are there, and not whole and right."""
    wrong = []
    for name in names(top):
        data = get(top, name)
        if data is not None and data != content(name, size):
            wrong.append(name)
    return wrong


def used_bytes(top: Path) -> int:
    """What df shows as used."""
    found = os.statvfs(top)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def private_kib(pid: int) -> int:
    """Memory of a process that is its own alone: without the pool that it maps."""
    with open(f"/proc/{pid}/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return int(fields["RssAnon"].split()[0])


@contextlib.contextmanager
def running(*works: Any) -> Iterator[list[BaseException]]:
    """Each callable in a thread, called over and over until the block ends. What they raise is
    in the list; the first to raise ends its thread."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def run(work: Any) -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield errors
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a call on the mount hangs"


def wait_for(
    condition: Any, limit_s: float = 10, why: Callable[[], str] = lambda: "not so"
) -> None:
    """Until a condition holds; fails, and says why, when the time is over."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"{why()} after {limit_s} s"
        time.sleep(0.01)


def expect_used(top: Path, used: int) -> None:
    """That df comes to show this, in bytes. The kernel doesn't wait for the daemon when a file is
    closed, so what was deleted while it was open goes a moment after the close."""
    wait_for(lambda: used_bytes(top) == used, why=lambda: f"{used_bytes(top)} in use, not {used}")


def expect_blocks_of(directory: Path, size_bytes: int) -> None:
    """What is made in it from now on is taken to become no larger. What may become of any size has
    its stores seen by the daemon, unless the pool is large."""
    path = directory / "expected"
    with open(path, "wb") as file:
        file.truncate(size_bytes)
    path.unlink()

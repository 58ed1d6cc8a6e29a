"""Mappings of files of a mount: what they show while others evict, replace and rewrite, and what is
said of a file that somebody still has mapped."""

from __future__ import annotations

import collections
import json
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from blocks import BOTH_KINDS, MIB, wait_for

SIZE = 700_000  # the last of three checksummed chunks is short
WORKER = os.path.join(os.path.dirname(__file__), "mapping_worker.py")
PROCESSES = 16


@BOTH_KINDS
@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(3.0, id="short"),
        pytest.param(60.0, id="long", marks=[pytest.mark.full_size, pytest.mark.timeout(240)]),
    ],
)
@pytest.mark.parametrize("unmounted_pool", [40 * MIB], indirect=True)
def test_processes_that_map_evict_and_rewrite(mounted_pool: Any, seconds: float) -> None:
    """Not one wrong byte, in a pool that has room for two thirds of what they would store."""
    top = mounted_pool.path
    workers = [
        subprocess.Popen(
            [sys.executable, WORKER, str(top), str(number), str(seconds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    done: collections.Counter[str] = collections.Counter()
    failures = []
    for worker in workers:
        out, err = worker.communicate(timeout=seconds + 60)
        if worker.returncode:
            failures.append(f"exit status {worker.returncode}\n{err}")
        else:
            done.update(json.loads(out))
    assert not failures, "\n".join(failures)
    assert min(done[what] for what in ("map", "read", "replace", "rewrite", "look")) > 10, done
    assert done["evicted"] > 10, done
    assert done["lost"] * 50 <= done["replace"], done
    found = json.loads(mounted_pool.command("belugafs.cli", "verify", "--json", str(top)).stdout)
    assert found["damaged"] == []


# ---- what is said of a file that is still mapped -------------------------------------------------


def _verified(mounted_pool: Any, path: Path) -> tuple[int, int]:
    """Bytes that were compared with checksums, and bytes that have none. None is damaged."""
    done = mounted_pool.command("belugafs.cli", "verify", "--json", str(path))
    found = json.loads(done.stdout)
    assert (done.returncode, found["damaged"]) == (0, [])
    return found["checked_bytes"], found["unchecked_bytes"]


@BOTH_KINDS
@pytest.mark.parametrize(
    ("way", "verify"),
    [
        ("first writing", "first"),
        ("again", "first"),
        ("again", "always"),
        ("whole of it", "first"),
    ],
)
def test_stored_into_after_the_close(unmounted_pool: Any, way: str, verify: str) -> None:
    """Never damage, whoever looks; and as long as somebody can store into it, what is said to be
    verified is what is there. Once it is unmapped, it is a block like others, or ordinary."""
    unmounted_pool.mount(f"verify={verify}")
    path = unmounted_pool.path / "f"
    wanted = bytearray(os.urandom(SIZE))
    if way == "again":
        path.write_bytes(wanted)
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    if way != "again":
        assert os.write(fd, wanted) == SIZE
    with mmap.mmap(fd, SIZE) as mapping:
        os.close(fd)
        for step in range(4):
            if way == "whole of it":
                wanted[:] = mapping[:] = bytes([step]) * SIZE
            else:
                wanted[step * 200_000] = mapping[step * 200_000] = step
            checked, unchecked = _verified(unmounted_pool, path)
            assert checked + unchecked == SIZE
            if os.getxattr(path, "user.beluga.state") != b"sealed":
                assert checked == 0
            assert path.read_bytes() == wanted
            if step % 2:
                mapping.flush()
                assert path.read_bytes() == wanted
    wait_for(lambda: os.getxattr(path, "user.beluga.state") == b"sealed")
    assert _verified(unmounted_pool, path) == (SIZE, 0)
    unmounted_pool.remount(f"verify={verify}")
    assert path.read_bytes() == wanted
    assert _verified(unmounted_pool, path) == (SIZE, 0)

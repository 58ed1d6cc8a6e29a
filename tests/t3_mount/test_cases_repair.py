"""Random damage to metadata, repaired, and then served: right bytes or none."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from blocks import KIB, MIB, audit, content, names, put

PAGE = 4 * KIB


@pytest.mark.flat_pool
@pytest.mark.parametrize(
    ("rounds", "blocks"),
    [
        pytest.param(8, 200, id="few"),
        pytest.param(
            200, 1000, id="two hundred", marks=[pytest.mark.full_size, pytest.mark.timeout(1500)]
        ),
    ],
)
def test_random_pages_of_metadata(
    unmounted_pool: Any, native: Any, pool_dir: Path, rounds: int, blocks: int
) -> None:
    """Up to 64 pages become noise: fsck -y neither crashes nor hangs, what is mounted then has no
    wrong byte, and a second check is clean. Where nothing can be saved, it says so."""
    unmounted_pool.mount()
    contents = set()
    for number in range(blocks):
        name = f"m/{number % 16:x}/{number}"
        put(unmounted_pool.path, name, 24 * KIB)
        contents.add(content(name, 24 * KIB))
    unmounted_pool.umount()
    good: Path = unmounted_pool.pool_path
    whole = good.read_bytes()
    with open(good, "rb") as file:
        super_ = native.peek(file.fileno(), len(whole))
    first, end = super_["meta_off"] // PAGE, super_["data_off"] // PAGE
    unmounted_pool.pool_path = pool_dir / "damaged"
    unmounted_pool.expect_log(".")
    rng = random.Random(48)
    saved = 0
    kept = []
    for number in range(rounds):
        data = bytearray(whole)
        # pages in use lie in front: aim there, so that something is hit
        used = first + (end - first) // 4
        for _ in range(rng.randint(1, 64)):
            at = rng.randrange(first, used if rng.random() < 0.7 else end) * PAGE
            data[at : at + PAGE] = rng.randbytes(PAGE)
        unmounted_pool.pool_path.write_bytes(data)
        started = time.monotonic()
        done = unmounted_pool.command("belugafs.fsck", "-y", str(unmounted_pool.pool_path))
        assert time.monotonic() - started < 60
        assert done.returncode in (0, 1, 8), (number, done)
        if done.returncode == 8:
            assert "mkfs" in done.stderr, (number, done)
            continue
        saved += 1
        unmounted_pool.mount()
        top = unmounted_pool.path
        wrong = set(audit(top, 24 * KIB))
        # what has lost its name is whole all the same
        nameless = {name for name in wrong if name.startswith("lost+found/")}
        assert wrong == nameless, number
        assert {(top / name).read_bytes() for name in nameless} <= contents
        kept.append(len(names(top)))
        unmounted_pool.umount()
        unmounted_pool.assert_clean()
    print(f"{saved} of {rounds} pools saved, with {min(kept)} to {max(kept)} of {blocks} blocks")
    assert saved
    unmounted_pool.pool_path.unlink()
    assert good.stat().st_size == 64 * MIB

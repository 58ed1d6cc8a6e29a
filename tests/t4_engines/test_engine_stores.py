"""The file stores of engines, driven as the engines do, each by a fresh process on the mount.

The code under test is the engines' own, installed by `make engines-venv`; what drives it is in
engine_side/. No GPU and no model is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

RunSide = Callable[..., dict[str, Any]]


def test_sglang_file_storage(run_side: RunSide, kv_dir: Path) -> None:
    pages = 12
    stored = run_side("sglang_side.py", kv_dir, "store", str(pages), "32Mi")
    assert stored == {"stored": pages, "again": pages, "files": pages}
    found = run_side("sglang_side.py", kv_dir, "load", str(pages), "32Mi")
    assert found == {"prefix": pages, "exists": pages, "right": pages, "files": pages}

    # A page that was evicted ends the prefix; the others are there, and right.
    files = sorted(kv_dir.iterdir(), key=lambda file: file.stat().st_mtime_ns)
    files[5].unlink()
    found = run_side("sglang_side.py", kv_dir, "load", str(pages), "32Mi")
    assert found == {"prefix": 5, "exists": 11, "right": 11, "files": 11}


def test_sglang_keeps_its_own_limit(run_side: RunSide, kv_dir: Path) -> None:
    """Its limit is 2 MiB, four pages: it removes the oldest by itself."""
    stored = run_side("sglang_side.py", kv_dir, "store", "10", "2Mi")
    assert stored["stored"] == 10
    assert stored["files"] <= 4
    assert sum(file.stat().st_size for file in kv_dir.iterdir()) <= 2 << 20


@pytest.mark.parametrize("kind", ["local_disk", "local_disk_odirect"])
def test_lmcache_local_disk(run_side: RunSide, kv_dir: Path, kind: str) -> None:
    result = run_side("lmcache_side.py", kv_dir, kind)
    # 1 MiB here would switch O_DIRECT off without a word.
    assert result["block_bytes"] == 4096
    assert result["odirect"] == kind.endswith("odirect")
    assert result["stored"] == 6
    # It has room for four and evicts by itself.
    assert result["there"] == [False, False, True, True, True, True]
    assert result["right"] == 4
    # A file that vanished under it: an error of this one load, a miss afterwards.
    assert result["when_evicted"] in ("None", "KeyError")
    assert result["then_there"] is False
    assert result["files"] == 3


@pytest.mark.parametrize("kind", ["fs", "fs_odirect", "fs_native", "fs_native_odirect"])
def test_lmcache_level_2(run_side: RunSide, kv_dir: Path, kind: str) -> None:
    stored = run_side("lmcache_side.py", kv_dir, kind, "store")
    assert len(stored["files"]) == 6
    assert stored["sizes"] == [stored["chunk_bytes"]]
    assert not [name for name in stored["files"] if not name.endswith(".data")]
    # The filesystem evicts one; the rest is found, and two of it deleted.
    (kv_dir / stored["files"][3]).unlink()
    found = run_side("lmcache_side.py", kv_dir, kind, "load")
    there = [0, 1, 2, 4, 5]
    assert found["found"] == found["loaded"] == found["right"] == there
    assert found["files"] == [stored["files"][number] for number in (2, 4, 5)]


@pytest.mark.parametrize("how", ["direct", "buffered"])
@pytest.mark.parametrize("queue", ["aio", "uring", "posix_aio"])
def test_nixl_posix(run_side: RunSide, kv_dir: Path, queue: str, how: str) -> None:
    result = run_side("nixl_side.py", kv_dir, queue, how)
    assert "POSIX" in result["plugins"]
    assert (result["write"], result["read"]) == ("DONE", "DONE")
    assert result["same"] and result["same_by_read"]
    assert result["bytes"] == (kv_dir / "blocks.bin").stat().st_size == 16 << 20


def test_torch_and_safetensors(run_side: RunSide, kv_dir: Path) -> None:
    stored = run_side("tensors_side.py", kv_dir, "store")
    assert stored["sizes"] == [
        (kv_dir / "cache.pt").stat().st_size,
        (kv_dir / "cache.safetensors").stat().st_size,
    ]
    assert sorted(file.name for file in kv_dir.iterdir()) == ["cache.pt", "cache.safetensors"]
    loaded = run_side("tensors_side.py", kv_dir, "load")
    ways = ("torch.load", "torch.load by mmap", "load_file", "safe_open")
    assert loaded["right"] == dict.fromkeys(ways, True)
    assert loaded["slice"] is True
    assert loaded["model"] == "tiny"

"""docs/library.md, run: every example of it, on a mount with what the page speaks of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from belugafs import keys

pytestmark = pytest.mark.flat_pool

PAGE = Path(__file__).resolve().parents[2] / "docs/library.md"
BLOCK_BYTES = 64 << 10


def examples() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_every_example_runs(unmounted_pool: Any, make_pool: Any, attach: Any) -> None:
    chain = keys.chained(range(64), 16)
    chain_of_new = keys.chained(range(1000, 1080), 16)
    core = attach(unmounted_pool.pool_path)
    ns = core.ns_create("llama-3-8b")
    for number, key in enumerate(chain[:3]):
        core.block_put(ns, key, bytes([number]) * BLOCK_BYTES)
    core.close()
    unmounted_pool.mount()
    (unmounted_pool.path / "engine").mkdir()
    (unmounted_pool.path / "engine/0a1b.bin").write_bytes(b"KV of a prefix")

    used: list[int] = []
    names: dict[str, Any] = {
        "mount_point": str(unmounted_pool.path),
        "pool_path": str(make_pool()),
        "keys": chain,
        "new_keys": chain_of_new,
        "use": lambda array: used.append(int(array.sum())),
    }
    found = examples()
    assert len(found) >= 4
    for example in found:
        exec(compile(example, str(PAGE), "exec"), names)
    assert used == [number * 0x101 * BLOCK_BYTES // 2 for number in range(3)]
    unmounted_pool.await_stat("readers", 0)

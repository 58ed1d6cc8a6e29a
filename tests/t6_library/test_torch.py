"""Leased blocks as torch tensors: in this interpreter, if it has torch, and in vLLM's."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from belugafs.demo.mounting import DemoError
from belugafs.demo.vllm_flow import vllm_python

pytestmark = pytest.mark.flat_pool

ROOT = Path(__file__).resolve().parents[2]
CHECKS = Path(__file__).with_name("torch_checks.py")
BLOCK_BYTES = 300 << 10
"""As in torch_checks.py, which can be imported with torch only."""


@pytest.fixture
def filled(pool_file: Path, attach: Any) -> Path:
    core = attach(pool_file)
    ns = core.ns_create("llama")
    for number in range(4):
        words = np.arange(BLOCK_BYTES // 8, dtype=np.uint64) * np.uint64(number + 3)
        core.block_put(ns, number.to_bytes(32, "big"), words.tobytes())
    core.close()
    return pool_file


def run_checks(python: str | Path, pool: Path) -> None:
    done = subprocess.run(
        [python, CHECKS, pool],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"checked {CHECKS.read_text().count('(pool: Any)')}"


def test_tensors(filled: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch isn't installed: pip install torch==2.13.0, or 'belugafs[torch]'")
    run_checks(sys.executable, filled)


@pytest.mark.heavy
def test_tensors_of_vllms_torch(filled: Path) -> None:
    try:
        python = vllm_python()
    except DemoError as error:
        if os.environ.get("BELUGAFS_REQUIRE_VLLM") == "1":
            raise
        pytest.skip(str(error))
    run_checks(python, filled)

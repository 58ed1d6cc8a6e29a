"""Where the engine tests keep their blocks.

On a mounted pool, from the ``mounted_pool`` fixture of tests/conftest.py; or, with
``BELUGAFS_TEST_DIR=DIR``, below any directory, to tell an engine's fault from the filesystem's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from belugafs.demo.mounting import DemoError
from belugafs.demo.vllm_flow import make_tiny_model, vllm_python

SIDE = Path(__file__).parent / "engine_side"


@pytest.fixture
def kv_dir(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A fresh, empty directory on the filesystem under test."""
    given = os.environ.get("BELUGAFS_TEST_DIR")
    base = Path(given) if given else Path(request.getfixturevalue("mounted_pool").path)
    path = base / f"t4-{uuid.uuid4().hex[:8]}"
    path.mkdir(parents=True)
    yield path
    if given:
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random checkpoint for vLLM; its path is part of vLLM's file names. Without vLLM's
    environment the test is skipped, or fails where ``BELUGAFS_REQUIRE_VLLM=1``."""
    try:
        vllm_python()
    except DemoError as error:
        if os.environ.get("BELUGAFS_REQUIRE_VLLM") == "1":
            raise
        pytest.skip(str(error))
    out = tmp_path_factory.mktemp("vllm") / "model"
    make_tiny_model(out)
    return out


@pytest.fixture(scope="session")
def engines_python() -> Path:
    """The interpreter of the engines' environment.

    ``BELUGAFS_ENGINES_VENV`` names the environment; without it, ``.venv-engines`` beside the
    checkout. Without one the test is skipped, or fails where ``BELUGAFS_REQUIRE_ENGINES=1``.
    """
    default = Path(__file__).parents[2] / ".venv-engines"
    venv = Path(os.environ.get("BELUGAFS_ENGINES_VENV") or default)
    python = venv / "bin" / "python"
    if not python.exists():
        reason = (
            f"no engines' environment at {venv}: run 'make engines-venv' in the checkout "
            "(3.3 GB), or set BELUGAFS_ENGINES_VENV"
        )
        if os.environ.get("BELUGAFS_REQUIRE_ENGINES") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return python


@pytest.fixture
def run_side(engines_python: Path) -> Callable[..., dict[str, Any]]:
    """``run_side(script, *arguments)``: run a program of engine_side/ in a fresh process of the
    engines' environment; returns what it prints behind ``BELUGAFS_RESULT``."""

    def run(script: str, *arguments: str | Path) -> dict[str, Any]:
        environment = os.environ | {
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "LMCACHE_TRACK_USAGE": "false",
        }
        ran = subprocess.run(
            [str(engines_python), str(SIDE / script), *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=180,
            check=False,
            env=environment,
        )
        for line in reversed(ran.stdout.splitlines()):
            if line.startswith("BELUGAFS_RESULT "):
                result: dict[str, Any] = json.loads(line.split(" ", 1)[1])
                return result
        pytest.fail(f"{script} ended with exit code {ran.returncode}:\n{ran.stdout[-4000:]}")

    return run

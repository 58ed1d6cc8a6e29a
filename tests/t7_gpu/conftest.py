"""A GPU, or a skip that says what is missing."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from belugafs.kernels.bench_gpu import GpuMissing, find_gpu

sys.path.insert(0, str(Path(__file__).parents[1] / "t0_kernels"))


@pytest.fixture(scope="session")
def gpu() -> tuple[Any, Any]:
    """CuPy and the runtime. ``BELUGAFS_REQUIRE_GPU=1``: none is a failure."""
    try:
        cupy, runtime, _ = find_gpu()
    except GpuMissing as missing:
        if os.environ.get("BELUGAFS_REQUIRE_GPU") == "1":
            pytest.fail(str(missing))
        pytest.skip(f"no GPU: {missing}")
    return cupy, runtime

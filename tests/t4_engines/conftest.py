"""Where the engine tests keep their blocks.

On a mounted pool, from the ``mounted_pool`` fixture of tests/conftest.py; or, with
``BELUGAFS_TEST_DIR=DIR``, below any directory, to tell an engine's fault from the filesystem's.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest


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

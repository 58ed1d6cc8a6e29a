"""Room ahead of writers that the daemon may not see: a full pool takes whatever comes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from blocks import MIB, private_kib, put, used_bytes

pytestmark = [
    pytest.mark.skipif(
        os.geteuid() != 0, reason="only root may mount the tmpfs of a directory pool"
    ),
    pytest.mark.parametrize("pool_kind", ["directory"]),
]

WRITERS = 8

# Writes files of so many MiB, one after the other, and reads what is left of them: where an error
# comes, its traceback is the answer.
WRITER = r"""
import json, os, random, sys, time
top, number, size_mib, seconds = sys.argv[1], *map(int, sys.argv[2:])
end, files, found = time.monotonic() + seconds, 0, 0
def body(n): return (b"%d/%d " % (number, n)).ljust(64, b".") * (1 << 14)
while time.monotonic() < end or files < 3:
    name, data = f"{top}/{number}-{files}", body(files)
    fd = os.open(name + ".tmp", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    for _ in range(size_mib): assert os.write(fd, data) == len(data)
    os.close(fd)
    try: os.rename(name + ".tmp", name)
    except FileNotFoundError: pass # closed, so it may be evicted, also before this
    files += 1
    old = random.randrange(files)
    try: fd = os.open(f"{top}/{number}-{old}", os.O_RDONLY)
    except FileNotFoundError: continue
    for _ in range(size_mib): assert os.read(fd, 1 << 20) == body(old)
    assert os.read(fd, 1) == b""
    os.close(fd)
    found += 1
print(json.dumps([files, found]))
"""


@pytest.mark.parametrize(
    ("unmounted_pool", "size_mib", "seconds"),
    [
        pytest.param(128 * MIB, 8, 4, id="short"),
        pytest.param(1024 * MIB, 64, 5, id="large"),
        pytest.param(
            1024 * MIB, 64, 60, id="long", marks=[pytest.mark.full_size, pytest.mark.timeout(300)]
        ),
    ],
    indirect=["unmounted_pool"],
)
def test_writers_into_a_full_pool(mounted_pool: Any, size_mib: int, seconds: int) -> None:
    """Eight of them, whose open files are half of the pool: no ENOSPC, and the cap holds."""
    top, pool = mounted_pool.path, mounted_pool.pool_path
    number = 0
    while mounted_pool.stats()["evicted_blocks"] == "0":
        put(top, f"old/{number}", 4 * MIB)
        number += 1
    whole = os.statvfs(pool).f_blocks
    before = mounted_pool.stats()
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(top), str(n), str(size_mib), str(seconds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(WRITERS)
    ]
    most = 0
    while any(writer.poll() is None for writer in writers):
        found = os.statvfs(pool)
        assert found.f_blocks == whole and 0 <= found.f_bfree <= whole
        assert used_bytes(top) <= whole * found.f_frsize
        most = max(most, whole - found.f_bfree)
        time.sleep(0.05)
    files = 0
    for writer in writers:
        out, err = writer.communicate()
        assert writer.returncode == 0, err
        files += json.loads(out)[0]
    assert files * size_mib * MIB > mounted_pool.size_bytes  # it has been full all over again
    assert most > whole // 2
    if mounted_pool.passthrough and mounted_pool.size_bytes >= 1024 * MIB:
        # Not only by way of the daemon. In a smaller pool there isn't room for what that takes.
        assert int(mounted_pool.stats()["promises"]) > int(before["promises"])
    assert (
        private_kib(mounted_pool.daemon_pid) < 64 << 10
    )  # what was written lies in the pool alone
    done = mounted_pool.command("belugafs.cli", "verify", "--json", str(top))
    assert json.loads(done.stdout)["damaged"] == []

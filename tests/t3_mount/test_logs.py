"""Where the daemon's messages go: a file, also when it is rotated, or syslog."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# A machine with a syslog of its own: /dev/log is a socket that a small program listens to.
SYSLOG = """
set -eu
mkdir $W/dev
mount -t tmpfs tmpfs $W/dev
for name in fuse null urandom; do touch $W/dev/$name; mount --bind /dev/$name $W/dev/$name; done
mkdir $W/dev/shm; mount --rbind /dev/shm $W/dev/shm
mount --move $W/dev /dev
$PYTHON - $W/messages <<'END' &
import socket, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
listener.bind("/dev/log")
with open(sys.argv[1], "ab", buffering=0) as file:
    while True: file.write(listener.recv(65536).rstrip(b"\\0") + b"\\n")
END
listener=$!
while ! test -S /dev/log; do sleep 0.02; done
$PYTHON -m belugafs.mount $POOL $M -o $OPTIONS
umount $M
for i in $(seq 100); do grep -q detached $W/messages && break; sleep 0.05; done
kill $listener
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mount namespaces need root")
@pytest.mark.parametrize("options", ["rw", "log=syslog"])
def test_syslog(unmounted_pool: Any, tmp_path: Path, options: str) -> None:
    """Asked for, and without any option where there is one. <30> is facility daemon, level info."""
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", SYSLOG],
        env={
            **os.environ,
            "W": str(tmp_path),
            "POOL": str(unmounted_pool.pool_path),
            "M": str(unmounted_pool.path),
            "PYTHON": sys.executable,
            "OPTIONS": options,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    lines = (tmp_path / "messages").read_text().splitlines()
    assert all(line.startswith("<30>belugafs[") for line in lines), lines
    pool = unmounted_pool.pool_path
    assert any(line.endswith(f"serving {pool} on {unmounted_pool.path}") for line in lines)
    assert any(line.endswith(f"detached {pool}") for line in lines)


def test_no_syslog_here(unmounted_pool: Any) -> None:
    if os.path.exists("/dev/log"):
        pytest.skip("this machine has a syslog")
    pool, place = str(unmounted_pool.pool_path), str(unmounted_pool.path)
    done = unmounted_pool.command("belugafs.mount", pool, place, "-o", "log=syslog")
    assert done.returncode == 32
    assert "there is no /dev/log here; use log=FILE" in done.stderr
    assert not os.path.ismount(place)


def test_a_log_that_is_rotated(mounted_pool: Any) -> None:
    """What comes after logrotate has renamed the file goes into a new one."""
    old = mounted_pool.log_path.with_suffix(".1")
    assert "serving" in mounted_pool.log()
    os.rename(mounted_pool.log_path, old)
    mounted_pool.umount()
    assert "detached" in mounted_pool.log() and "detached" not in old.read_text()


def test_a_log_that_cannot_be_written(unmounted_pool: Any, pool_dir: Path) -> None:
    unmounted_pool.log_path = pool_dir / "no/such/directory/log"
    done = unmounted_pool.try_mount()
    assert done.returncode == 32
    assert str(unmounted_pool.log_path) in done.stderr
    assert not os.path.ismount(unmounted_pool.path)

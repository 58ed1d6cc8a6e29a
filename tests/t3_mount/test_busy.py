"""A mount that is in use: who uses it, how umount says so, how it goes away all the same.

The tests of umount(8)'s helper run in a mount namespace of their own, where /sbin has the
commands of this checkout and the machine's own /sbin stays as it is.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MIB = 1 << 20
WRAPPERS = Path(__file__).parents[2] / "tools/wrappers.sh"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mount namespaces need root")

# The commands of this checkout in /sbin; a /run of its own, for umount's notes.
PROLOGUE = """
set -eu
mount -t overlay overlay -o lowerdir=$ROOT/sbin:$SBIN $SBIN
mount -t tmpfs tmpfs /run
"""


@pytest.fixture
def namespace(
    tmp_path: Path, unmounted_pool: Any
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``namespace(script, **variables)``: run by bash in a mount namespace that has this
    checkout in /sbin. The pool is $POOL, a directory for it $M, the daemon's log $LOG. stdout
    and stderr come back as one."""
    root = tmp_path / "root"
    subprocess.run(
        [WRAPPERS, "install", Path(sys.prefix)],
        env={**os.environ, "BELUGAFS_ROOT": str(root)},
        check=True,
        capture_output=True,
    )
    environment = {
        "ROOT": str(root),
        "SBIN": os.path.realpath("/sbin"),
        "POOL": str(unmounted_pool.pool_path),
        "M": str(unmounted_pool.path),
        "LOG": str(unmounted_pool.log_path),
    }

    def run(script: str, **variables: object) -> subprocess.CompletedProcess[str]:
        more = {key: str(value) for key, value in variables.items()}
        return subprocess.run(
            ["unshare", "-m", "bash", "-c", PROLOGUE + script],
            env={**os.environ, **environment, **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def holders(mounted_pool: Any) -> dict[int, list[str]]:
    done = mounted_pool.command("belugafs.cli", "holders", "--json", str(mounted_pool.path))
    assert done.returncode == 0, done.stderr
    return {found["pid"]: found["uses"] for found in json.loads(done.stdout)}


def test_who_holds_a_mount(mounted_pool: Any) -> None:
    top = mounted_pool.path
    assert holders(mounted_pool) == {}
    (top / "f").write_bytes(b"x" * MIB)
    (top / "d").mkdir()
    with open(top / "f", "rb") as file:
        assert holders(mounted_pool) == {os.getpid(): [f"open {top}/f"]}
        with open(top / "f", "rb"):
            assert holders(mounted_pool) == {os.getpid(): [f"2 open files, as {top}/f"]}
        mapping = mmap.mmap(file.fileno(), MIB, mmap.MAP_SHARED, mmap.PROT_READ)
    # Python's mapping keeps a descriptor of its own; what counts is the mapping
    assert "mapped" in holders(mounted_pool)[os.getpid()]
    mapping.close()
    assert holders(mounted_pool) == {}
    with subprocess.Popen(["sleep", "60"], cwd=top / "d") as process:
        assert holders(mounted_pool) == {process.pid: [f"working directory {top}/d"]}
        done = mounted_pool.command("belugafs.cli", "holders", str(top))
        assert f"{top} is in use by process {process.pid} (sleep)" in done.stdout
        assert f"umount -l {top}" in done.stdout
        process.kill()
    done = mounted_pool.command("belugafs.cli", "holders", str(top))
    assert done.stdout == f"nothing is seen to use {top}\n"


def test_holders_of_a_mount_that_hangs(mounted_pool: Any) -> None:
    """A stopped daemon is the case in which one wants to know."""
    (mounted_pool.path / "f").write_bytes(b"x")
    with open(mounted_pool.path / "f", "rb") as file:
        process = subprocess.Popen(["sleep", "60"], stdin=file)
    mounted_pool.stop_daemon()
    try:
        assert list(holders(mounted_pool)) == [process.pid]
    finally:
        os.kill(mounted_pool.daemon_pid, signal.SIGCONT)
        process.kill()
        process.wait()


def test_holders_of_no_mount(mounted_pool: Any, pool_dir: Path) -> None:
    done = mounted_pool.command("belugafs.cli", "holders", str(pool_dir))
    assert done.returncode == 2
    assert f"no belugafs is mounted on {pool_dir}" in done.stderr


@needs_root
def test_umount_says_who_is_in_the_way(namespace: Any) -> None:
    done = namespace(
        """
        mount -t belugafs $POOL $M -o log=$LOG 2> /dev/null
        grep -q " $M \\| TARGET=$M " /run/mount/utab
        echo x > $M/f
        exec 5< $M/f
        umount $M && exit 1 || code=$?
        echo "code $code of $$"
        exec 5<&-
        umount $M
        grep -q TARGET=$M /run/mount/utab && exit 1
        ! mountpoint -q $M
        """
    )
    assert done.returncode == 0, done.stdout
    pid = done.stdout.split("code 32 of ")[1].split()[0]
    assert "busy" in done.stdout
    assert f"is in use by process {pid} (bash): open " in done.stdout
    # umount itself was started by the shell; that isn't news
    assert "(umount" not in done.stdout


@needs_root
def test_umount_works_when_the_checkout_is_gone(namespace: Any, tmp_path: Path) -> None:
    done = namespace(
        """
        mount -t belugafs $POOL $M -o log=$LOG 2> /dev/null
        sed 's,"[^"]*/bin/belugafs","/no/such/belugafs",' $ROOT/sbin/umount.fuse.belugafs > $NEW
        chmod 755 $NEW
        mount --bind $NEW /sbin/umount.fuse.belugafs
        (cd $M; umount $M) && exit 1 || echo code $?
        umount $M
        ! mountpoint -q $M
        """,
        NEW=tmp_path / "helper",
    )
    assert done.returncode == 0, done.stdout
    assert "busy" in done.stdout and "code 32" in done.stdout


@needs_root
def test_lazy_and_forced_umount_go_through_the_helper(namespace: Any, unmounted_pool: Any) -> None:
    unmounted_pool.expect_log("connection ended")
    done = namespace(
        """
        mount -t belugafs $POOL $M -o log=$LOG 2> /dev/null
        pid=$(sed -n 's/^pid //p' $M/.beluga/stats)
        echo hello > $M/f
        exec 5< $M/f
        umount -l $M
        ! mountpoint -q $M
        test "$(cat <&5)" = hello
        test -e /proc/$pid
        exec 5<&-
        for i in $(seq 100); do test -e /proc/$pid || break; sleep 0.1; done
        ! test -e /proc/$pid
        mount -t belugafs $POOL $M -o log=$LOG 2> /dev/null
        pid=$(sed -n 's/^pid //p' $M/.beluga/stats)
        exec 5< $M/f
        umount -f $M && exit 1 || true
        exec 5<&-
        umount $M
        for i in $(seq 100); do test -e /proc/$pid || break; sleep 0.1; done
        ! test -e /proc/$pid
        """
    )
    assert done.returncode == 0, done.stdout


@needs_root
def test_a_line_of_fstab(namespace: Any, tmp_path: Path, unmounted_pool: Any) -> None:
    """The line in docs/mount.md, with mount -a, mount by directory, and a user's umount refused."""
    documented = [
        line
        for line in (WRAPPERS.parents[1] / "docs/mount.md").read_text().splitlines()
        if line.startswith("/dev/shm/beluga.pool ")
    ]
    assert len(documented) == 1
    pool, place = unmounted_pool.pool_path, unmounted_pool.path
    fields = documented[0].split()
    assert fields[1:3] == ["/mnt/beluga", "belugafs"]
    fields[:2] = str(pool), str(place)
    fields[3] = fields[3].replace("log=syslog", f"log={unmounted_pool.log_path}")
    fstab = tmp_path / "fstab"
    fstab.write_text(" ".join(fields) + "\n")
    done = namespace(
        """
        mount -T $FSTAB -a 2> /dev/null
        mountpoint -q $M
        grep -qx 'evict lru' $M/.beluga/config
        mount -T $FSTAB -a 2> /dev/null   # again: nothing to do
        test "$(grep -c " $M fuse.belugafs " /proc/mounts)" = 1
        umount $M
        mount -T $FSTAB $M 2> /dev/null
        ! setpriv --reuid=65534 --clear-groups umount $M 2> /dev/null
        umount $M
        """,
        FSTAB=fstab,
    )
    assert done.returncode == 0, done.stdout


def test_systemd_units() -> None:
    """systemd's own checker finds nothing to say about the units in tools/systemd."""
    units = sorted((WRAPPERS.parent / "systemd").glob("*"))
    assert [unit.name for unit in units] == ["belugafs-pool.service", "mnt-beluga.mount"]
    try:
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", *units],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("no systemd-analyze here")
    told = [line for line in done.stderr.splitlines() if "belug" in line]
    # mkfs.belugafs is not installed everywhere; anything else is ours
    assert [line for line in told if "is not executable" not in line] == []


def test_after_a_lazy_umount_the_pool_can_be_mounted_elsewhere(
    mounted_pool: Any, pool_dir: Path
) -> None:
    """Not before the last open file is closed: until then it is said who holds the pool."""
    (mounted_pool.path / "f").write_bytes(b"x" * MIB)
    with open(mounted_pool.path / "f", "rb") as file:
        mounted_pool.umount(lazy=True)
        done = mounted_pool.try_mount()
        assert done.returncode == 32
        assert str(mounted_pool.daemon_pid) in done.stderr
        assert len(file.read()) == MIB
    started = time.monotonic()
    mounted_pool.wait_gone(10)
    assert time.monotonic() - started < 10
    mounted_pool.mount()
    assert (mounted_pool.path / "f").stat().st_size == MIB

"""What cannot be mounted is refused: soon, with a message of its own, and with no trace."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MIB = 1 << 20
LIMIT_S = 10


def fingerprint(path: Path) -> tuple[str, int, int]:
    found = path.stat()
    return hashlib.sha256(path.read_bytes()).hexdigest(), found.st_size, found.st_mtime_ns


def missing(pool: Path) -> None:
    pool.unlink()


def all_zero(pool: Path) -> None:
    pool.write_bytes(bytes(8 * MIB))


def foreign(pool: Path) -> None:
    data = bytearray(8 * MIB)
    data[0x438:0x43A] = b"\x53\xef"  # ext4
    pool.write_bytes(data)


def truncated(pool: Path) -> None:
    os.truncate(pool, pool.stat().st_size // 2)


def _both_superblocks(pool: Path, offset: int, value: bytes) -> None:
    import xxhash

    data = bytearray(pool.read_bytes())
    for start in (0, 4096):
        data[start + offset : start + offset + len(value)] = value
        digest = xxhash.xxh3_64_intdigest(bytes(data[start : start + 4088]))
        data[start + 4088 : start + 4096] = struct.pack("<Q", digest)
    pool.write_bytes(data)


def newer(pool: Path) -> None:
    _both_superblocks(pool, 8, struct.pack("<I", 2))


def unknown_feature(pool: Path) -> None:
    _both_superblocks(pool, 32, struct.pack("<Q", 1 << 40))


def damaged(pool: Path) -> None:
    data = bytearray(pool.read_bytes())
    for start in (0, 4096):
        data[start + 100] ^= 0xFF
    pool.write_bytes(data)


def a_directory(pool: Path) -> None:
    pool.unlink()
    pool.mkdir()


@pytest.mark.flat_pool
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (missing, "does not exist; make a pool with: mkfs.belugafs"),
        (all_zero, "holds no pool yet (all zeros)"),
        (foreign, "is not a belugafs pool, it holds: ext"),
        (truncated, "truncated"),
        (newer, "version"),
        (unknown_feature, "feature"),
        (damaged, "checksum"),
        (a_directory, "is a directory"),
    ],
)
def test_a_bad_pool(
    native: Any,
    pool_dir: Path,
    unmounted_pool: Any,
    make_pool: Callable[..., Path],
    spoil: Callable[[Path], None],
    message: str,
) -> None:
    pool = pool_dir / "spoilt"
    pool.write_bytes(unmounted_pool.pool_path.read_bytes())
    spoil(pool)
    before = fingerprint(pool) if pool.is_file() else None
    unmounted_pool.pool_path = pool

    started = time.monotonic()
    done = unmounted_pool.try_mount()

    assert time.monotonic() - started < LIMIT_S
    assert done.returncode == 32
    assert message in done.stderr, done.stderr
    assert str(pool) in done.stderr
    assert not os.path.ismount(unmounted_pool.path)
    if before is not None:
        assert fingerprint(pool) == before


@pytest.mark.flat_pool
def test_one_damaged_superblock_is_not_the_end(unmounted_pool: Any) -> None:
    with open(unmounted_pool.pool_path, "r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 8)
    unmounted_pool.mount()
    unmounted_pool.umount()
    # For the check that follows every test.
    with open(unmounted_pool.pool_path, "r+b") as file:
        file.seek(4096)
        copy = file.read(4096)
        file.seek(0)
        file.write(copy)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_text("x"), "is not a directory"),
        (lambda path: None, "does not exist; mkdir"),
    ],
)
def test_a_bad_mount_point(
    unmounted_pool: Any, pool_dir: Path, make: Callable[[Path], object], message: str
) -> None:
    unmounted_pool.path = pool_dir / "elsewhere"
    make(unmounted_pool.path)
    done = unmounted_pool.try_mount()
    assert done.returncode == 32
    assert message in done.stderr


def test_a_second_mount_says_who_holds_the_pool(mounted_pool: Any, pool_dir: Path) -> None:
    (pool_dir / "second").mkdir()
    started = time.monotonic()
    done = mounted_pool.command(
        "belugafs.mount", str(mounted_pool.pool_path), str(pool_dir / "second")
    )
    assert done.returncode == 32
    assert time.monotonic() - started < 5
    assert str(mounted_pool.daemon_pid) in done.stderr
    assert f"umount {mounted_pool.path}" in done.stderr
    assert not os.path.ismount(pool_dir / "second")


def test_the_same_mount_point_again(mounted_pool: Any, make_pool: Callable[..., Path]) -> None:
    other = make_pool()
    done = mounted_pool.command("belugafs.mount", str(other), str(mounted_pool.path))
    assert done.returncode == 32
    assert f"{mounted_pool.pool_path} is already mounted on {mounted_pool.path}" in done.stderr


def test_wrong_usage(unmounted_pool: Any) -> None:
    for arguments in (["--no-such"], ["pool"], ["pool", "mnt", "-o", "evict=maybe"]):
        done = unmounted_pool.command("belugafs.mount", *arguments)
        assert done.returncode == 1, done
        assert done.stderr.startswith("mount.belugafs: ")
        assert done.stderr.count("\n") == 1


def test_fsck_of_a_mounted_pool(mounted_pool: Any) -> None:
    done = mounted_pool.command("belugafs.fsck", "-n", str(mounted_pool.pool_path))
    assert done.returncode == 8
    assert f"umount {mounted_pool.path}" in done.stderr


def test_fsck_without_an_answer_or_a_terminal(unmounted_pool: Any) -> None:
    for arguments in ([], ["--json"], ["-n", "-y"]):
        done = unmounted_pool.command("belugafs.fsck", *arguments, str(unmounted_pool.pool_path))
        assert done.returncode == 16, done
        assert done.stderr.startswith("fsck.belugafs: ")


@pytest.mark.flat_pool
def test_a_pool_inside_a_mount(mounted_pool: Any, pool_dir: Path) -> None:
    inner = mounted_pool.path / "inner"
    inner.write_bytes(mounted_pool.pool_path.read_bytes()[: 8 * MIB])
    (pool_dir / "second").mkdir()
    done = mounted_pool.command("belugafs.mount", str(inner), str(pool_dir / "second"))
    assert done.returncode == 32
    assert "inside a mounted belugafs" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_without_user_allow_other_the_setting_is_named(
    make_pool: Callable[..., Path], pool_dir: Path
) -> None:
    """As an ordinary user: only for that user, and the message says which setting it takes."""
    from belugafs import daemon
    from belugafs.options import MountOptions, parse_options

    notes: list[str] = []

    class Reporter(daemon.Reporter):
        def note(self, text: str) -> None:
            notes.append(text)

    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setuid(65534)
            assert not daemon._allow_other(MountOptions(), Reporter())
            assert "user_allow_other in /etc/fuse.conf" in notes[0]
            with pytest.raises(daemon.MountError, match="user_allow_other"):
                daemon._allow_other(parse_options(["allow_other"]), Reporter())
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_by_mount_8(mounted_pool: Any) -> None:
    """mount -t belugafs finds the helper only where it is installed."""
    if not os.path.exists("/sbin/mount.belugafs"):
        pytest.skip("/sbin/mount.belugafs is not installed here")
    mounted_pool.umount()
    done = subprocess.run(
        [
            "mount", "-t", "belugafs", "-o", f"evict=none,log={mounted_pool.log_path}",
            str(mounted_pool.pool_path), str(mounted_pool.path),
        ],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    mounted_pool.daemon_pid = int(mounted_pool.stats()["pid"])
    assert "evict none\n" in (mounted_pool.path / ".beluga/config").read_text()
    mounted_pool.umount()

"""A mount under the programs that people use."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from blocks import expect_used, used_bytes

KIB = 1024
MIB = KIB * KIB


def sh(script: str, **env: object) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **{key: str(value) for key, value in env.items()}},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small tree with all that a tree has."""
    top = tmp_path / "source"
    (top / "a/b").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / "a/big").write_bytes(os.urandom(3 * MIB + 17))
    (top / "a/b/small").write_bytes(b"hello\n")
    (top / "a/none").write_bytes(b"")
    (top / "ein Käse").write_bytes(b"x" * 5000)
    (top / "link").symlink_to("a/b/small")
    os.link(top / "a/b/small", top / "a/twin")
    os.chmod(top / "a/b/small", 0o640)
    os.utime(top / "a/b/small", ns=(1_000_000_001, 2_000_000_002))
    return top


def test_cp_diff_rm(mounted_pool: Any, source: Path) -> None:
    target = mounted_pool.path / "copy"
    sh('cp -a "$S" "$T"; diff -r "$S" "$T"', S=source, T=target)
    copied = (target / "a/b/small").stat()
    assert (copied.st_mode & 0o777, copied.st_mtime_ns) == (0o640, 2_000_000_002)
    assert copied.st_nlink == 2
    assert (target / "a/twin").stat().st_ino == copied.st_ino
    sh('rm -r "$T"', T=target)
    assert os.listdir(mounted_pool.path) == []


def test_tar_both_ways(mounted_pool: Any, source: Path, tmp_path: Path) -> None:
    target = mounted_pool.path
    sh('tar -C "$S" -c . | tar -C "$T" -xp; diff -r "$S" "$T"', S=source, T=target)
    back = tmp_path / "back"
    back.mkdir()
    sh('tar -C "$T" -c . | tar -C "$B" -xp; diff -r "$S" "$B"', S=source, T=target, B=back)


def test_mv(mounted_pool: Any) -> None:
    top = mounted_pool.path
    (top / "d/e").mkdir(parents=True)
    (top / "f").write_bytes(b"1" * 10000)
    sh("cd $T; mv f d/g; mv d/g d/e/h; mv d/e moved; test ! -e f; test -e moved/h", T=top)
    assert (top / "moved/h").read_bytes() == b"1" * 10000
    assert sorted(os.listdir(top)) == ["d", "moved"]
    assert (top / "moved").stat().st_nlink == 2 and (top / "d").stat().st_nlink == 2
    with pytest.raises(OSError):
        (top / "d").rename(top / "moved/h/x")


def test_append_truncate_rewrite(mounted_pool: Any) -> None:
    sh(
        """cd $T
        for i in 1 2 3; do echo line $i >> log; done
        test "$(wc -l < log)" = 3
        truncate -s 100000 log; truncate -s 6 log; test "$(cat log)" = "line 1"
        echo new > log; test "$(cat log)" = new
        dd if=/dev/zero of=log bs=1k count=1 seek=10 conv=notrunc status=none
        test "$(stat -c %s log)" = 11264
        head -c 4 log | grep -q new
        """,
        T=mounted_pool.path,
    )


def test_ls_stat_find(mounted_pool: Any) -> None:
    top = mounted_pool.path
    for number in range(500):
        (top / f"file{number:04d}").write_bytes(b"")
    assert len(sh("ls -f $T", T=top).splitlines()) == 502
    assert sh("ls $T", T=top).splitlines()[:2] == ["file0000", "file0001"]
    assert sh("find $T -name 'file000?' | wc -l", T=top).strip() == "10"
    assert sh("stat -c '%F %s %h' $T/file0007", T=top).strip() == "regular empty file 0 1"
    assert sh("ls -ld $T/. $T/..", T=top)
    assert os.stat(top / ".").st_ino == os.stat(top).st_ino == 1


def test_listing_is_stable_while_others_write(mounted_pool: Any) -> None:
    top = mounted_pool.path
    for number in range(300):
        (top / f"keep{number:04d}").write_bytes(b"")
    seen = []
    with os.scandir(top) as entries:
        for count, entry in enumerate(entries):
            seen.append(entry.name)
            if count % 3 == 0:
                (top / f"new{count}").write_bytes(b"")
            if count % 5 == 0:
                (top / f"new{count - count % 3}").unlink(missing_ok=True)
    kept = [name for name in seen if name.startswith("keep")]
    assert len(seen) == len(set(seen))
    assert sorted(kept) == [f"keep{number:04d}" for number in range(300)]


def test_du_and_df(mounted_pool: Any) -> None:
    top = mounted_pool.path

    def used() -> int:
        found = os.statvfs(top)
        assert 0 < found.f_bavail <= found.f_bfree <= found.f_blocks
        return used_bytes(top)

    assert used() == 0
    free_inodes = os.statvfs(top).f_ffree
    (top / "a").write_bytes(b"a" * (3 * MIB + 1))
    (top / "b").write_bytes(b"b")
    assert used() == 3 * MIB + 8 * KIB
    assert os.statvfs(top).f_ffree == free_inodes - 2
    assert sh("du -sk $T", T=top).split()[0] in ("3080", "3084")  # with the directory itself
    assert (top / "a").stat().st_blocks * 512 == 3 * MIB + 4 * KIB
    assert os.statvfs(top).f_bsize == 4096
    assert os.statvfs(top).f_namemax == 255
    (top / "a").unlink()
    expect_used(top, 4 * KIB)


def test_modes_and_owners(mounted_pool: Any) -> None:
    """Normal permission checks, for users who have nothing to do with the daemon."""
    if os.geteuid() != 0:
        pytest.skip("needs to become another user")
    top = mounted_pool.path
    (top / "open").write_bytes(b"hello")
    (top / "closed").write_bytes(b"secret")
    (top / "open").chmod(0o644)
    (top / "closed").chmod(0o600)
    (top / "dir").mkdir(mode=0o755)
    (top / "shared").mkdir()
    (top / "shared").chmod(0o1777)
    path = mounted_pool.path
    os.chmod(path.parent, 0o755)
    sh(
        """
        as() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
        as ls $T > /dev/null
        test "$(as cat $T/open)" = hello
        ! as cat $T/closed 2> /dev/null
        ! as touch $T/dir/x 2> /dev/null
        as touch $T/shared/mine
        test "$(stat -c %u:%g $T/shared/mine)" = 65534:65534
        ! as chown 0 $T/shared/mine 2> /dev/null
        as chmod 600 $T/shared/mine
        """,
        T=path,
    )


def test_special_files_and_xattrs(mounted_pool: Any) -> None:
    top = mounted_pool.path
    os.mkfifo(top / "pipe")
    assert sh("stat -c %F $T/pipe", T=top).strip() == "fifo"
    (top / "f").write_bytes(b"x")
    os.setxattr(top / "f", "user.note", b"some\0thing")
    os.setxattr(top / "f", "user.empty", b"")
    assert os.getxattr(top / "f", "user.note") == b"some\0thing"
    assert sorted(os.listxattr(top / "f")) == ["user.empty", "user.note"]
    with pytest.raises(FileExistsError):
        os.setxattr(top / "f", "user.note", b"", os.XATTR_CREATE)
    os.removexattr(top / "f", "user.note")
    assert os.listxattr(top / "f") == ["user.empty"]
    mounted_pool.remount()
    assert os.getxattr(top / "f", "user.empty") == b""

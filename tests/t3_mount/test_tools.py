"""What a mount and our tools say about a pool: .beluga, extended attributes, the commands."""

from __future__ import annotations

import errno
import json
import os
from typing import Any

import pytest

MIB = 1 << 20


def test_the_control_directory_is_there_and_not_listed(mounted_pool: Any) -> None:
    top = mounted_pool.path
    assert os.listdir(top) == []
    assert sorted(os.listdir(top / ".beluga")) == ["config", "control", "hosts", "stats"]
    stats = mounted_pool.stats()
    assert int(stats["data_granules"]) > 0
    assert int(stats["pid"]) == mounted_pool.daemon_pid
    config = (top / ".beluga/config").read_text()
    assert f"pool {mounted_pool.pool_path}\n" in config
    assert f"mount_point {top}\n" in config
    assert "self" in (top / ".beluga/hosts").read_text()
    assert (top / ".beluga/..").stat().st_ino == 1


def test_the_control_directory_cannot_be_changed(mounted_pool: Any) -> None:
    top = mounted_pool.path
    (top / "f").write_bytes(b"x")
    (top / "d").mkdir()
    control = top / ".beluga"
    for change in (
        lambda: (control / "new").write_bytes(b""),
        lambda: (control / "stats").write_bytes(b""),
        lambda: (control / "stats").unlink(),
        lambda: (control / "new").mkdir(),
        lambda: control.rmdir(),
        lambda: os.rename(control, top / "e"),
        lambda: os.rename(top / "d", control),
        lambda: os.rename(top / "f", control / "f"),
        lambda: os.link(control / "stats", top / "g"),
        lambda: os.chmod(control / "stats", 0o777),
        lambda: os.setxattr(control / "stats", "user.a", b""),
    ):
        with pytest.raises(OSError) as caught:
            change()
        assert caught.value.errno in (errno.EPERM, errno.EACCES, errno.EEXIST)
    with pytest.raises(FileExistsError):
        control.mkdir()
    with pytest.raises(FileNotFoundError):
        (control / "other").read_text()


def test_a_control_file_is_read_as_one_state(mounted_pool: Any) -> None:
    with open(mounted_pool.path / ".beluga/stats", "rb", buffering=0) as file:
        first = file.read(10)
        (mounted_pool.path / "f").write_bytes(b"x" * MIB)
        rest = file.read()
        file.seek(0)
        assert file.read() == first + rest


def test_facts(mounted_pool: Any) -> None:
    path = mounted_pool.path / "f"
    with open(path, "wb", buffering=0) as file:
        file.write(b"x" * 10000)
        assert os.getxattr(path, "user.beluga.state") == b"new"
        assert os.getxattr(path, "user.beluga.owner") == b"0"
    assert mounted_pool.settled_state(path) == "sealed"
    assert os.getxattr(path, "user.beluga.owner") == b"none"
    assert os.getxattr(path, "user.beluga.checksum").startswith(b"xxh3 262144 1\n")
    if not mounted_pool.pool_path.is_dir():
        offset, device, _, length = map(int, os.getxattr(path, "user.beluga.extents").split())
        assert (offset, device, length) == (0, 0, 12288)
    where, place = mounted_pool.stored_at(path, 0)
    assert where.read_bytes()[place : place + 10000] == b"x" * 10000
    assert os.listxattr(path) == []
    with pytest.raises(PermissionError):
        os.setxattr(path, "user.beluga.state", b"new")
    with pytest.raises(OSError) as caught:
        os.setxattr(path, "security.foo", b"")
    assert caught.value.errno == errno.EOPNOTSUPP
    version = int(os.getxattr(path, "user.beluga.version"))
    with open(path, "r+b") as file:
        file.write(b"y")
    assert mounted_pool.settled_state(path) == "sealed"
    assert int(os.getxattr(path, "user.beluga.version")) > version
    assert os.getxattr(path, "user.beluga.class") == b"ordinary"


def test_status_and_ls(mounted_pool: Any) -> None:
    top, pool = mounted_pool.path, mounted_pool.pool_path
    (top / "d").mkdir()
    (top / "d/f").write_bytes(b"x" * MIB)
    (top / "link").symlink_to("d/f")

    def belugafs(*arguments: object) -> str:
        done = mounted_pool.command("belugafs.cli", *map(str, arguments))
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    for where in (top, top / "d", pool):
        found = json.loads(belugafs("status", "--json", where))
        assert found["mount_point"] == str(top)
        assert found["stats"]["used_granules"] == 256
    assert str(pool) in belugafs("status")
    assert "1 MiB of" in belugafs("status", top)
    assert belugafs("ls", top) == "d/\nlink\n"
    assert belugafs("ls", f"{pool}:d") == "f\n"
    assert "block    sealed    -    f\n" in belugafs("ls", "-l", top / "d")
    mounted_listing = belugafs("ls", "-lR", f"{pool}")

    mounted_pool.umount()
    looked_at = pool / "meta" if pool.is_dir() else pool
    before = looked_at.read_bytes()
    found = json.loads(belugafs("status", "--json", pool))
    assert found["mount_point"] is None
    assert found["stats"]["used_granules"] == 256
    assert "(not mounted)" in belugafs("status", pool)
    assert belugafs("ls", pool) == "d/\nlink\n"
    assert belugafs("ls", f"{pool}:/d") == "f\n"
    unmounted_listing = belugafs("ls", "-lR", pool)
    assert (
        unmounted_listing.replace("/d:", f"{top}/d:").splitlines()[1:]
        == (mounted_listing.splitlines()[1:])
    )
    items = [json.loads(line) for line in belugafs("ls", "-R", "--json", pool).splitlines()]
    assert [item["path"] for item in items] == ["/d", "/link", "/d/f"]
    assert looked_at.read_bytes() == before
    mounted_pool.mount()


def test_fsck_command(mounted_pool: Any) -> None:
    (mounted_pool.path / "f").write_bytes(b"x" * MIB)
    mounted_pool.umount()
    done = mounted_pool.command("belugafs.fsck", "-n", "--data", str(mounted_pool.pool_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "clean" in done.stdout
    done = mounted_pool.command("belugafs.fsck", "-n", "--json", str(mounted_pool.pool_path))
    found = json.loads(done.stdout)
    assert found["ok"] is True
    assert found["counts"]["blocks"] == 1


def test_commands_on_nothing(mounted_pool: Any, pool_dir: Any) -> None:
    for arguments, message in (
        (("status", "/no/such"), "does not exist"),
        (("status", "/"), "no belugafs is mounted on /"),
        (("ls", "/no/such"), "does not exist"),
        (("ls", str(mounted_pool.path / "none")), "none"),
    ):
        done = mounted_pool.command("belugafs.cli", *arguments)
        assert done.returncode not in (0, 70)
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_doctor(mounted_pool: Any) -> None:
    done = mounted_pool.command("belugafs.cli", "doctor")
    assert done.returncode == 0, done.stdout
    for word in (
        "kernel",
        "/dev/fuse",
        "pyfuse3",
        "libfuse",
        "transport",
        "passthrough",
        "huge pages",
        "cache flush",
    ):
        assert word in done.stdout

"""A mounted directory pool: brought back after a reboot, full, killed, tampered with."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import time
from pathlib import Path
from typing import Any

import pytest

MIB = 1 << 20

pytestmark = [
    pytest.mark.skipif(
        os.geteuid() != 0, reason="only root may mount the tmpfs of a directory pool"
    ),
    pytest.mark.parametrize("pool_kind", ["directory"]),
]


def test_after_a_reboot_there_is_an_empty_pool(unmounted_pool: Any, pool_dir: Path) -> None:
    """The tmpfs is gone, the directory is there: one mount command, which says what it did."""
    from belugafs._pool import directory

    place = pool_dir / "made"
    place.mkdir()
    unmounted_pool.pool_path = place
    try:
        done = unmounted_pool.command("belugafs.mkfs", "--size", "48M", str(place))
        assert done.returncode == 0, done.stderr
        unmounted_pool.mount()
        (unmounted_pool.path / "block").write_bytes(b"x" * MIB)
        unmounted_pool.remount()
        assert (unmounted_pool.path / "block").stat().st_size == MIB
        unmounted_pool.umount()
        directory.unmount_tmpfs(str(place))

        done = unmounted_pool.try_mount("ro")
        assert done.returncode == 32
        assert "is gone" in done.stderr
        unmounted_pool.expect_log("was gone")
        done = unmounted_pool.try_mount("")
        assert done.returncode == 0, done.stderr
        assert "an empty pool of 48 MiB was made there again" in done.stderr
        unmounted_pool.daemon_pid = int(unmounted_pool.stats()["pid"])
        assert os.listdir(unmounted_pool.path) == []
        (unmounted_pool.path / "block").write_bytes(b"y" * MIB)
        unmounted_pool.umount()
        unmounted_pool.assert_clean()
    finally:
        unmounted_pool.clean_up()
        while directory.tmpfs_on(str(place)) is not None:
            directory.unmount_tmpfs(str(place), lazy=True)


def test_df_is_that_of_the_tmpfs_and_the_cap_holds(mounted_pool: Any) -> None:
    top, below = mounted_pool.path, mounted_pool.pool_path
    for number in range(100):
        (top / f"{number}").write_bytes(bytes([number]) * MIB)
        for _ in range(50):  # the daemon may free something in between
            real, seen, after = (os.statvfs(path) for path in (below, top, below))
            if real.f_bfree == after.f_bfree:
                break
        assert seen.f_bfree == real.f_bfree
        assert seen.f_blocks <= real.f_blocks
    time.sleep(0.5)  # the daemon makes room ahead, above the high mark down to the low one
    left = sorted(map(int, os.listdir(top)))
    assert left[-1] == 99
    assert 20 < len(left) < 64
    assert all((top / f"{n}").read_bytes() == bytes([n]) * MIB for n in left)
    seen = os.statvfs(top)
    used = sum((top / f"{n}").stat().st_blocks for n in left) * 512
    assert used == (seen.f_blocks - seen.f_bfree) * seen.f_frsize


def test_killed_and_mounted_again(mounted_pool: Any) -> None:
    top = mounted_pool.path
    (top / "closed").write_bytes(b"c" * MIB)
    new = os.open(top / "new", os.O_CREAT | os.O_WRONLY)
    os.write(new, b"never closed")
    again = os.open(top / "closed", os.O_RDWR)
    os.pwrite(again, b"again", 5)
    mounted_pool.kill9()
    for fd in (new, again):
        with contextlib.suppress(OSError):  # their daemon is gone
            os.close(fd)
    mounted_pool.mount()
    assert os.listdir(top) == ["closed"]
    assert (top / "closed").read_bytes() == b"cccccagain" + b"c" * (MIB - 10)
    assert os.getxattr(top / "closed", "user.beluga.state") == b"sealed,unverified"
    data = mounted_pool.pool_path / "data"
    assert sum(len(os.listdir(data / name)) for name in os.listdir(data)) == 1


def test_a_backing_file_that_somebody_has_removed(mounted_pool: Any) -> None:
    """A miss, in the log and in stats; the others are there, and the repair forgets it."""
    top = mounted_pool.path
    for name in ("lost", "kept"):
        (top / name).write_bytes(name.encode() * 1000)
        assert mounted_pool.settled_state(top / name) == "sealed"
    mounted_pool.stored_at(top / "lost", 0)[0].unlink()
    mounted_pool.expect_log("is gone")
    with pytest.raises(OSError) as caught:
        os.open(top / "lost", os.O_RDONLY)
    assert caught.value.errno == errno.ENOENT
    assert int(mounted_pool.stats()["backing_lost"]) >= 1
    assert "its backing file data/" in mounted_pool.log()
    assert (top / "kept").read_bytes() == b"kept" * 1000
    mounted_pool.umount()
    done = mounted_pool.command("belugafs.fsck", "-y", str(mounted_pool.pool_path))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "backing-missing" in done.stdout
    mounted_pool.mount()
    assert os.listdir(top) == ["kept"]


def test_full_of_what_is_open(mounted_pool: Any) -> None:
    """ENOSPC comes when all that is left is open or pinned, and goes with the next close."""
    top = mounted_pool.path
    fds = []
    with pytest.raises(OSError) as caught:
        for number in range(100):
            fds.append(os.open(top / f"{number}", os.O_CREAT | os.O_RDWR))
            done = os.write(fds[-1], b"o" * MIB)
            while done < MIB:  # the part that found room
                done += os.write(fds[-1], b"o" * (MIB - done))
    assert caught.value.errno == errno.ENOSPC
    assert len(os.listdir(top)) == len(fds)
    os.unlink(top / "0")  # open: its pages count
    with pytest.raises(OSError):
        (top / "more").write_bytes(b"m" * MIB)
    os.close(fds.pop(0))
    (top / "more").write_bytes(b"m" * MIB)
    assert (top / "more").read_bytes() == b"m" * MIB
    for fd in fds:
        os.close(fd)


def test_mapped_and_evicted(mounted_pool: Any) -> None:
    top = mounted_pool.path
    (top / "f").write_bytes(b"f" * MIB)
    fd = os.open(top / "f", os.O_RDONLY)
    with mmap.mmap(fd, MIB, prot=mmap.PROT_READ) as mapping:
        os.close(fd)
        for number in range(100):
            (top / f"{number}").write_bytes(bytes([number]) * MIB)
        assert mapping[:] == b"f" * MIB

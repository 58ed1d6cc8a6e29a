"""Wrong bytes in the pool: an error, never data; counted, named, and nobody else's trouble."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from blocks import KIB, MIB, audit, content, get, names, put

CHUNK = 256 * KIB  # the unit of checksums, as docs/mount.md says


def damage(mounted_pool: Any, name: str, at: int, length: int = 1) -> None:
    """Unmount, change bytes of a file in the pool, mount again."""
    where, place = mounted_pool.stored_at(mounted_pool.path / name, at)
    mounted_pool.umount()
    with open(where, "r+b") as pool:
        pool.seek(place)
        data = pool.read(length)
        pool.seek(place)
        pool.write(bytes(byte ^ 1 for byte in data))
    mounted_pool.mount()


@pytest.mark.parametrize("name", ["m/05", "m/odd\nname \x1b[31m"])
def test_one_flipped_bit(mounted_pool: Any, name: str) -> None:
    top = mounted_pool.path
    for number in range(10):
        put(top, f"m/{number:02}")
    put(top, name)
    damage(mounted_pool, name, MIB // 2)
    mounted_pool.expect_log("checksum")
    for _ in range(2):
        with pytest.raises(OSError) as caught:
            get(top, name)
        assert caught.value.errno == errno.EIO
    assert mounted_pool.stats()["corrupt"] == "1"
    assert mounted_pool.log().count("checksum") == 1
    assert "failed checksums" in mounted_pool.command("belugafs.cli", "status", str(top)).stdout
    others = [other for other in names(top) if other != name]
    assert len(others) >= 9
    assert all(get(top, other) == content(other, MIB) for other in others)

    mounted_pool.umount()
    pool = str(mounted_pool.pool_path)
    done = mounted_pool.command("belugafs.fsck", "-n", "--data", "--json", pool)
    assert done.returncode == 4
    found = json.loads(done.stdout)
    about = [finding["text"] for finding in found["findings"] if finding["severity"]]
    shown = name.replace("\n", "\\x0a").replace("\x1b", "\\x1b")
    assert about and all(shown in text for text in about), about
    done = mounted_pool.command("belugafs.fsck", "-n", "--data", pool)
    assert done.returncode == 4
    assert all(line.isprintable() for line in done.stdout.splitlines())
    assert shown in done.stdout

    mounted_pool.mount()
    put(top, name)
    assert audit(top) == []


def test_damage_at_the_end_of_a_large_file(mounted_pool: Any) -> None:
    """Read in steps of 1 MiB: all that is delivered is right, and it ends no later than the unit
    of checking before the damage, with EIO, there and whenever it is tried again."""
    top = mounted_pool.path
    size = 24 * MIB
    put(top, "slot.bin", size)
    damage(mounted_pool, "slot.bin", size - 4096, 4096)
    mounted_pool.expect_log("checksum")
    got = b""
    with open(top / "slot.bin", "rb", buffering=0) as file:
        with pytest.raises(OSError) as caught:
            while data := file.read(MIB):
                got += data
        assert caught.value.errno == errno.EIO
        with pytest.raises(OSError):
            os.pread(file.fileno(), 10, size - 10)
    assert got == content("slot.bin", size)[: len(got)]
    assert size - 2 * MIB <= len(got) <= size - CHUNK
    (top / "slot.bin").unlink()


def test_damage_that_is_mapped(mounted_pool: Any) -> None:
    """A mapping of a damaged block is a bus error at the damage, not wrong bytes."""
    import subprocess

    top = mounted_pool.path
    put(top, "a", 2 * MIB)
    damage(mounted_pool, "a", MIB + 5)
    mounted_pool.expect_log("checksum")
    code = (
        "import mmap, os, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDONLY)\n"
        "m = mmap.mmap(fd, 2 << 20, prot=mmap.PROT_READ)\n"
        "print(m[:10].hex(), flush=True)\n"
        "print(m[(1 << 20) + 5], flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(top / "a")], capture_output=True, timeout=30, check=False
    )
    assert done.returncode == -7  # SIGBUS
    assert done.stdout.decode().split() == [content("a", 10).hex()]
    (top / "a").unlink()


def test_verify_off_is_what_it_says(mounted_pool: Any) -> None:
    """The one way to get such bytes is to have asked for it."""
    top = mounted_pool.path
    put(top, "a")
    mounted_pool.options = "verify=off"
    damage(mounted_pool, "a", 5)
    data = get(top, "a")
    assert data is not None and data != content("a", MIB) and len(data) == MIB
    (top / "a").unlink()


@pytest.mark.flat_pool
def test_a_pool_page_that_cannot_be_read(mounted_pool: Any) -> None:
    """A hole that a full tmpfs can't fill, poisoned memory: here, a pool that lost its end."""
    top = mounted_pool.path
    pool: Path = mounted_pool.pool_path
    size = pool.stat().st_size
    names_ = [f"{number}" for number in range(40)]
    for name in names_:
        put(top, name)
    mounted_pool.expect_log(".")
    mounted_pool.remount()
    whole = pool.read_bytes()
    os.truncate(pool, size // 2)
    outcomes = set()
    for name in names_:
        try:
            outcomes.add(get(top, name) == content(name, MIB))
        except OSError as error:
            outcomes.add(error.errno)
    assert outcomes == {True, errno.EIO}
    os.truncate(pool, size)
    with open(pool, "r+b") as file:
        file.seek(size // 2)
        file.write(whole[size // 2 :])
    mounted_pool.kill9()
    pool.write_bytes(whole)
    mounted_pool.mount()
    assert audit(top) == []

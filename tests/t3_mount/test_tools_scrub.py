"""``-o verify=scrub``: damage shows without anybody reading, at a rate, and without a use."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from belugafs.options import OptionError, parse_options

MIB = 1 << 20


def _wait(mounted_pool: Any, key: str, least: int, limit_s: float = 30) -> dict[str, str]:
    deadline = time.monotonic() + limit_s
    while int(mounted_pool.stats()[key]) < least:
        assert time.monotonic() < deadline, mounted_pool.stats()
        time.sleep(0.05)
    stats: dict[str, str] = mounted_pool.stats()
    return stats


def test_scrubbing_finds_damage_that_nobody_reads(unmounted_pool: Any) -> None:
    unmounted_pool.mount()
    assert "scrub_passes" not in unmounted_pool.stats()
    for directory in ("", "a", "a/b"):
        (unmounted_pool.path / directory).mkdir(exist_ok=True)
        (unmounted_pool.path / directory / "f").write_bytes(os.urandom(3 * MIB))
    hurt = unmounted_pool.path / "a/b/f"
    assert hurt.read_bytes()  # it was right once
    assert unmounted_pool.settled_state(hurt) == "sealed"
    unmounted_pool.damage(hurt, 0)
    unmounted_pool.expect_log(r"/a/b/f is damaged: the checksum of bytes 0 to 262143 is wrong")
    unmounted_pool.expect_log("read: ")

    unmounted_pool.remount("verify=scrub,scrub_rate=1G")
    stats = _wait(unmounted_pool, "scrub_passes", 1)
    assert (stats["scrub_bad_chunks"], stats["corrupt"]) == ("1", "1")
    assert int(stats["scrub_checked_bytes"]) == 9 * MIB
    assert "/a/b/f is damaged" in unmounted_pool.log()
    with pytest.raises(OSError):
        hurt.read_bytes()
    (unmounted_pool.path / "f").read_bytes()
    text = unmounted_pool.command("belugafs.cli", "status", str(unmounted_pool.path)).stdout
    assert "1 times, 9 MiB in all, 1 damaged" in text
    config = (unmounted_pool.path / ".beluga/config").read_text()
    assert "verify scrub\n" in config
    assert f"scrub_bytes_per_s {1 << 30}\n" in config
    hurt.unlink()


def test_scrubbing_keeps_to_its_rate_and_ends_with_the_mount(unmounted_pool: Any) -> None:
    unmounted_pool.mount("verify=scrub,scrub_rate=2M")
    for number in range(16):
        (unmounted_pool.path / f"b{number:02}").write_bytes(os.urandom(MIB))
    unmounted_pool.remount("verify=scrub,scrub_rate=2M")
    begun = time.monotonic()
    _wait(unmounted_pool, "scrub_checked_bytes", 3 * MIB)
    # the first MiB is free, and so is the file that is begun
    assert time.monotonic() - begun > 0.5
    assert int(unmounted_pool.stats()["scrub_passes"]) == 0
    begun = time.monotonic()
    unmounted_pool.umount()
    assert time.monotonic() - begun < 8  # not the rest of the pass

    # what was only scrubbed is still the oldest
    unmounted_pool.mount("verify=scrub,scrub_rate=1G")
    _wait(unmounted_pool, "scrub_passes", 1)
    (unmounted_pool.path / "b00").read_bytes()
    command = ["evict", "--bytes", "14M", str(unmounted_pool.path)]
    assert unmounted_pool.command("belugafs.cli", *command).returncode == 0
    assert sorted(os.listdir(unmounted_pool.path)) == ["b00", "b15"]


def test_scrubbing_while_files_come_and_go(unmounted_pool: Any) -> None:
    unmounted_pool.mount("verify=scrub,scrub_rate=1G")
    deadline = time.monotonic() + 3
    number = 0
    while time.monotonic() < deadline:
        place = unmounted_pool.path / f"d{number % 5}"
        place.mkdir(exist_ok=True)
        (place / "f").write_bytes(os.urandom(100_000))
        (place / "g").write_bytes(b"")
        if number % 2:
            (place / "f").unlink()
            (place / "g").unlink()
            place.rmdir()
        number += 1
    assert unmounted_pool.stats()["corrupt"] == "0"


def test_options() -> None:
    assert parse_options(["verify=scrub"]).scrub_bytes_per_s == 64 * MIB
    assert parse_options(["verify=scrub,scrub_rate=1.5M"]).scrub_bytes_per_s == 3 * MIB // 2
    for text in ("scrub_rate=fast", "scrub_rate=0", "scrub_rate"):
        with pytest.raises(OptionError):
            parse_options([text])

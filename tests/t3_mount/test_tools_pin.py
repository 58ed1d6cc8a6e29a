"""``belugafs pin`` and ``unpin``."""

from __future__ import annotations

import json
import os
from typing import Any

MIB = 1 << 20


def _belugafs(mounted_pool: Any, *arguments: object, code: int = 0) -> Any:
    done = mounted_pool.command("belugafs.cli", *map(str, arguments))
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_pinned_and_unpinned(mounted_pool: Any) -> None:
    one, two = mounted_pool.path / "one", mounted_pool.path / "two"
    one.write_bytes(b"x")
    two.write_bytes(b"y")
    assert _belugafs(mounted_pool, "pin", one, two).stdout == ""
    assert os.getxattr(one, "user.beluga.pin") == b"hard"
    found = json.loads(_belugafs(mounted_pool, "pin", "--json", "--soft", two).stdout)
    assert found == {
        "ok": True,
        "exit_code": 0,
        "paths": [{"path": str(two), "pin": "soft", "error": None}],
    }
    assert os.getxattr(two, "user.beluga.pin") == b"soft"
    mounted_pool.remount()
    assert os.getxattr(one, "user.beluga.pin") == b"hard"
    for _ in range(2):  # what isn't pinned is fine
        found = json.loads(_belugafs(mounted_pool, "unpin", "--json", one, two).stdout)
        assert [item["pin"] for item in found["paths"]] == [None, None]
        assert found["ok"] is True


def test_what_cannot_be_pinned_is_named_and_the_rest_is_done(mounted_pool: Any) -> None:
    good = mounted_pool.path / "good"
    good.write_bytes(b"x")
    none = mounted_pool.path / "none"
    done = _belugafs(mounted_pool, "pin", none, "/etc/hostname", good, code=2)
    assert f"{none}: No such file or directory" in done.stderr
    assert "/etc/hostname: not on a belugafs mount" in done.stderr
    assert os.getxattr(good, "user.beluga.pin") == b"hard"
    done = _belugafs(mounted_pool, "unpin", "--json", good, none, code=2)
    assert [item["error"] is None for item in json.loads(done.stdout)["paths"]] == [True, False]
    _belugafs(mounted_pool, "pin", code=1)
    mounted_pool.remount("ro")
    assert "Read-only" in _belugafs(mounted_pool, "pin", good, code=7).stderr


def test_a_hard_pin_outlasts_all_pressure_and_a_soft_one_goes_last(mounted_pool: Any) -> None:
    files = [mounted_pool.path / f"b{number}" for number in range(6)]
    for file in files:
        file.write_bytes(os.urandom(MIB))
    _belugafs(mounted_pool, "pin", "--hard", files[0])
    _belugafs(mounted_pool, "pin", "--soft", files[1])
    listed = {
        item["path"]: item["pin"]
        for item in map(
            json.loads,
            _belugafs(mounted_pool, "ls", "--json", mounted_pool.path).stdout.splitlines(),
        )
    }
    assert [listed[str(file)] for file in files] == ["hard", "soft", "", "", "", ""]
    text = _belugafs(mounted_pool, "ls", "-l", mounted_pool.path).stdout
    assert [line.split()[-2] for line in text.splitlines()] == ["hard", "soft", "-", "-", "-", "-"]

    def left() -> list[str]:
        # listed, since the kernel believes for a second that an evicted name is there
        return sorted(os.listdir(mounted_pool.path))

    _belugafs(mounted_pool, "evict", "--bytes", "2M", mounted_pool.path)
    assert left() == ["b0", "b1", "b4", "b5"]
    _belugafs(mounted_pool, "evict", "--bytes", "3M", mounted_pool.path)
    assert left() == ["b0"]
    _belugafs(mounted_pool, "evict", "--all", mounted_pool.path)
    assert left() == ["b0"]
    _belugafs(mounted_pool, "unpin", files[0])
    _belugafs(mounted_pool, "evict", "--all", mounted_pool.path)
    assert left() == []


def test_a_directory_is_pinned_with_all_in_it(mounted_pool: Any) -> None:
    for tenant in ("one", "two"):
        (mounted_pool.path / tenant).mkdir()
        (mounted_pool.path / tenant / "b").write_bytes(b"x" * MIB)
    _belugafs(mounted_pool, "pin", mounted_pool.path / "one")
    _belugafs(mounted_pool, "evict", "--all", mounted_pool.path)
    assert os.listdir(mounted_pool.path / "one") == ["b"]
    assert os.listdir(mounted_pool.path / "two") == []

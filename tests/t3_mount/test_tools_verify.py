"""``belugafs verify``: damage anywhere is named by path, of a mount and of a pool; nothing else is
touched."""

from __future__ import annotations

import errno
import json
import os
from typing import Any

import pytest

MIB = 1 << 20
CHUNK_BYTES = 256 * 1024


def _verify(mounted_pool: Any, *arguments: object, code: int = 0) -> Any:
    done = mounted_pool.command("belugafs.cli", "verify", *map(str, arguments))
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout) if "--json" in arguments else done


def _tree(mounted_pool: Any) -> int:
    """Files of all kinds, sealed; the bytes that have checksums."""
    top = mounted_pool.path
    (top / "a/b").mkdir(parents=True)
    sizes = {"a/one": 3 * MIB + 5, "a/b/two": 10_000, "a/b/empty": 0, "three": 40 * MIB}
    for name, size_bytes in sizes.items():
        (top / name).write_bytes(os.urandom(size_bytes))
    os.link(top / "a/one", top / "linked")
    (top / "symlink").symlink_to("a/one")
    os.mkfifo(top / "fifo")
    for name in sizes:
        assert mounted_pool.settled_state(top / name) == "sealed"
    return sum(sizes.values())


def test_all_is_well(mounted_pool: Any) -> None:
    total = _tree(mounted_pool)
    found = _verify(mounted_pool, "--json", mounted_pool.path)
    assert found["ok"] is True
    assert (found["files"], found["checked_bytes"], found["unchecked_bytes"]) == (4, total, 0)
    assert found["damaged"] == []
    assert "all is well" in _verify(mounted_pool, mounted_pool.pool_path).stdout
    part = _verify(mounted_pool, "--json", mounted_pool.path / "a/b")
    assert (part["files"], part["checked_bytes"]) == (2, 10_000)
    part = _verify(mounted_pool, "--json", mounted_pool.path / "a/one")
    assert (part["files"], part["checked_bytes"]) == (1, 3 * MIB + 5)
    part = _verify(mounted_pool, "--json", f"{mounted_pool.pool_path}:a/b/two")
    assert (part["files"], part["checked_bytes"]) == (1, 10_000)

    mounted_pool.umount()
    looked_at = next(
        p for p in (mounted_pool.pool_path / "meta", mounted_pool.pool_path) if p.is_file()
    )
    before = looked_at.read_bytes()
    found = _verify(mounted_pool, "--json", mounted_pool.pool_path)
    assert (found["files"], found["checked_bytes"]) == (4, total)
    assert looked_at.read_bytes() == before


@pytest.mark.parametrize("options", ["", "ro", "verify=off"])
def test_damage_is_named_by_path(mounted_pool: Any, options: str) -> None:
    top = mounted_pool.path
    _tree(mounted_pool)
    mounted_pool.damage(top / "three", 2 * CHUNK_BYTES + 7)
    mounted_pool.damage(top / "three", 30 * MIB)
    mounted_pool.damage(top / "a/b/two", 9_999)
    mounted_pool.expect_log("checksum")
    mounted_pool.remount(options)
    for where, prefix in ((top, f"{top}/" if options != "ro" else "/"), (f"{top}/a", None)):
        found = _verify(mounted_pool, "--json", where, code=25)
        damaged = {item["path"]: item for item in found["damaged"]}
        if prefix is None:
            assert len(damaged) == 1
            continue
        assert set(damaged) == {f"{prefix}three", f"{prefix}a/b/two"}
        item = damaged[f"{prefix}three"]
        assert (item["offset"], item["size_bytes"]) == (2 * CHUNK_BYTES, CHUNK_BYTES)
        assert (item["pieces"], item["dropped"]) == (2, False)
    text = _verify(mounted_pool, top, code=25).stdout
    assert f"three: bytes {2 * CHUNK_BYTES} to {3 * CHUNK_BYTES - 1} and 1 more pieces" in text
    assert "2 damaged" in text
    if options != "verify=off":
        with pytest.raises(OSError) as caught, open(top / "a/b/two", "rb") as file:
            file.read()
        assert caught.value.errno == errno.EIO
    if options != "ro":
        assert "failed checksums" in mounted_pool.command("belugafs.cli", "status", top).stdout

    mounted_pool.umount()
    found = _verify(mounted_pool, "--json", mounted_pool.pool_path, code=25)
    assert {item["path"] for item in found["damaged"]} == {"/three", "/a/b/two"}
    # fsck wants clean pools after a test
    found = _verify(mounted_pool, "--json", "--repair-drop", mounted_pool.pool_path)
    assert all(item["dropped"] for item in found["damaged"])
    assert _verify(mounted_pool, "--json", mounted_pool.pool_path)["files"] == 2


def test_damaged_files_are_dropped_from_a_mount(mounted_pool: Any) -> None:
    top = mounted_pool.path
    _tree(mounted_pool)
    mounted_pool.damage(top / "a/b/two", 0)
    text = _verify(mounted_pool, "--repair-drop", top).stdout
    assert f"damaged: {top}/a/b/two: bytes 0 to 9999; removed" in text
    assert not (top / "a/b/two").exists()
    assert (top / "a/one").exists()
    assert "all is well" in _verify(mounted_pool, top).stdout


def test_more_files_than_one_question_holds(mounted_pool: Any) -> None:
    for number in range(1000):
        (mounted_pool.path / f"{number}").write_bytes(b"%d" % number)
    mounted_pool.damage(mounted_pool.path / "777", 1)
    found = _verify(mounted_pool, "--json", mounted_pool.path, code=25)
    assert found["files"] == 1000
    assert [item["path"] for item in found["damaged"]] == [f"{mounted_pool.path}/777"]
    _verify(mounted_pool, "--repair-drop", mounted_pool.path)


def test_native_blocks_are_checked_by_their_path(mounted_pool: Any, attach: Any) -> None:
    mounted_pool.umount()
    pool = attach(mounted_pool.pool_path)
    namespace = pool.ns_create("model")
    keys = [bytes([number]) * 32 for number in range(5)]
    for key in keys:
        pool.block_put(namespace, key, os.urandom(100_000))
    pool.close()
    mounted_pool.mount()
    bad = mounted_pool.path / "model/03/03" / keys[3].hex()
    mounted_pool.damage(bad, 99_999)
    found = _verify(mounted_pool, "--json", mounted_pool.path, code=25)
    assert (found["files"], [item["path"] for item in found["damaged"]]) == (5, [str(bad)])
    mounted_pool.umount()
    found = _verify(mounted_pool, "--json", "--repair-drop", mounted_pool.pool_path)
    inside = str(bad).removeprefix(str(mounted_pool.path))
    assert (found["files"], [item["path"] for item in found["damaged"]]) == (5, [inside])
    assert _verify(mounted_pool, "--json", mounted_pool.pool_path)["files"] == 4
    mounted_pool.mount()


def test_verify_says_what_is_wrong(mounted_pool: Any) -> None:
    for where, code, text in (
        ("/no/such", 2, "does not exist"),
        (mounted_pool.path / "none", 2, "No such file"),
        ("/", 2, "no belugafs is mounted on /"),
        (f"{mounted_pool.pool_path}:none", 2, "No such file"),
    ):
        assert text in _verify(mounted_pool, where, code=code).stderr
    mounted_pool.umount()
    done = _verify(mounted_pool, f"{mounted_pool.pool_path}:none", code=2)
    assert "/none does not exist" in done.stderr

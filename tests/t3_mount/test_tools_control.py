"""The file that a mount takes commands by, and ``belugafs evict``, which is its first user."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from typing import Any

import pytest

MIB = 1 << 20


@pytest.fixture
def control(mounted_pool: Any) -> Any:
    return mounted_pool.path / ".beluga/control"


def _ask(control: Any, line: str) -> Any:
    with open(control, "r+b", buffering=0) as file:
        file.write(line.encode())
        return json.loads(file.read())


def _belugafs(mounted_pool: Any, *arguments: object, code: int = 0) -> Any:
    done = mounted_pool.command("belugafs.cli", *map(str, arguments))
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def _fill(path: Any, count: int, size_bytes: int = MIB) -> list[Any]:
    files = [path / f"b{number:03}" for number in range(count)]
    for file in files:
        file.write_bytes(os.urandom(size_bytes))
    return files


def test_a_command_is_a_line_and_its_answer_is_read(mounted_pool: Any, control: Any) -> None:
    assert control.stat().st_mode & 0o7777 == 0o600
    assert control.stat().st_uid == os.geteuid()
    assert control.read_bytes() == b""
    _fill(mounted_pool.path, 4)
    answer = _ask(control, f"evict {MIB}\n")
    assert answer == {"freed_bytes": MIB, "blocks": 1, "done": True}
    # two descriptors have two answers
    with open(control, "r+b", buffering=0) as one, open(control, "r+b", buffering=0) as two:
        one.write(f"evict {MIB}".encode())
        two.write(b"evict 0")
        assert json.loads(one.read())["blocks"] == 1
        assert json.loads(two.read())["blocks"] == 0
    assert sorted(os.listdir(mounted_pool.path)) == ["b002", "b003"]


def test_a_shell_can_write_it(mounted_pool: Any, control: Any) -> None:
    _fill(mounted_pool.path, 4)
    command = ["sh", "-c", f"echo evict {3 * MIB} > '{control}'"]
    assert subprocess.run(command, timeout=20, check=False).returncode == 0
    assert os.listdir(mounted_pool.path) == ["b003"]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "no-such",
        "evict",
        "evict x",
        "evict -1",
        "evict 1 2",
        "evictable",
        "verify 1",
        "verify 1 2",
        "\xff",
    ],
)
def test_a_wrong_command_is_einval(control: Any, line: str) -> None:
    with open(control, "r+b", buffering=0) as file, pytest.raises(OSError) as caught:
        file.write((line or "\n").encode("latin-1"))
    assert caught.value.errno == errno.EINVAL


def test_other_users_cannot(mounted_pool: Any, control: Any) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can try as another user")
    for directory in [*mounted_pool.path.parents][:-1]:
        if directory.stat().st_uid == 0 and str(directory).startswith("/dev/shm/"):
            directory.chmod(0o755)
    script = f"cat {control}; echo evict 1 > {control}; cat {control.parent}/stats"
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--clear-groups", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.stderr.lower().count("permission denied") == 2
    assert "data_granules" in done.stdout


def test_evict_of_a_mount(mounted_pool: Any) -> None:
    files = _fill(mounted_pool.path, 12)
    (mounted_pool.path / "note").write_bytes(b"")
    with open(files[0], "rb") as held:
        done = _belugafs(mounted_pool, "evict", "--bytes", "3M", mounted_pool.path)
        assert "freed 3 MiB in 3 blocks; 9 MiB of" in done.stdout
        # the oldest went, but for the open one
        assert [file.exists() for file in files[:5]] == [True, False, False, False, True]
        assert len(held.read()) == MIB

        found = json.loads(
            _belugafs(mounted_pool, "evict", "--all", "--json", mounted_pool.pool_path).stdout
        )
        assert (found["ok"], found["blocks"], found["freed_bytes"]) == (True, 9, 8 * MIB)
        assert found["asked_bytes"] is None
        assert found["used_bytes"] == MIB
        assert found["evictable_bytes"] == 0
        assert found["mount_point"] == str(mounted_pool.path)
        done = _belugafs(mounted_pool, "evict", "--percent", "1", mounted_pool.path, code=26)
        assert "less than asked for" in done.stdout
    assert int(mounted_pool.stats()["evicted_blocks"]) == 12
    assert int(mounted_pool.stats()["used_granules"]) == MIB // 4096


def test_status_says_what_could_be_evicted(mounted_pool: Any) -> None:
    """Blocks that are open or pinned hard can't be, and who isn't allowed to ask isn't told."""
    files = _fill(mounted_pool.path, 9)
    (mounted_pool.path / "d").mkdir()
    files[8].rename(mounted_pool.path / "d/b")
    _belugafs(mounted_pool, "pin", mounted_pool.path / "d", files[0])
    _belugafs(mounted_pool, "pin", "--soft", files[1])
    for place in (mounted_pool.path, mounted_pool.pool_path):
        with open(files[2], "rb"):
            found = json.loads(_belugafs(mounted_pool, "status", "--json", place).stdout)
            assert found["evictable_bytes"] == 6 * MIB
            assert found["stats"]["block_granules"] * found["granule_bytes"] == 9 * MIB
        assert ", 7 MiB can be evicted" in _belugafs(mounted_pool, "status", place).stdout
    other = ["setpriv", "--reuid=65534", "--clear-groups", sys.executable]
    # Not where others can't reach this checkout.
    if subprocess.run([*other, "-c", "import belugafs.cli"], check=False).returncode == 0:
        os.chmod(mounted_pool.path.parent, 0o755)
        done = subprocess.run(
            [*other, "-m", "belugafs.cli", "status", str(mounted_pool.path)],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert ", 9 MiB in blocks\n" in done.stdout, done.stderr
    mounted_pool.remount("ro")
    assert ", 9 MiB in blocks\n" in _belugafs(mounted_pool, "status", mounted_pool.path).stdout
    mounted_pool.umount()
    done = _belugafs(mounted_pool, "status", mounted_pool.pool_path)
    assert ", 7 MiB can be evicted" in done.stdout
    found = json.loads(
        _belugafs(mounted_pool, "evict", "--all", "--json", mounted_pool.pool_path).stdout
    )
    assert (found["freed_bytes"], found["evictable_bytes"]) == (7 * MIB, 0)
    mounted_pool.mount()


def test_evict_of_many_small_blocks_takes_several_rounds(mounted_pool: Any) -> None:
    _fill(mounted_pool.path, 3000, 4096)
    found = json.loads(
        _belugafs(mounted_pool, "evict", "--bytes", "10M", "--json", mounted_pool.path).stdout
    )
    assert found["freed_bytes"] == 2560 * 4096
    assert len(os.listdir(mounted_pool.path)) == 440


def test_evict_of_an_unmounted_pool(mounted_pool: Any) -> None:
    files = _fill(mounted_pool.path, 8)
    mounted_pool.umount()
    done = _belugafs(mounted_pool, "evict", "--bytes", "2M", mounted_pool.pool_path)
    assert "freed 2 MiB in 2 blocks; 6 MiB of" in done.stdout
    found = json.loads(
        _belugafs(
            mounted_pool, "evict", "--json", "--percent", "90", mounted_pool.pool_path, code=26
        ).stdout
    )
    assert (found["ok"], found["freed_bytes"], found["used_bytes"]) == (False, 6 * MIB, 0)
    mounted_pool.assert_clean()
    mounted_pool.mount()
    assert not any(file.exists() for file in files)


def test_evict_says_what_is_wrong(mounted_pool: Any) -> None:
    for arguments, code, text in (
        (("evict", mounted_pool.path), 1, "one of --bytes, --percent and --all"),
        (("evict", "--all", "--bytes", "1M", mounted_pool.path), 1, "one of"),
        (("evict", "--bytes", "many", mounted_pool.path), 1, "is not a size"),
        (("evict", "--all", "/no/such"), 2, "does not exist"),
        (("evict", "--all", "/"), 2, "no belugafs is mounted on /"),
    ):
        assert text in _belugafs(mounted_pool, *arguments, code=code).stderr
    mounted_pool.remount("ro")
    done = _belugafs(mounted_pool, "evict", "--all", mounted_pool.path, code=24)
    assert "read-only" in done.stderr

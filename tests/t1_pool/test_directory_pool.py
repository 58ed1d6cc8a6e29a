"""mkfs.belugafs on a directory, and making the pool again after its memory has gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from belugafs import attach as attaching
from belugafs._pool import directory, host
from belugafs.exits import Exit
from belugafs.pool import PoolError, open_pool

MIB = 1 << 20

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may mount the tmpfs of a directory pool"
)


@pytest.fixture
def place(pool_dir: Path) -> Iterator[Path]:
    """An empty directory; whatever is mounted there goes after the test."""
    path = pool_dir / "pool"
    path.mkdir()
    yield path
    while directory.tmpfs_on(str(path)) is not None:
        directory.unmount_tmpfs(str(path), lazy=True)


def mkfs(*arguments: object, **extra: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "belugafs.mkfs", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        cwd=Path(__file__).resolve().parents[2],
        **extra,
    )


def refused(code: Exit, words: str, *arguments: object, **extra: Any) -> None:
    done = mkfs(*arguments, **extra)
    assert done.returncode == code, done.stderr
    assert words in done.stderr, done.stderr
    assert done.stdout == ""


def put(native: Any, place: Path, name: str) -> None:
    with open_pool(str(place)) as opened:
        pool = native.Pool(
            opened.fd,
            opened.info.size_bytes,
            host_uuid=b"h" * 16,
            boot_id=b"b" * 16,
            data_fd=opened.data_fd,
        )
        _, fh = pool.create(1, name, flags=os.O_RDWR)
        pool.write(fh, 0, b"x" * 10000)
        pool.flush(fh)
        pool.release(fh)
        pool.close()


def test_an_empty_directory_becomes_a_pool(place: Path) -> None:
    done = mkfs("--size", "64M", "--label", "mine", "--inodes", 4000, "--json", place)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert (made["kind"], made["size_bytes"], made["label"]) == ("directory", 64 * MIB, "mine")
    assert made["hosts"] == 1
    assert 4000 <= made["inodes"] < 4100
    assert made["meta_bytes"] + made["data_bytes"] == 64 * MIB
    mount = directory.tmpfs_on(str(place))
    assert mount is not None
    assert (mount.fs_type, mount.options["size"], mount.options["mode"]) == (
        "tmpfs",
        "65536k",
        "700",
    )
    assert sorted(os.listdir(place)) == ["data", "meta"]
    # taken whole: a store into it must find its page
    assert os.stat(place / "meta").st_blocks * 512 == made["meta_bytes"]
    directory.unmount_tmpfs(str(place))
    assert os.listdir(place) == ["belugafs.conf"]
    conf = json.loads((place / "belugafs.conf").read_text())
    assert conf["size_bytes"] == 64 * MIB
    assert (conf["belugafs"], conf["inodes"], conf["label"]) == (1, 4000, "mine")


def test_bound_to_a_numa_node(place: Path) -> None:
    node = host.nodes()[0]
    assert mkfs("--size", "64M", "--numa", node, place).returncode == 0
    with open_pool(str(place), lock=None) as opened:
        assert opened.info.numa_node == node
    refused(Exit.USAGE, "no NUMA node 999", "--force", "--size", "64M", "--numa", 999, place)


def test_made_again_after_its_memory_has_gone(native: Any, place: Path) -> None:
    """What a reboot leaves is the directory and what is written there."""
    node = host.nodes()[0]
    assert mkfs("--size", "64M", "--numa", node, "--label", "x", place).returncode == 0
    assert attaching.revive(str(place)) is None
    put(native, place, "block")
    directory.unmount_tmpfs(str(place))
    with pytest.raises(PoolError, match="memory of the pool .* is gone") as caught:
        open_pool(str(place))
    assert caught.value.exit_code == Exit.EMPTY
    text = attaching.revive(str(place))
    assert text is not None
    assert "64 MiB" in text
    opened, super_ = attaching.open_checked(str(place), readonly=True, lock="shared")
    with opened:
        assert bytes(super_["label"]).rstrip(b"\0") == b"x"
        assert (opened.info.numa_node, opened.info.capacity_bytes) == (node, 64 * MIB)
    with attaching.attached_readonly(str(place)) as (pool, _):
        assert pool.readdir(1, 0, 10) == []
    assert attaching.revive(str(place)) is None


def test_nothing_is_destroyed_without_force(native: Any, place: Path) -> None:
    assert mkfs("--size", "64M", place).returncode == 0
    put(native, place, "block")
    refused(Exit.HOLDS_POOL, "--force", "--size", "64M", place)
    with attaching.attached_readonly(str(place)) as (pool, _):
        assert len(pool.readdir(1, 0, 10)) == 1
    done = mkfs("--force", place)
    assert done.returncode == 0, done.stderr
    assert "overwriting" in done.stderr
    with attaching.attached_readonly(str(place)) as (pool, _):
        assert pool.readdir(1, 0, 10) == []
    # its memory gone, it is still a pool
    directory.unmount_tmpfs(str(place))
    refused(Exit.HOLDS_POOL, "--force", "--size", "64M", place)
    assert mkfs("--force", place).returncode == 0
    assert sum(m.mount_point == str(place) for m in host.mounts()) == 1


def test_a_pool_that_is_in_use(place: Path) -> None:
    assert mkfs("--size", "64M", place).returncode == 0
    with open_pool(str(place), lock="exclusive"):
        refused(Exit.IN_USE, str(os.getpid()), "--force", "--size", "64M", place)
    # a file that somebody has open keeps the tmpfs, though nobody has the lock
    with open(place / "meta", "rb"):
        refused(Exit.IN_USE, "open or mapped", "--force", "--size", "64M", place)
        done = mkfs("--force", "--force", "--size", "32M", place)
    assert done.returncode == 0, done.stderr
    with open_pool(str(place), lock=None) as opened:
        assert opened.info.capacity_bytes == 32 * MIB


def test_what_is_there_is_left_untouched(place: Path) -> None:
    (place / "precious").write_text("x")
    for force in ([], ["--force"], ["--force", "--force"]):
        refused(Exit.FOREIGN, "precious", *force, "--size", "64M", place)
    assert os.listdir(place) == ["precious"]
    (place / "precious").unlink()
    subprocess.run(["mount", "-t", "tmpfs", "other", str(place)], check=True)
    refused(Exit.FOREIGN, "is where other (tmpfs) is mounted", "--force", "--size", "64M", place)
    assert os.listdir(place) == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], Exit.USAGE, "--size 8G"),
        (["--size", "64M", "--hosts", "4"], Exit.USAGE, "--hosts"),
        (["--size", "64M", "--max-size", "128M"], Exit.USAGE, "--max-size"),
        (["--size", "64M", "--sparse"], Exit.USAGE, "--sparse"),
        (["--size", "64K"], Exit.GEOMETRY, "larger --size"),
        (["--size", "8M", "--inodes", "1000000"], Exit.GEOMETRY, "fewer --inodes"),
    ],
)
def test_refusals(place: Path, arguments: list[str], code: Exit, words: str) -> None:
    refused(code, words, *arguments, place)
    assert os.listdir(place) == []
    assert directory.tmpfs_on(str(place)) is None


def test_numa_is_for_directories(pool_dir: Path) -> None:
    refused(Exit.USAGE, "--numa", "--size", "8M", "--numa", 0, pool_dir / "file")
    assert not (pool_dir / "file").exists()


def test_without_root(place: Path) -> None:
    os.chmod(place.parent, 0o755)
    os.chown(place, 65534, 65534)
    script = (
        "import os, sys; from belugafs._pool.make import make_pool\n"
        "from belugafs._pool.request import Request\n"
        "from belugafs.pool import PoolError\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: make_pool(Request(sys.argv[1], 64 << 20))\n"
        "except PoolError as error: print(int(error.exit_code), error)"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", "import belugafs._native; " + script, str(place)],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert done.stdout.startswith(f"{int(Exit.PERMISSION)} "), done.stderr
    assert "only root may" in done.stdout
    assert os.listdir(place) == []


def test_more_than_there_is_memory_is_said(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from belugafs._pool.make import make_pool
    from belugafs._pool.request import Request

    monkeypatch.setattr(host, "available_memory", lambda node=None: host.Memory(MIB, "a test"))
    summary = make_pool(Request(str(place), 64 * MIB))
    assert any("64 MiB is more than the memory that is left by a test" in n for n in summary.notes)


@pytest.mark.parametrize("step", ["write_conf", "mount_tmpfs", "fill"])
def test_cut_off_in_between(
    native: Any, place: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Killed before or in a step: the directory mounts as an empty pool, is still empty, or says
    what it is; and mkfs makes a pool of it."""
    from belugafs._pool.make import make_pool
    from belugafs._pool.request import Request

    child = os.fork()
    if child == 0:
        monkeypatch.setattr(directory, step, lambda *arguments: os._exit(9))
        try:
            make_pool(Request(str(place), 64 * MIB))
        finally:
            os._exit(9)
    assert os.waitpid(child, 0)[1] >> 8 == 9
    if step == "write_conf":
        assert os.listdir(place) == []
    elif step == "mount_tmpfs":
        assert attaching.revive(str(place)) is not None
    force = [] if step == "write_conf" else ["--force"]
    done = mkfs(*force, "--size", "64M", place)
    assert done.returncode == 0, done.stderr
    put(native, place, "block")


def test_a_tmpfs_without_a_pool_says_so(place: Path) -> None:
    directory.write_conf(str(place), directory.Conf(64 * MIB))
    directory.mount_tmpfs(str(place), directory.Conf(64 * MIB))
    with pytest.raises(PoolError, match="cut off") as caught:
        open_pool(str(place))
    assert caught.value.exit_code == Exit.EMPTY
    assert mkfs("--force", place).returncode == 0
    with open_pool(str(place)) as opened:
        assert opened.info.capacity_bytes == 64 * MIB


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"belugafs": 2, "size_bytes": 1}', '{"belug'])
def test_a_damaged_conf(place: Path, text: str) -> None:
    (place / "belugafs.conf").write_text(text)
    with pytest.raises(PoolError, match=r"belugafs\.conf"):
        attaching.revive(str(place))
    refused(Exit.FOREIGN, "belugafs.conf", "--size", "64M", place)
    assert directory.tmpfs_on(str(place)) is None
    assert mkfs("--force", "--size", "64M", place).returncode == 0


def test_the_file_of_metadata_is_no_pool_by_itself(place: Path) -> None:
    assert mkfs("--size", "64M", place).returncode == 0
    with (
        pytest.raises(PoolError, match="name the directory"),
        attaching.attached_readonly(str(place / "meta")),
    ):
        pass

"""``fsck.belugafs`` as a command: what it repairs, asks, refuses, and how it ends.

What each kind of damage leads to is in ``tests/native/t_repair.expected``; here are the options,
the exit codes, what is printed, and a process that is really killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.flat_pool

MIB = 1 << 20
FILES = 60
SIZE = 3 * 4096 + 100
PAGE = 4096
KIND_OBJECTS, KIND_BUCKET, KIND_ROOT = 0x4F, 0x48, 0x52
_LIMIT_S = 30

Fsck = Callable[..., subprocess.CompletedProcess[str]]


def content(number: int) -> bytes:
    return random.Random(number).randbytes(SIZE)


def run_fsck(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "belugafs.fsck", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )


@pytest.fixture
def pool(make_pool: Callable[..., Path], attach: Callable[..., Any]) -> Path:
    """A pool with a directory ``d`` of ``FILES`` files, detached."""
    path = make_pool(8 * MIB, inodes=256)
    core = attach(path)
    directory = core.mkdir(1, b"d").ino
    for number in range(FILES):
        _, handle = core.create(directory, b"file%d" % number)
        core.write(handle, 0, content(number))
        core.flush(handle)
        core.release(handle)
    core.close()
    return path


def files_of(native: Any, path: Path) -> dict[str, bytes]:
    """Names below the root directory and what they hold, by an attachment that stores nothing."""
    found: dict[str, bytes] = {}
    fd = os.open(path, os.O_RDONLY)
    try:
        core = native.Pool(
            fd, os.fstat(fd).st_size, host_uuid=b"r" * 16, boot_id=b"r" * 16, readonly=True
        )
    finally:
        os.close(fd)

    def walk(directory: int, above: str) -> None:
        for raw, *_ in core.readdir(directory, 0, 1000):
            name = f"{above}/{os.fsdecode(raw)}"
            attributes = core.lookup(directory, raw)
            if attributes.mode >> 12 == 4:
                walk(attributes.ino, name)
                continue
            handle = core.open(attributes.ino)
            found[name] = core.read(handle, 0, attributes.size)
            core.release(handle)

    try:
        walk(1, "")
    finally:
        core.close()
    return found


def all_files() -> dict[str, bytes]:
    return {f"/d/file{number}": content(number) for number in range(FILES)}


def newest_page(native: Any, path: Path, kind: int, holds: bytes) -> int:
    """Offset of the page of this kind that holds these bytes and was written last."""
    fd = os.open(path, os.O_RDONLY)
    try:
        head = native.peek(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)
    data = path.read_bytes()
    best: tuple[int, int, int] | None = None
    for number in range(1, head["meta_pages"]):
        offset = head["meta_off"] + number * PAGE
        page = data[offset : offset + PAGE]
        if int.from_bytes(page[:2], "little") != kind or holds not in page:
            continue
        tag = (int.from_bytes(page[8:12], "little"), int.from_bytes(page[16:24], "little"))
        best = max(best or (0, 0, 0), (*tag, offset))
    assert best is not None, "no such page"
    return best[2]


def flip(path: Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0x10]))


def damage_names(native: Any, path: Path, of: bytes = b"file7") -> None:
    """The page with this name: it, and a few others, lose their names; which others is chance."""
    flip(path, newest_page(native, path, KIND_BUCKET, of) + 2000)


def test_clean_pool(pool: Path) -> None:
    before = pool.read_bytes()
    for mode in ("-n", "-y", "-p", "-a"):
        done = run_fsck(mode, "--data", pool)
        assert (done.returncode, done.stderr) == (0, ""), done
        assert "clean" in done.stdout
    assert pool.read_bytes() == before, "a clean pool is not written to"


def test_repair(native: Any, pool: Path) -> None:
    damage_names(native, pool)
    before = pool.read_bytes()
    done = run_fsck("-n", pool)
    assert done.returncode == 4
    assert "problem: page-csum: " in done.stdout
    assert pool.read_bytes() == before, "-n writes nothing"
    done = run_fsck("-y", pool)
    assert (done.returncode, done.stderr) == (1, ""), done
    assert "repair: lost-found: " in done.stdout
    assert "all repaired" in done.stdout.splitlines()[-1]
    assert run_fsck("-n", "--data", pool).returncode == 0
    wanted, found = all_files(), files_of(native, pool)
    assert {name: found[name] for name in found if name in wanted} == {
        name: wanted[name] for name in found if name in wanted
    }
    moved = [data for name, data in found.items() if name.startswith("/lost+found/#")]
    assert "/d/file7" not in found
    assert content(7) in moved
    assert len(found) == FILES, "whatever is whole is still there, with or without its name"
    assert sorted(found.values()) == sorted(wanted.values())


def test_repair_says_what_it_did_as_json(native: Any, pool: Path) -> None:
    damage_names(native, pool)
    done = run_fsck("-y", "--json", pool)
    result = json.loads(done.stdout)
    assert done.returncode == result["exit"] == 1
    assert result["ok"] is True
    assert result["counts"]["problems"] > 0 == result["counts"]["left"]
    assert result["counts"]["put_back"] >= 1
    by_severity = {finding["severity"] for finding in result["findings"]}
    assert {"problem", "repair"} <= by_severity
    assert json.loads(run_fsck("-n", "--json", pool).stdout)["counts"]["problems"] == 0


def test_damaged_content_is_found_and_dropped_with_data_only(native: Any, pool: Path) -> None:
    place = pool.read_bytes().index(content(3)[:64])
    flip(pool, place + 5)
    assert run_fsck("-n", pool).returncode == 0
    done = run_fsck("-n", "--data", pool)
    assert done.returncode == 4
    assert "problem: data: /d/file3: " in done.stdout
    done = run_fsck("-y", "--data", pool)
    assert done.returncode == 1
    assert "repair: file-dropped: /d/file3: its content isn't what was sealed" in done.stdout
    wanted = all_files()
    del wanted["/d/file3"]
    assert files_of(native, pool) == wanted


def test_preen_leaves_alone_what_would_be_lost(native: Any, pool: Path) -> None:
    before = files_of(native, pool)
    # A superblock copy can be written from the other one: nothing is lost.
    flip(pool, 100)
    done = run_fsck("-p", pool)
    assert done.returncode == 1
    assert "repair: super-copied: superblock copy A" in done.stdout
    assert files_of(native, pool) == before
    # A page of objects can't.
    flip(pool, newest_page(native, pool, KIND_OBJECTS, b"\xa4\x81\0\0") + 2000)
    damaged = pool.read_bytes()
    done = run_fsck("-p", pool)
    assert done.returncode == 4
    assert pool.read_bytes() == damaged
    assert run_fsck("-y", pool).returncode == 1
    found = files_of(native, pool)
    assert found.items() <= before.items()
    assert len(before) - len(found) <= 16, "a page holds 16 objects"


def test_both_superblocks(pool: Path) -> None:
    flip(pool, 100)
    flip(pool, 4096 + 100)
    before = pool.read_bytes()
    done = run_fsck("-y", pool)
    assert done.returncode == 8
    assert "first 8 KiB" in done.stderr
    assert "mkfs.belugafs" in done.stderr
    assert run_fsck("-n", pool).returncode in (4, 8)
    assert pool.read_bytes() == before
    pool.unlink()


def test_what_is_no_pool(pool_dir: Path) -> None:
    path = pool_dir / "other"
    path.write_bytes(b"\x7fELF" * MIB)
    before = path.read_bytes()
    for mode in ("-n", "-y"):
        done = run_fsck(mode, path)
        assert done.returncode == 8
        assert done.stderr.startswith("fsck.belugafs: ")
    assert path.read_bytes() == before
    assert run_fsck("-y", pool_dir / "none").returncode == 8


def test_a_host_elsewhere_that_may_be_alive(
    native: Any, pool: Path, attach: Callable[..., Any]
) -> None:
    # It is registered, with another machine's ids, and has not detached.
    attach(pool, host_uuid=b"other-host-16-by", boot_id=b"o" * 16, slot=3).close(clean=False)
    damage_names(native, pool)
    before = pool.read_bytes()
    done = run_fsck("-y", pool)
    assert done.returncode == 8
    assert "host slot 3 is in use by host" in done.stderr
    assert "--gone 3" in done.stderr
    assert run_fsck("-y", "--gone", 2, pool).returncode == 8
    assert pool.read_bytes() == before
    assert run_fsck("-n", pool).returncode == 4, "looking is always possible"
    done = run_fsck("-y", "--gone", 3, pool)
    assert done.returncode == 1, done
    assert run_fsck("-y", "--gone", 16, pool).returncode == 16


@pytest.mark.parametrize("damaged", [b"file7", b"synced"])
def test_a_crashed_host_of_this_machine_is_no_obstacle(
    native: Any, pool: Path, attach: Callable[..., Any], damaged: bytes
) -> None:
    from belugafs import hostid

    core = attach(pool, host_uuid=hostid.host_uuid("a"), boot_id=hostid.boot_id())
    _, handle = core.create(1, b"synced")
    core.write(handle, 0, b"kept" * 3000)
    core.fsync(handle)
    core.close(clean=False)
    damage_names(native, pool, of=damaged)
    done = run_fsck("-y", pool)
    assert done.returncode == 1, done
    # What was synced before the crash is sealed by the next attachment, as without the repair.
    attach(pool, host_uuid=hostid.host_uuid("a"), boot_id=hostid.boot_id()).close()
    files = files_of(native, pool)
    found = [name for name in files if name == "/synced" or name.startswith("/lost+found/#")]
    assert b"kept" * 3000 in [files[name] for name in found], files.keys()
    assert damaged != b"synced" or "/synced" not in files


def on_terminal(path: Path, answers: bytes) -> tuple[int, str]:
    """Runs fsck on a terminal, typing these answers; its exit code and all that is shown."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "belugafs.fsck", str(path)])
    shown = b""
    watchdog = time.monotonic() + _LIMIT_S
    try:
        while time.monotonic() < watchdog:
            try:
                part = os.read(terminal, 4096)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
            while answers and shown.count(b"[y/N]") > asked(shown):
                os.write(terminal, answers[:1] + b"\n")
                answers = answers[1:]
                shown += b"[answered]"
    finally:
        with contextlib.suppress(ProcessLookupError):
            if time.monotonic() >= watchdog:
                os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
    return os.waitstatus_to_exitcode(status), shown.decode(errors="replace")


def asked(shown: bytes) -> int:
    return shown.count(b"[answered]")


def test_questions_on_a_terminal(native: Any, pool: Path) -> None:
    damage_names(native, pool)
    before = pool.read_bytes()
    code, shown = on_terminal(pool, b"n")
    assert code == 4, shown
    assert "Write the repaired tree" in shown
    assert pool.read_bytes() == before
    code, shown = on_terminal(pool, b"y")
    assert code == 1, shown
    assert "\x1b[" in shown, "there is a progress bar on a terminal"
    assert run_fsck("-n", pool).returncode == 0


def test_killed_in_the_middle(native: Any, pool: Path) -> None:
    """Whenever the process is killed, the next run ends with what an undisturbed one leaves."""
    damage_names(native, pool)
    flip(pool, newest_page(native, pool, KIND_OBJECTS, b"\xa4\x81\0\0") + 2000)
    damaged = pool.read_bytes()
    started = time.monotonic()
    assert run_fsck("-y", "--data", pool).returncode == 1
    took_s = time.monotonic() - started
    wanted = files_of(native, pool)
    picks = random.Random(5)
    for _ in range(12):
        pool.write_bytes(damaged)
        process = subprocess.Popen(
            [sys.executable, "-m", "belugafs.fsck", "-y", "--data", str(pool)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(took_s * (0.5 + 0.5 * picks.random()))
        process.kill()
        process.wait()
        assert run_fsck("-y", "--data", pool).returncode in (0, 1)
        assert files_of(native, pool) == wanted


def test_the_newest_root_page_is_damaged(native: Any, pool: Path) -> None:
    """The state before it is taken, and that is said."""
    flip(pool, newest_page(native, pool, KIND_ROOT, b"") + 3000)
    done = run_fsck("-y", pool)
    assert done.returncode == 1, done
    assert "repair: state-chosen: " in done.stdout
    assert files_of(native, pool) == all_files()


def test_a_repaired_pool_is_mounted_again(mounted_pool: Any, native: Any) -> None:
    top = mounted_pool.path
    (top / "d").mkdir()
    for number in range(FILES):
        (top / f"d/file{number}").write_bytes(content(number))
    mounted_pool.umount()
    damage_names(native, mounted_pool.pool_path)
    done = mounted_pool.command("belugafs.fsck", "-y", str(mounted_pool.pool_path))
    assert done.returncode == 1, done
    mounted_pool.mount()
    for number in range(FILES):
        path = top / f"d/file{number}"
        if path.exists():
            assert path.read_bytes() == content(number)
    found = {path.read_bytes() for path in (top / "lost+found").iterdir()}
    assert content(7) in found
    (top / "d/file7").write_bytes(content(7))
    assert (top / "d/file7").read_bytes() == content(7)
    done = mounted_pool.command("belugafs.fsck", "-y", str(mounted_pool.pool_path))
    assert done.returncode == 8
    assert f"umount {top}" in done.stderr

"""How a mount begins and ends: heals, unmounts, is cut off, is killed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from belugafs import daemon

MIB = 1 << 20


def content(name: str, size: int = 256 * 1024) -> bytes:
    return hashlib.shake_128(name.encode()).digest(size)


def put(mount: Path, name: str, size: int = 256 * 1024) -> None:
    path = mount / name
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(content(name, size))
    temporary.rename(path)


def audit(mount: Path) -> tuple[int, list[str]]:
    """The number of published blocks, and those that aren't whole and right."""
    wrong = []
    count = 0
    for directory, _, names in os.walk(mount):
        for name in names:
            if name.endswith(".tmp"):
                continue
            path = Path(directory) / name
            data = path.read_bytes()
            count += 1
            if data != content(str(path.relative_to(mount)), len(data)) or not data:
                wrong.append(str(path))
    return count, wrong


def test_blocks_stay_over_a_remount(mounted_pool: Any) -> None:
    for number in range(20):
        put(mounted_pool.path, f"m/{number % 4:02x}/{number}")
    mounted_pool.remount()
    assert audit(mounted_pool.path) == (20, [])


def test_one_mount_heals_a_dead_one(mounted_pool: Any) -> None:
    """kill -9; then one mount command and no cleaning (and not a byte of stdin)."""
    for number in range(100):
        put(mounted_pool.path, f"m/{number:03d}")
    mounted_pool.kill9()
    with pytest.raises(OSError) as caught:
        os.listdir(mounted_pool.path)
    # the kernel says the one or the other, by how far it is with giving up the connection
    assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)

    started = time.monotonic()
    mounted_pool.mount()
    assert time.monotonic() - started < 10
    assert audit(mounted_pool.path) == (100, [])

    mounted_pool.umount()
    mounted_pool.path.rmdir()
    mounted_pool.path.mkdir()


def test_several_corpses(mounted_pool: Any) -> None:
    for _ in range(3):
        mounted_pool.kill9()
        mounted_pool.mount()
    mounted_pool.umount()
    assert not os.path.ismount(mounted_pool.path)


def test_mount_right_after_umount(mounted_pool: Any) -> None:
    """umount returns before the daemon has let go of the pool."""
    for number in range(5):
        put(mounted_pool.path, f"{number}")
        subprocess.run(["umount", str(mounted_pool.path)], check=True, timeout=20)
        mounted_pool.mount()
    assert audit(mounted_pool.path) == (5, [])


def test_a_busy_mount_is_not_unmounted_but_lazily(mounted_pool: Any, native: Any) -> None:
    put(mounted_pool.path, "a", MIB)
    with open(mounted_pool.path / "a", "rb") as file:
        done = subprocess.run(
            ["umount", str(mounted_pool.path)], capture_output=True, text=True, check=False
        )
        assert done.returncode != 0
        assert "busy" in done.stderr
        mounted_pool.umount(lazy=True)
        assert not os.path.ismount(mounted_pool.path)
        assert file.read() == content("a", MIB)
    mounted_pool.wait_gone()
    mounted_pool.mount()
    assert audit(mounted_pool.path) == (1, [])


def test_a_lazy_unmount_lets_a_writer_finish(mounted_pool: Any) -> None:
    with open(mounted_pool.path / "a", "wb") as file:
        mounted_pool.umount(lazy=True)
        file.write(content("a"))
    mounted_pool.wait_gone()
    mounted_pool.mount()
    assert audit(mounted_pool.path) == (1, [])


def test_sigterm_unmounts(mounted_pool: Any) -> None:
    put(mounted_pool.path, "a")
    os.kill(mounted_pool.daemon_pid, signal.SIGTERM)
    mounted_pool.wait_gone()
    assert not os.path.ismount(mounted_pool.path)
    mounted_pool.mount()
    assert audit(mounted_pool.path) == (1, [])


def test_sigterm_cuts_open_files_off(mounted_pool: Any) -> None:
    mounted_pool.expect_log("still open; they are cut off")
    put(mounted_pool.path, "a")
    fd = os.open(mounted_pool.path / "a", os.O_RDONLY)
    os.kill(mounted_pool.daemon_pid, signal.SIGTERM)
    time.sleep(0.5)
    assert not os.path.ismount(mounted_pool.path)
    assert os.read(fd, 4) == content("a")[:4]  # still served
    os.kill(mounted_pool.daemon_pid, signal.SIGTERM)  # the second is for those in a hurry
    mounted_pool.wait_gone()
    with pytest.raises(OSError):
        os.fstatvfs(fd)  # which no cache answers
    with contextlib.suppress(OSError):
        os.close(fd)
    mounted_pool.mount()
    assert audit(mounted_pool.path) == (1, [])


def test_an_aborted_connection_ends_the_daemon(mounted_pool: Any) -> None:
    """A daemon that is stopped, callers that hang: abort frees them, the daemon ends itself."""
    mounted_pool.expect_log("connection ended")
    put(mounted_pool.path, "a", MIB)
    mounted_pool.stop_daemon()
    errors: list[int] = []

    def call(work: Any) -> None:
        try:
            work()
        except OSError as error:
            errors.append(error.errno or 0)

    callers = [
        threading.Thread(target=call, args=(work,), daemon=True)
        for work in (
            lambda: os.listdir(mounted_pool.path),
            lambda: (mounted_pool.path / "a").read_bytes(),
        )
    ]
    for caller in callers:
        caller.start()
    time.sleep(0.3)
    assert not errors
    mounted_pool.abort()
    for caller in callers:
        caller.join(5)
    assert len(errors) == 2
    os.kill(mounted_pool.daemon_pid, signal.SIGCONT)
    mounted_pool.wait_gone(30)
    mounted_pool.mount()
    assert audit(mounted_pool.path) == (1, [])


def test_mount_does_not_hang_on_a_hung_mount_point(mounted_pool: Any, make_pool: Any) -> None:
    mounted_pool.stop_daemon()
    started = time.monotonic()
    done = mounted_pool.command("belugafs.mount", str(make_pool()), str(mounted_pool.path))
    assert done.returncode == 32
    assert time.monotonic() - started < 15
    assert "it was checking the mount point" in done.stderr
    os.kill(mounted_pool.daemon_pid, signal.SIGCONT)
    os.listdir(mounted_pool.path)


def test_in_the_foreground(unmounted_pool: Any) -> None:
    command = [
        sys.executable, "-m", "belugafs.mount", "-f",
        str(unmounted_pool.pool_path), str(unmounted_pool.path),
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 10
        while not os.path.ismount(unmounted_pool.path):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        put(unmounted_pool.path, "a")
        process.terminate()
        _, messages = process.communicate(timeout=10)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "serving" in messages
    unmounted_pool.mount()
    assert audit(unmounted_pool.path) == (1, [])


def test_the_daemon_lets_go_of_what_it_was_started_with(unmounted_pool: Any) -> None:
    """Who reads the output of ``mount`` to its end must not wait for the daemon's end; and the
    directory and files of whoever started it aren't kept busy."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    command = [
        sys.executable, "-m", "belugafs.mount", "-v", str(unmounted_pool.pool_path),
        str(unmounted_pool.path), "-o", f"log={unmounted_pool.log_path}",
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=20, check=True, pass_fds=(writing,)
    )
    os.close(writing)
    assert os.read(reading, 1) == b""  # the daemon has no copy
    os.close(reading)
    assert f"mounted on {unmounted_pool.path} by process" in done.stdout
    pid = unmounted_pool.daemon_pid = int(unmounted_pool.stats()["pid"])
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert os.getsid(pid) != os.getsid(0)
    targets = {os.readlink(f"/proc/{pid}/fd/{number}") for number in (0, 1, 2)}
    assert targets == {os.devnull}
    unmounted_pool.umount()


@pytest.mark.flat_pool
def test_readonly(mounted_pool: Any) -> None:
    put(mounted_pool.path, "a")
    mounted_pool.umount()
    before = mounted_pool.pool_path.read_bytes()
    mounted_pool.mount("ro")
    assert audit(mounted_pool.path) == (1, [])
    for change in (
        lambda: (mounted_pool.path / "b").write_bytes(b"x"),
        lambda: (mounted_pool.path / "a").unlink(),
        lambda: (mounted_pool.path / "d").mkdir(),
        lambda: os.utime(mounted_pool.path / "a"),
    ):
        with pytest.raises(OSError) as caught:
            change()
        assert caught.value.errno == errno.EROFS
    mounted_pool.umount()
    assert mounted_pool.pool_path.read_bytes() == before


def test_umount_with_many_open_files_of_a_killed_process(mounted_pool: Any) -> None:
    """Nothing depends on clean-up at exit."""
    for number in range(200):
        put(mounted_pool.path, f"{number}", 4096)
    code = (
        "import os, sys, time\n"
        "fds = [os.open(f'{sys.argv[1]}/{n}', os.O_RDONLY) for n in range(200)] * 1\n"
        "fds += [os.open(f'{sys.argv[1]}/{n}', os.O_RDONLY) for n in range(200)]\n"
        "print('ready', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(mounted_pool.path)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    assert int(mounted_pool.stats()["open_files"]) >= 200
    started = time.monotonic()
    process.kill()
    process.wait()
    assert time.monotonic() - started < 3
    mounted_pool.umount()
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("number", "unmounted", "level"),
    [
        (errno.ECONNABORTED, True, logging.INFO),  # umount while a request was being read
        (errno.ECONNABORTED, False, logging.ERROR),  # aborted through /sys
        (errno.EIO, True, logging.ERROR),
    ],
)
def test_only_an_end_that_nobody_asked_for_is_an_error(
    number: int, unmounted: bool, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    group = ExceptionGroup("of trio", [OSError(number, os.strerror(number))])
    daemon._say_end(group, "/mnt", unmounted=unmounted)
    assert [record.levelno for record in caplog.records] == [level]


@pytest.mark.parametrize(
    ("name", "text", "number", "level"),
    [
        ("pyfuse3", "fuse_release(): fuse_reply_* failed with %s", errno.ENOENT, logging.INFO),
        ("pyfuse3", "fuse_release(): fuse_reply_* failed with %s", errno.EINVAL, logging.ERROR),
        ("belugafs.fuse", "fuse_reply_ or not: %s", errno.ENOENT, logging.ERROR),
    ],
)
def test_a_reply_that_comes_after_the_end_is_no_error(
    name: str, text: str, number: int, level: int
) -> None:
    text_and_args = (text, (os.strerror(number),))
    record = logging.LogRecord(name, logging.ERROR, __file__, 1, *text_and_args, None)
    assert daemon._judge(record)
    assert record.levelno == level
    assert record.levelname == logging.getLevelName(level)


@pytest.mark.parametrize("how", ["kill", "exit", "raise"])
@pytest.mark.parametrize("publish", ["open", "close"])
def test_a_killed_writer_does_not_seal(mounted_pool: Any, how: str, publish: str) -> None:
    if publish == "close":
        mounted_pool.remount("publish=close")
    code = (
        "import os, sys, time\n"
        "fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)\n"
        "os.write(fd, b'x' * 5000)\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "if sys.argv[2] == 'raise': raise SystemExit(3)\n"
        "os._exit(0)\n"
    )
    path = mounted_pool.path / "victim"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    if publish == "close":
        assert not path.exists()
        assert "victim" not in os.listdir(mounted_pool.path)
    if how == "kill":
        process.kill()
    else:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(b"\n")
            process.stdin.close()
    process.wait()
    if how == "kill" and publish == "close":
        deadline = time.monotonic() + 5
        while int(mounted_pool.stats()["open_files"]) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not path.exists()
        assert "victim" not in os.listdir(mounted_pool.path)
        return
    assert mounted_pool.settled_state(path) == ("abandoned" if how == "kill" else "sealed")
    assert path.read_bytes() == b"x" * 5000


@pytest.mark.parametrize("how", ["duplicate", "child", "forked", "bind"])
def test_with_publish_close_the_writers_own_last_close_counts(
    unmounted_pool: Any, tmp_path: Path, how: str
) -> None:
    """Half a file doesn't get its name when a duplicate is closed, or a child closes what it has
    inherited; nor does it when its writer is killed after that."""
    unmounted_pool.mount("publish=close")
    top = place = unmounted_pool.path
    if how == "bind":
        if os.geteuid() != 0:
            pytest.skip("only root can mount")
        place = tmp_path / "bound"
        place.mkdir()
        subprocess.run(["mount", "--bind", str(top), str(place)], check=True, timeout=20)
    code = """if True:
        import os, subprocess, sys
        place, how = sys.argv[1:]
        for name in ("closed", "killed (deleted)"):
            fd = os.open(f"{place}/{name}", os.O_CREAT | os.O_WRONLY)
            os.write(fd, b"x" * 5000)
            if how == "child":
                subprocess.run(["true"])
                os.set_inheritable(fd, True)
                subprocess.run(["true"], close_fds=False)
            elif how == "forked":
                if not (child := os.fork()):
                    os.write(fd, b"x" * 1000)
                    os._exit(0)
                os.waitpid(child, 0)
            else:
                os.close(os.dup(fd))
            print("half", flush=True)
            sys.stdin.readline()
            os.write(fd, b"x" * 5000)
            if name == "closed": os.close(fd)
        """
    try:
        with subprocess.Popen(
            [sys.executable, "-c", code, str(place), how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            assert process.stdout.readline() == b"half\n"
            assert not (top / "closed").exists()
            assert os.listdir(top) == []
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"half\n"
            assert os.listdir(top) == ["closed"]
            assert len((top / "closed").read_bytes()) >= 10_000
            process.kill()
        deadline = time.monotonic() + 5
        while int(unmounted_pool.stats()["open_files"]) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert os.listdir(top) == ["closed"]
        subprocess.run(["sh", "-c", "echo x > a; (echo y; echo z) > b"], cwd=place, check=True)
        assert [(top / name).read_text() for name in "ab"] == ["x\n", "y\nz\n"]
    finally:
        if how == "bind":
            subprocess.run(["umount", str(place)], check=True, timeout=20)


@pytest.mark.parametrize("publish", ["open", "close"])
def test_a_writer_that_becomes_another_program_has_closed(
    unmounted_pool: Any, publish: str
) -> None:
    """What isn't inherited is closed by exec, and is whole then; what is, when that one ends. The
    kernel lets nobody look at a process that is in the middle of it."""
    unmounted_pool.mount(f"publish={publish}")
    top = unmounted_pool.path
    code = (
        "import os, sys\n"
        "for name in ('closed', 'kept'):\n"
        "    fd = os.open(f'{sys.argv[1]}/{name}', os.O_CREAT | os.O_WRONLY)\n"
        "    os.write(fd, b'x' * 5000)\n"
        "os.set_inheritable(fd, True)\n"
        "os.execvp('sh', ['sh', '-c', 'echo ready; read line'])\n"
    )

    with subprocess.Popen(
        [sys.executable, "-c", code, str(top)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert unmounted_pool.settled_state(top / "closed") == "sealed"
        if publish == "close":
            assert os.listdir(top) == ["closed"]
        else:
            assert os.getxattr(top / "kept", "user.beluga.state") == b"new"
        process.stdin.write(b"\n")
    for name in ("closed", "kept"):
        assert unmounted_pool.settled_state(top / name) == "sealed"
        assert (top / name).read_bytes() == b"x" * 5000

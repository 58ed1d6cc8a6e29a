"""A pool in memory, mounted for the time of a demo, and removed whatever happens.

Everything that touches the mount runs in a child process with a deadline. When one passes, the
FUSE connection is aborted, which frees every process that waits on it, so a hung filesystem
can neither hang the demo nor survive it. This process itself never looks below the mount point:
what it knows comes from /proc/self/mountinfo.

Uses only what a person would type: mkfs.belugafs, mount, umount, fsck.belugafs.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_WRAPPER = Path("/sbin/mount.belugafs")
_CONNECTIONS = Path("/sys/fs/fuse/connections")
_MOUNT_LIMIT_S = 15.0
_UNKNOWN_LIMIT_S = 2.0


class DemoError(Exception):
    """A step failed or hung; the text says which and what it printed."""


@dataclass(frozen=True)
class Ran:
    """A finished command: its exit code and its standard output and error, together."""

    code: int
    output: str


def tool(name: str) -> list[str]:
    """The command line of one of belugafs's own programs, in this Python environment.

    ``name`` is ``belugafs``, ``mkfs.belugafs``, ``mount.belugafs`` or ``fsck.belugafs``.
    """
    script = Path(sys.executable).parent / name
    if script.exists():
        return [str(script)]
    module = "cli" if name == "belugafs" else name.removesuffix(".belugafs")
    return [sys.executable, "-m", f"belugafs.{module}"]


def mount_entry(mountpoint: Path) -> tuple[str, str] | None:
    """(device number as ``major:minor``, filesystem type) of what is mounted there, or None.

    Asks the kernel's table, not the path: a stat on a dead or hung mount would fail or hang.
    """
    wanted = str(mountpoint)
    found = None
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        # Spaces and the like stand as octal escapes.
        path = fields[4].encode().decode("unicode_escape")
        if path == wanted:
            separator = fields.index("-")
            found = (fields[2], fields[separator + 1])  # the last one is on top
    return found


def run(
    command: Sequence[str],
    *,
    timeout_s: float,
    on_hang: Callable[[], None] | None = None,
    env: dict[str, str] | None = None,
    log: Path | None = None,
) -> Ran:
    """Run a command to its end; ``on_hang`` frees it when ``timeout_s`` has passed.

    Output goes to ``log`` if given: for a command that leaves a daemon behind, since the daemon
    would hold a pipe open. Raises DemoError when the command can't start or has hung.
    """
    with contextlib.ExitStack() as stack:
        if log is None:
            sink = stack.enter_context(tempfile.TemporaryFile())
        else:
            sink = stack.enter_context(log.open("w+b"))
        try:
            child = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )
        except OSError as error:
            raise DemoError(f"cannot run {shlex.join(command)}: {error}") from error
        try:
            child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            hang = f"{shlex.join(command)} hung for {timeout_s:.0f} s"
        except BaseException:
            _end(child, on_hang)
            raise
        else:
            hang = ""
        if hang:
            _end(child, on_hang)
        sink.seek(0)
        output = sink.read().decode(errors="replace")
    if hang:
        raise DemoError(f"{hang}; the last it printed:\n{output[-2000:]}")
    return Ran(child.returncode, output)


def _end(child: subprocess.Popen[bytes], on_hang: Callable[[], None] | None) -> None:
    """Kill a child and its group. One that waits on FUSE dies only once the mount lets go."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    try:
        child.wait(2)
    except subprocess.TimeoutExpired:
        if on_hang is not None:
            on_hang()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(10)


class DemoMount:
    """A pool file and a mount of it. ``close`` undoes all, also what was done half."""

    def __init__(self, pool: Path, mountpoint: Path | None, size: str) -> None:
        self.pool = pool
        self.size = size
        self._made_dir = mountpoint is None
        self.path = mountpoint or Path(tempfile.mkdtemp(prefix="belugafs-demo-"))
        self.path = self.path.resolve()
        self._log = Path(tempfile.mkstemp(prefix="belugafs-demo-", suffix=".log")[1])
        self._made_pool = False
        self._began_mount = False
        self._device: str | None = None
        self._daemon: subprocess.Popen[bytes] | None = None

    def make(self) -> list[str]:
        """mkfs; returns the command as typed."""
        if self.pool.exists():
            raise DemoError(f"{self.pool} exists already")
        self._made_pool = True
        command = ["mkfs.belugafs", "--size", self.size, str(self.pool)]
        self._check(run([*tool(command[0]), *command[1:]], timeout_s=120), command)
        return command

    def mount(self) -> list[str]:
        """Mount the pool; returns the command as typed.

        ``mount -t belugafs`` where its helper leads to this very environment, else the helper
        itself. Either may put a daemon in the background or stay; both are right.
        """
        if mount_entry(self.path) is not None:
            raise DemoError(f"something is mounted on {self.path} already")
        if os.geteuid() == 0 and _wrapper_is_ours():
            command = ["mount", "-t", "belugafs", str(self.pool), str(self.path)]
            line = command
        else:
            command = ["mount.belugafs", str(self.pool), str(self.path)]
            line = [*tool(command[0]), *command[1:]]
        self._began_mount = True
        with self._log.open("wb") as log:
            child = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._daemon = child
        deadline = time.monotonic() + 30
        while (entry := mount_entry(self.path)) is None:
            code = child.poll()
            if code not in (None, 0) or time.monotonic() > deadline:
                what = "hung" if code is None else f"failed with exit code {code}"
                raise DemoError(f"{shlex.join(command)} {what}:\n{self.log_tail()}")
            time.sleep(0.02)
        self._device = entry[0]
        # A name in the mount table is not yet an answer.
        self._check(self.run(["stat", "-f", str(self.path)], timeout_s=30), command)
        if child.poll() not in (None, 0):
            raise DemoError(f"{shlex.join(command)} failed:\n{self.log_tail()}")
        return command

    def run(
        self, command: Sequence[str], *, timeout_s: float, env: dict[str, str] | None = None
    ) -> Ran:
        """Run a command that uses the mount; a hang aborts the mount and raises DemoError."""
        return run(command, timeout_s=timeout_s, on_hang=self.abort, env=env)

    def unmount(self) -> list[str]:
        """Unmount and wait until the daemon has let go of the pool."""
        command = _umount_command(self.path)
        self._check(self.run(command, timeout_s=30), command)
        self._wait_released(20)
        return command

    def fsck(self) -> tuple[list[str], Ran]:
        """Check the unmounted pool; returns the command as typed and its result."""
        command = ["fsck.belugafs", "-n", str(self.pool)]
        return command, run([*tool(command[0]), *command[1:]], timeout_s=120)

    def abort(self) -> None:
        """Cut the FUSE connection: whoever waits on the mount gets an error at once."""
        entry = mount_entry(self.path)
        device = self._device or (entry[0] if entry else None)
        if device is None:
            return
        try:
            (_CONNECTIONS / device.split(":")[1] / "abort").write_text("1")
        except OSError:
            # fusectl isn't mounted or not ours: a forced unmount aborts as well.
            with contextlib.suppress(DemoError):
                run(["umount", "-f", str(self.path)], timeout_s=10)

    def log_tail(self) -> str:
        """The last lines that the mount's helper and daemon printed."""
        with contextlib.suppress(OSError):
            return self._log.read_text(errors="replace")[-2000:]
        return ""

    def close(self, keep: bool = False) -> None:
        """Remove mount, mount point, pool and log, in whatever state they are."""
        if not keep:
            self._await_mount(_MOUNT_LIMIT_S)
            # What was there before us is not ours to unmount.
            if self._began_mount and mount_entry(self.path) is not None:
                with contextlib.suppress(DemoError):
                    run(_umount_command(self.path), timeout_s=10)
            if self._began_mount and mount_entry(self.path) is not None:
                self.abort()
                with contextlib.suppress(DemoError):
                    run(_umount_command(self.path, lazy=True), timeout_s=10)
            if self._daemon is not None and self._daemon.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._daemon.wait(5)
                if self._daemon.poll() is None:
                    self._daemon.kill()
                    self._daemon.wait()
            if self._made_pool:
                self.pool.unlink(missing_ok=True)
            if self._made_dir and mount_entry(self.path) is None:
                with contextlib.suppress(OSError):
                    self.path.rmdir()
        self._log.unlink(missing_ok=True)

    def _await_mount(self, limit_s: float) -> None:
        """Where ``mount`` was interrupted, its command still runs, and what it mounts is ours to
        unmount: it is there before it ends."""
        if not self._began_mount:
            return
        # Interrupted before it was noted which process that is: it can only be waited for.
        deadline = time.monotonic() + (limit_s if self._daemon is not None else _UNKNOWN_LIMIT_S)
        while mount_entry(self.path) is None and time.monotonic() < deadline:
            if self._daemon is not None and self._daemon.poll() is not None:
                return
            time.sleep(0.02)

    def _check(self, ran: Ran, command: Sequence[str]) -> None:
        if ran.code != 0:
            text = f"{shlex.join(command)} failed with exit code {ran.code}:\n{ran.output[-2000:]}"
            raise DemoError(f"{text}\n{self.log_tail()}".rstrip())

    def _wait_released(self, timeout_s: float) -> None:
        """umount returns before the daemon has ended, and a checker wants the pool at rest."""
        deadline = time.monotonic() + timeout_s
        while _users_of(self.pool):
            if time.monotonic() > deadline:
                raise DemoError(f"process {_users_of(self.pool)} still holds {self.pool}")
            time.sleep(0.02)


def _wrapper_is_ours() -> bool:
    with contextlib.suppress(OSError):
        return f'"{sys.prefix}/bin/mount.belugafs"' in _WRAPPER.read_text()
    return False


def _umount_command(path: Path, lazy: bool = False) -> list[str]:
    if os.geteuid() == 0:
        return ["umount", *(["-l"] if lazy else []), str(path)]
    return ["fusermount3", "-u", *(["-z"] if lazy else []), str(path)]


def _users_of(pool: Path) -> list[int]:
    """Processes, as far as we may look, that have the pool open or mapped."""
    users: list[int] = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            links = [os.readlink(link) for link in (process / "fd").iterdir()]
            if str(pool) in links or f" {pool}\n" in (process / "maps").read_text():
                users.append(int(process.name))
    return users

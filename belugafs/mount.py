"""``mount.belugafs POOL MOUNTPOINT [-o OPTIONS]``, which mount(8) runs for ``-t belugafs``.

The command starts the daemon and waits until it serves, at most ``READY_LIMIT_S``. It never
hangs: when the time is over it says what the daemon was doing, ends it, and fails. On failure
nothing stays mounted and the pool is as it was.

Exit codes are mount(8)'s: 0, 1 (usage), 32 (mount failure).
"""

import argparse
import functools
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from belugafs import daemon, mounts
from belugafs._pool.host import Mount
from belugafs.cmdline import Parser
from belugafs.options import HELP, MountOptions, OptionError, parse_options
from belugafs.pool import PoolError

READY_LIMIT_S = 10.0
USAGE = 1
MOUNT_FAILURE = 32
_EXIT_LIMIT_S = 2.0

_MORE_HELP = """

examples:
  mount -t belugafs /dev/shm/beluga.pool /mnt/beluga                 as root
  mount.belugafs /dev/shm/beluga.pool ~/kv -o log=$HOME/kv.log       as any user
  mount.belugafs -f /dev/shm/beluga.pool /mnt/beluga                 stay, log to the terminal
  umount /mnt/beluga                                                 fusermount3 -u as a user

exit status: 0 mounted (with -f: unmounted), 1 usage, 32 mounting failed, and nothing is mounted
"""

# The daemon's messages over the pipe: one letter, a text, a null byte.
_STAGE, _NOTE, _READY, _FAILED = b"S", b"N", b"R", b"F"


def _parser() -> Parser:
    parser = Parser(
        usage_code=USAGE,
        prog="mount.belugafs",
        description="Mount a belugafs pool. Usually: mount -t belugafs POOL MOUNTPOINT",
        epilog="options of -o:\n" + HELP + _MORE_HELP,
    )
    parser.add_argument("pool", help="a file or /dev/daxX.Y, made with mkfs.belugafs")
    parser.add_argument("mount_point", metavar="mountpoint", help="a directory")
    parser.add_argument("-o", dest="options", action="append", default=[], metavar="OPTIONS")
    parser.add_argument("-f", dest="foreground", action="store_true", help="stay in the foreground")
    parser.add_argument("-v", dest="verbose", action="store_true", help="say what is done")
    parser.add_argument("-n", dest="no_mtab", action="store_true", help="no effect (no mtab)")
    parser.add_argument("-s", dest="sloppy", action="store_true", help="ignore unknown options")
    parser.add_argument("-t", dest="fs_type", default="belugafs", help=argparse.SUPPRESS)
    parser.add_argument("-N", dest="namespace", help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        options = parse_options(arguments.options, sloppy=arguments.sloppy)
    except OptionError as error:
        return _fail(str(error), USAGE)
    if arguments.foreground and _run_by_mount():
        return 0  # mount -f: "do everything but the call"
    if arguments.foreground:
        return _serve_here(arguments.pool, arguments.mount_point, options)
    return _start(arguments.pool, arguments.mount_point, options, arguments.verbose)


def _run_by_mount() -> bool:
    """mount(8) hands its own -f (fake) on; there it doesn't mean foreground."""
    try:
        with open(f"/proc/{os.getppid()}/comm") as comm:
            return comm.read().strip() == "mount"
    except OSError:
        return False


def _fail(text: str, code: int = MOUNT_FAILURE) -> int:
    print(f"mount.belugafs: {text}", file=sys.stderr)
    return code


def _note(text: str) -> None:
    print(f"mount.belugafs: note: {text}", file=sys.stderr)


# ---- in the foreground ----------------------------------------------------------------------


class _Terminal(daemon.Reporter):
    def __init__(self, pool: str, mount_point: str) -> None:
        self._place = pool, mount_point

    def note(self, text: str) -> None:
        _note(text)

    def ready(self) -> None:
        mounts.tell_umount(*self._place)


def _serve_here(pool: str, mount_point: str, options: MountOptions) -> int:
    try:
        daemon.setup_logging(options.log, foreground=True, note=_note)
        daemon.serve(pool, mount_point, options, _Terminal(pool, mount_point))
    except (PoolError, daemon.MountError) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename or 'the daemon'}: {error.strerror}")
    return 0


# ---- in the background -----------------------------------------------------------------------


class _Pipe(daemon.Reporter):
    """To the waiting command, which may have given up: a broken pipe is no reason to fail."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def _send(self, kind: bytes, text: str = "") -> None:
        if self._fd < 0:
            return
        try:
            os.write(self._fd, kind + os.fsencode(text).replace(b"\0", b" ") + b"\0")
        except OSError:
            self._close()

    def _close(self) -> None:
        os.close(self._fd)
        self._fd = -1

    def stage(self, text: str) -> None:
        self._send(_STAGE, text)

    def note(self, text: str) -> None:
        self._send(_NOTE, text)

    def failed(self, text: str) -> None:
        """The daemon ends because of this."""
        self._send(_FAILED, text)

    def ready(self) -> None:
        """Let go of the terminal first: who waits for end of file on it waits no longer."""
        os.chdir("/")
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.close(null)
        self._send(_READY)
        if self._fd >= 0:
            self._close()


def _start(pool: str, mount_point: str, options: MountOptions, verbose: bool) -> int:
    started = time.monotonic()
    former = mounts.mount_at(mount_point)
    sys.stdout.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _daemon(pool, mount_point, options, _Pipe(writing))
    os.close(writing)
    end = functools.partial(_end, child, mount_point, former)
    code = _wait(reading, end, started + READY_LIMIT_S)
    os.close(reading)
    if code == 0:
        mounts.tell_umount(pool, mount_point)
    if code == 0 and verbose:
        print(
            f"mount.belugafs: {pool} mounted on {mount_point} by process {child}, "
            f"{time.monotonic() - started:.2f} s"
        )
    return code


def _daemon(pool: str, mount_point: str, options: MountOptions, pipe: _Pipe) -> NoReturn:
    """The child: a session of its own, nothing inherited but the pipe. Never returns."""
    code = MOUNT_FAILURE
    try:
        os.setsid()
        # Whoever started us must be able to see the end of the files it gave us.
        os.closerange(3, pipe._fd)
        os.closerange(pipe._fd + 1, 4096)
        options.log = os.path.abspath(options.log) if "/" in options.log else options.log
        daemon.setup_logging(options.log, foreground=False, note=pipe.note)
        daemon.serve(pool, mount_point, options, pipe)
        code = 0
    except (PoolError, daemon.MountError) as error:
        pipe.failed(str(error))
    except OSError as error:
        pipe.failed(f"{error.filename or 'the daemon'}: {error.strerror}")
    except BaseException as error:
        pipe.failed(f"a bug in belugafs: {type(error).__name__}: {error}")
        daemon.log.exception("the daemon ends")
        traceback.print_exc()
    finally:
        os._exit(code)


def _wait(reading: int, end: Callable[[], None], deadline_s: float) -> int:
    stage = "starting"
    buffer = b""
    while True:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not select.select([reading], [], [], left_s)[0]:
            end()
            return _fail(f"the daemon was not ready after {READY_LIMIT_S:g} s; it was {stage}")
        data = os.read(reading, 65536)
        if not data:
            end()
            return _fail(f"the daemon ended while {stage}")
        *messages, buffer = (buffer + data).split(b"\0")
        for message in messages:
            kind, text = message[:1], os.fsdecode(message[1:])
            if kind == _READY:
                return 0
            if kind == _FAILED:
                end()
                return _fail(text)
            if kind == _STAGE:
                stage = text
            elif kind == _NOTE:
                _note(text)


def _end(child: int, mount_point: str, former: Mount | None) -> None:
    """Wait for the daemon to end, end it, and take away what it may have mounted.

    Looks only into the mount table: the mount point itself may hang.
    """
    for number in (None, signal.SIGKILL):
        if number is not None:
            os.kill(child, number)
        limit = time.monotonic() + _EXIT_LIMIT_S
        while time.monotonic() < limit:
            if os.waitpid(child, os.WNOHANG)[0]:
                mount = mounts.mount_at(mount_point)
                if mount is not None and mount.fs_type == mounts.FS_TYPE and mount != former:
                    mounts.unmount(mount_point, lazy=True)
                return
            time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())

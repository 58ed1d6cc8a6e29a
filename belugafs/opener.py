"""Who opened a file, and whether that process is being killed.

A process that is killed in the middle of a file's first writing must not seal the half file,
but the kernel closes its descriptors just as close(2) does. The one difference is visible in
/proc while FLUSH is on its way: the process is exiting, and its exit code names a signal.

FUSE gives the thread's id, and only with open and create; FLUSH comes without any. So the
process (thread group) and its start time are noted at open, and looked at again at flush. The
leader's entry in /proc stays until the last thread is gone, so a thread pool that is torn down
in any order is seen.

Not seen, and then taken for an ordinary close, so the file is sealed:

- a process in another pid namespace (FUSE says pid 0, or the number is another process's here);
- a process of another user, when the daemon isn't root: the kernel shows exit code 0;
- a writer killed while the opener lives on, with the descriptor inherited or passed.
"""

import os
import signal
import time
from typing import NamedTuple

# Linux hands out thread ids in turn; in so short a time none comes back.
_REMEMBER_S = 1.0
_REMEMBER_MAX = 1024

_STOP_SIGNALS = frozenset({signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})


class Opener(NamedTuple):
    """A process: its id and its start time in clock ticks since boot, which together are never
    used again."""

    tgid: int
    start_ticks: int


class _Stat(NamedTuple):
    start_ticks: int
    exit_code: int


_remembered: dict[int, tuple[float, Opener]] = {}


def opener_of(thread_id: int) -> Opener | None:
    """The process of a thread; None where it cannot be seen. Costs two small reads of /proc,
    once a second for each thread."""
    if thread_id <= 0:
        return None
    now = time.monotonic()
    known = _remembered.get(thread_id)
    if known is not None and now - known[0] < _REMEMBER_S:
        return known[1]
    tgid = _tgid(thread_id)
    stat = _stat(tgid) if tgid else None
    if stat is None:
        return None
    if len(_remembered) >= _REMEMBER_MAX:
        _remembered.clear()
    opener = Opener(tgid, stat.start_ticks)
    _remembered[thread_id] = (now, opener)
    return opener


def is_killed(opener: Opener | None) -> bool:
    """Whether the process is exiting because of a signal. False where it cannot be told."""
    if opener is None:
        return False
    stat = _stat(opener.tgid)
    if stat is None or stat.start_ticks != opener.start_ticks:
        return False
    # The low 7 bits are the signal; a stopped process shows its stop signal there.
    number = stat.exit_code & 0x7F
    return number != 0 and number not in _STOP_SIGNALS


def _tgid(thread_id: int) -> int:
    text = _read(f"/proc/{thread_id}/status")
    at = text.find(b"\nTgid:")
    return int(text[at + 6 : text.index(b"\n", at + 1)]) if at >= 0 else 0


def _stat(tgid: int) -> _Stat | None:
    """Fields 22 and 52 of proc(5)'s stat; the name before them may hold any character."""
    text = _read(f"/proc/{tgid}/stat")
    fields = text[text.rfind(b")") + 2 :].split()
    return _Stat(int(fields[19]), int(fields[49])) if len(fields) >= 50 else None


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 8192)
    except OSError:  # ended between open and read
        return b""
    finally:
        os.close(fd)

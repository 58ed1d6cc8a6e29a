"""Who opened a file, whether that process is being killed, and whether it still has the file open.

A process that is killed in the middle of a file's first writing must not seal the half file,
but the kernel closes its descriptors just as close(2) does. The one difference is visible in
/proc while FLUSH is on its way: the process is exiting, and its exit code names a signal.

FUSE gives the thread's id, and only with open and create; FLUSH comes without any. So the
process (thread group) and its start time are noted at open, and looked at again at flush. The
leader's entry in /proc stays until the last thread is gone, so a thread pool that is torn down
in any order is seen.

**What may be read.** Much in /proc/PID, ``stat`` and the links in ``fd`` too, waits in newer
kernels for a process that is becoming another program; and that one closes what it doesn't hand
on, so it waits for us. ``statm`` waits for nobody. It is all zeros when the process is exiting, and
shows no program text in the middle of an exec; so ``stat`` is read of processes that exit only.

Not seen, and then taken for an ordinary close, so the file is sealed:

- a process in another pid namespace (FUSE says pid 0, or the number is another process's here);
- a process of another user, when the daemon isn't root: the kernel shows exit code 0;
- a writer killed while the opener lives on, with the descriptor inherited or passed.

A FLUSH is sent for each descriptor that goes away, also for a duplicate, and for the copy that a
child process closes when it is started; nothing in it says which. But the kernel takes a descriptor
out of its process's table before it flushes. So where the opener still has one of the file, this
was another's. That costs a look at all of his descriptors, and is done with ``publish=close`` only,
where it decides whether half a file gets its name. Not seen, and then taken for the opener's own
close, are a process in another pid namespace or of another user as above, and one with more than
``_DESCRIPTORS_MAX`` open.
"""

import os
import time
from typing import NamedTuple

from belugafs import _native

_REMEMBER_S = 1.0
_REMEMBER_MAX = 1024

_DESCRIPTORS_MAX = 1024


class Opener(NamedTuple):
    """A process: its id and its start time in clock ticks since boot, which together are never
    used again."""

    tgid: int
    start_ticks: int


_remembered_mounts: dict[tuple[Opener, str], tuple[float, list[bytes]]] = {}


def opener_of(thread_id: int) -> Opener | None:
    """The process of a thread; None where it cannot be seen."""
    found = _native.opener_of(max(thread_id, 0))
    return Opener(*found) if found is not None else None


def is_killed(opener: Opener | None) -> bool:
    """Whether the process is exiting because of a signal. False where it cannot be told."""
    return opener is not None and _native.is_killed(*opener)


def has_open(opener: Opener | None, device: str, inode: int) -> bool:
    """Whether the process has a descriptor of a file open. False where it cannot be told.

    ``device`` is that of the filesystem, as mountinfo writes it. Asks nothing of the filesystem
    itself, which waits for us. Costs some 7 us for each descriptor that the process has.
    """
    # Another process that has got its number has no such file.
    if opener is None or not _runs(opener.tgid):
        return False
    place = f"/proc/{opener.tgid}/fdinfo"
    try:
        numbers = os.listdir(place)
    except OSError:  # another user's; or it is exiting
        return False
    if len(numbers) > _DESCRIPTORS_MAX:
        return False
    wanted = [b"\nmnt_id:\t%b\nino:\t%d\n" % (i, inode) for i in _mount_ids(opener, device)]
    for number in numbers:
        text = _read(f"{place}/{number}")
        if any(line in text for line in wanted):
            return True
    return False


def _mount_ids(opener: Opener, device: str) -> list[bytes]:
    """The ids of all mounts of a filesystem in a process's namespace, and in ours, where it may
    have got its descriptors from."""
    now = time.monotonic()
    known = _remembered_mounts.get((opener, device))
    if known is not None and now - known[0] < _REMEMBER_S:
        return known[1]
    ids: set[bytes] = set()
    for path in (f"/proc/{opener.tgid}/mountinfo", "/proc/self/mountinfo"):
        try:
            with open(path, "rb") as file:
                fields = [line.split(b" ", 3) for line in file]
        except OSError:
            continue
        ids.update(field[0] for field in fields if field[2] == device.encode())
    if len(_remembered_mounts) >= _REMEMBER_MAX:
        _remembered_mounts.clear()
    _remembered_mounts[opener, device] = (now, list(ids))
    return list(ids)


def _runs(tgid: int) -> bool:
    """Whether a process has memory and a program: neither exiting nor becoming another one."""
    fields = _read(f"/proc/{tgid}/statm").split()
    return len(fields) >= 4 and fields[0] != b"0" and fields[3] != b"0"


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

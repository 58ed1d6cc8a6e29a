"""How the daemon waits for the next FUSE request: in poll(2) rather than through trio.

pyfuse3 gives each request to one of several tasks: a lock, an epoll registration and two rounds
of trio's scheduler, some 30 us of Python for a request whose handler takes 5. Handlers here
never await, so one task is enough, it needs no lock, and while requests keep coming it may as
well sleep in the kernel itself. Only when none came for ``POLL_MS``, or after ``BURST`` of them,
does it wait as pyfuse3 would, so that trio's other tasks (signals) have their turn. open+close
went from 160 to 35 us, a look-up that misses from 46 to 14 (two processors, Linux 6.18).

This replaces one private function of pyfuse3. Where there is none of that name (another
version), everything works as it is, slower.
"""

import logging
import os
import select
from collections.abc import Awaitable, Callable

import pyfuse3
import trio

log = logging.getLogger("belugafs.transport")

POLL_MS = 1
BURST = 64

_FUNCTION = "_wait_fuse_readable"


def install() -> bool:
    """Replace pyfuse3's wait, after its ``init`` and before its ``main(max_tasks=1)``. Says
    whether that was possible."""
    fd = _session_fd()
    if fd is None or not callable(getattr(pyfuse3, _FUNCTION, None)):
        log.info("pyfuse3 %s waits for requests in its own way", pyfuse3.__version__)
        return False
    setattr(pyfuse3, _FUNCTION, _waiter(fd))
    return True


def _waiter(fd: int) -> Callable[[], Awaitable[bool]]:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    poll = poller.poll
    wait_readable = trio.lowlevel.wait_readable
    served = 0

    async def wait_fuse_readable() -> bool:
        nonlocal served
        served += 1
        # An error counts as readable: whoever reads next is told.
        if served % BURST and poll(POLL_MS):
            return True
        try:
            await wait_readable(fd)
        except trio.ClosedResourceError:  # pyfuse3.terminate()
            return False
        return True

    return wait_fuse_readable


def _session_fd() -> int | None:
    """The one descriptor of /dev/fuse that this process has."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == "/dev/fuse":
                found.append(int(name))
        except OSError:  # the directory's own, closed by now
            continue
    return found[0] if len(found) == 1 else None

"""Transports: ways in which FUSE requests of a mount reach the core.

``pyfuse3``
    libfuse and trio, one Python handler for each request (:mod:`.operations`). Works wherever
    libfuse does. File content goes through the kernel's page cache.
``direct``
    Our own server of the FUSE protocol, threads in C on /dev/fuse (``belugafs/_direct``). Replies
    are written straight from the pool's memory, requests are up to 4 MiB large, and there is what
    pyfuse3 has no handlers for: fallocate, lseek, statx, ioctl.

Both are thin layers over the same core, with the same semantics. The daemon knows neither: it
asks :func:`choose` and runs a :class:`Session`.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from belugafs.options import Transport

DIRECT_SINCE = (6, 6)
"""Linux: files that don't go through the page cache can be mapped (FUSE_DIRECT_IO_ALLOW_MMAP)."""

WANTED_PAGES = 1024
"""Of a request of direct, 4 MiB: a block of the usual size goes in one. As root it raises the
kernel's limit to that."""


class TransportError(Exception):
    """Mounting failed; the text says why and what to do."""


class Choice(NamedTuple):
    """Which transport, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """What is going to be mounted, and how, whichever transport does it."""

    source: str
    """As the mount table is going to show it."""
    place: str
    switches: frozenset[str]
    """Options that mount(8) has for every filesystem (``ro``, ``nodev``); those that only undo one
    (``dev``) have no effect."""
    allow_other: bool
    publish_close: bool
    passthrough_fd: int = -1
    """A file of the pool's tmpfs, to ask the kernel for passthrough with; -1: without."""
    spin_us: int = 0
    """How long the direct transport looks for the next request before it sleeps, where they come
    that quickly."""


class Session(Protocol):
    """A mount. It is there once this is made, and answers once ``run`` runs."""

    def config(self) -> dict[str, object]:
        """What ``.beluga/config`` says of it, once it is ready."""

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until it is unmounted, aborted, or ``cut_off``; ``on_ready`` is called when the
        kernel's first request has been answered. Raises TransportError before that, and OSError
        with the errno when it ends in another way than by an umount."""

    def cut_off(self) -> None:
        """End ``run`` soon, though files are open; what is asked of them from now on fails."""

    def close(self, *, unmount: bool) -> None:
        """Let go of the connection, after ``run``."""


def kernel_release() -> tuple[int, int]:
    """Linux, major and minor."""
    match = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def choose(wanted: Transport) -> Choice:
    """The transport for ``-o transport=``."""
    if wanted != "auto":
        return Choice(wanted, "asked for")
    release = kernel_release()
    if release >= DIRECT_SINCE:
        return Choice("direct", "the fastest there is on this kernel")
    return Choice(
        "pyfuse3",
        "direct maps files without a second copy from Linux {}.{} on; this is {}.{}".format(
            *DIRECT_SINCE, *release
        ),
    )

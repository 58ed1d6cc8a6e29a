"""Passthrough: whether the kernel may send reads, writes and mappings of a file to the pool itself.

It does so for files of a directory pool, each of which is a file of the pool's tmpfs. What it
takes is known in parts: some of it here, before the mount, and the rest when the kernel was asked
(:func:`refusal`).
"""

import errno
import os
from typing import NamedTuple

from belugafs.options import Passthrough
from belugafs.transport import Choice, kernel_release

SINCE = (6, 9)
"""Linux."""

WORKS = "reads, writes and mappings of a file reach the pool's own pages without the daemon"

_REFUSALS = {
    errno.ENOSYS: "this kernel was built without CONFIG_FUSE_PASSTHROUGH",
    errno.EPERM: "it takes root, in a container CAP_SYS_ADMIN of the host",
    errno.ELOOP: "the pool's filesystem lies on another one (overlayfs); use a tmpfs",
}


class Wish(NamedTuple):
    """What is known before the mount."""

    fd: int
    """A file of the pool's tmpfs to ask the kernel with; -1: no passthrough."""
    reason: str
    """Why not."""
    is_lack: bool
    """The user could have it, and doesn't: worth saying."""


def wish(asked: Passthrough, pool_fd: int, transport: Choice, *, is_directory_pool: bool) -> Wish:
    """Whether to ask the kernel for it. ``pool_fd`` is a file of the pool."""
    if asked == "off":
        return Wish(-1, "passthrough=off", is_lack=False)
    if not is_directory_pool:
        return Wish(-1, "only the files of a directory pool can be passed through", is_lack=False)
    if transport.name != "direct":
        return Wish(-1, f"the transport {transport.name} has none", is_lack=True)
    if reason := lack():
        return Wish(-1, reason, is_lack=True)
    return Wish(pool_fd, "", is_lack=False)


def lack() -> str:
    """What this process lacks for it; empty: nothing that is known without asking the kernel."""
    release = kernel_release()
    if release < SINCE:
        return "it takes Linux {}.{}; this is {}.{}".format(*SINCE, *release)
    return _REFUSALS[errno.EPERM] if os.geteuid() != 0 else ""


def refusal(number: int) -> str:
    """The errno with which the kernel refused it, in words."""
    return _REFUSALS.get(number, f"the kernel refused it: {os.strerror(number)}")


def note(reason: str) -> str:
    """What is said at mount where it could be had, and isn't."""
    return f"no passthrough: {reason}; what is mapped has a second copy in the page cache"

"""The directory for what a host's processes share while they read a pool in place: leases, sockets.

It belongs on a tmpfs; nothing in it outlives a boot. Not below the pool: several pools share it.
"""

import contextlib
import fcntl
import os
import struct

from belugafs import _native

ENVIRONMENT = "BELUGAFS_RUN_DIR"


_FLOCK = struct.Struct("hh4xqqi4x")  # struct flock, where off_t has 8 bytes and alignment
_LOCKS_FROM = 1 << 62
_LOCKS_OF_A_SLOT = 1 << 40


def has_readers(pool_fd: int) -> bool:
    """Whether processes of this machine read the pool in place, with or without a mount: each has
    a byte of the pool locked far behind its end (docs/format.md, 19). ``pool_fd``: any descriptor
    of it. False where it can't be told."""
    asked = _FLOCK.pack(
        fcntl.F_WRLCK, os.SEEK_SET, _LOCKS_FROM, _native.HOSTS_MAX * _LOCKS_OF_A_SLOT, 0
    )
    try:
        found = fcntl.fcntl(pool_fd, fcntl.F_OFD_GETLK, asked)
    except OSError:
        return False
    return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)


def run_dir(chosen: str = "") -> str:
    """The directory, made if that is possible: what was chosen by ``-o run_dir=``, else
    ``BELUGAFS_RUN_DIR``, else ``/run/belugafs``; for other users than root their runtime directory
    (``XDG_RUNTIME_DIR``), or one below ``/tmp``."""
    path = chosen or os.environ.get(ENVIRONMENT, "")
    if not path:
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        if os.geteuid() == 0:
            path = "/run/belugafs"
        else:
            path = f"{runtime}/belugafs" if runtime else f"/tmp/belugafs-{os.geteuid()}"
    with contextlib.suppress(OSError):  # the core says so, if it is needed
        os.makedirs(path, mode=0o755, exist_ok=True)
    return path

"""Mounting a FUSE connection of our own: by mount(2) as root, by fusermount3 otherwise."""

import array
import ctypes
import errno
import os
import shutil
import socket
import stat
import subprocess

from belugafs.mounts import FS_TYPE
from belugafs.transport import TransportError

_LIMIT_S = 10

# mount(2)
_FLAGS = {
    "ro": 1,
    "nosuid": 2,
    "nodev": 4,
    "noexec": 8,
    "sync": 16,
    "dirsync": 128,
    "noatime": 1024,
}

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, place: str, switches: set[str], *, allow_other: bool) -> int:
    """A descriptor of /dev/fuse that serves what is now mounted on ``place``.

    ``switches`` are options that mount(8) has for every filesystem (``ro``, ``nodev``); those
    that only undo one (``dev``) have no effect. Raises TransportError.
    """
    if os.geteuid() == 0:
        return _by_root(source, place, switches, allow_other)
    return _by_fusermount(source, place, switches, allow_other)


def _by_root(source: str, place: str, switches: set[str], allow_other: bool) -> int:
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    kind = stat.S_IFMT(os.stat(place).st_mode)
    data = f"fd={fd},rootmode={kind:o},user_id=0,group_id={os.getegid()},default_permissions"
    if allow_other:
        data += ",allow_other"
    flags = 0
    for switch in switches:
        flags |= _FLAGS.get(switch, 0)
    # The part behind the dot is the subtype, as mount(8) and /proc/mounts write it.
    if _libc.mount(os.fsencode(source), os.fsencode(place), FS_TYPE.encode(), flags, data.encode()):
        number = ctypes.get_errno()
        os.close(fd)
        advice = "; the container needs CAP_SYS_ADMIN" if number == errno.EPERM else ""
        raise TransportError(f"{place} cannot be mounted: {os.strerror(number)}{advice}")
    return fd


def _by_fusermount(source: str, place: str, switches: set[str], allow_other: bool) -> int:
    helper = shutil.which("fusermount3")
    if helper is None:
        raise TransportError("fusermount3 is not there: apt install fuse3, or mount as root")
    plain = source.replace("\\", "\\\\").replace(",", "\\,")
    options = [*sorted(switches), f"fsname={plain}", f"subtype={FS_TYPE.partition('.')[2]}"]
    options += ["default_permissions", *(["allow_other"] if allow_other else [])]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        done = subprocess.run(
            [helper, "-o", ",".join(options), "--", place],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
        )
        if done.returncode != 0:
            said = done.stderr.strip().removeprefix("fusermount3: ")
            raise TransportError(f"{place} cannot be mounted: {said or 'fusermount3 refused it'}")
        return _received(ours)


def _received(connection: socket.socket) -> int:
    fds = array.array("i")
    connection.settimeout(_LIMIT_S)
    _, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_LEN(fds.itemsize))
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: fds.itemsize])
    if not fds:
        raise TransportError("fusermount3 mounted, and gave no descriptor of /dev/fuse")
    os.set_inheritable(fds[0], False)
    return fds[0]

"""Mounting a FUSE connection of our own: by mount(2) as root, by fusermount3 otherwise."""

import array
import errno
import os
import shutil
import socket
import stat
import subprocess

from belugafs import mountcalls
from belugafs.mounts import FS_TYPE
from belugafs.transport import Plan, TransportError

_LIMIT_S = 10

# mount(2)
_FLAGS = {
    "ro": 1,
    "nosuid": mountcalls.NOSUID,
    "nodev": mountcalls.NODEV,
    "noexec": mountcalls.NOEXEC,
    "sync": 16,
    "dirsync": 128,
    "noatime": 1024,
}


def mount(plan: Plan) -> int:
    """A descriptor of /dev/fuse that serves what is mounted now. Raises TransportError."""
    return _by_root(plan) if os.geteuid() == 0 else _by_fusermount(plan)


def _by_root(plan: Plan) -> int:
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    kind = stat.S_IFMT(os.stat(plan.place).st_mode)
    data = f"fd={fd},rootmode={kind:o},user_id=0,group_id={os.getegid()},default_permissions"
    if plan.allow_other:
        data += ",allow_other"
    flags = 0
    for switch in plan.switches:
        flags |= _FLAGS.get(switch, 0)
    # The part behind the dot is the subtype, as mount(8) and /proc/mounts write it.
    try:
        mountcalls.mount(plan.source, plan.place, FS_TYPE, flags, data)
    except OSError as error:
        os.close(fd)
        advice = "; the container needs CAP_SYS_ADMIN" if error.errno == errno.EPERM else ""
        raise TransportError(f"{plan.place} cannot be mounted: {error.strerror}{advice}") from None
    return fd


def _by_fusermount(plan: Plan) -> int:
    helper = shutil.which("fusermount3")
    if helper is None:
        raise TransportError("fusermount3 is not there: apt install fuse3, or mount as root")
    plain = plan.source.replace("\\", "\\\\").replace(",", "\\,")
    options = [*sorted(plan.switches), f"fsname={plain}", f"subtype={FS_TYPE.partition('.')[2]}"]
    options += ["default_permissions", *(["allow_other"] if plan.allow_other else [])]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        done = subprocess.run(
            [helper, "-o", ",".join(options), "--", plan.place],
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
            raise TransportError(
                f"{plan.place} cannot be mounted: {said or 'fusermount3 refused it'}"
            )
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

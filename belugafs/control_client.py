"""How a command asks a mount to do something: one line written to ``.beluga/control``, and the
answer read from the same descriptor.

The file belongs to whoever runs the daemon, so it is for him and for root.
"""

import contextlib
import errno
import json
import os
from typing import Any

from belugafs._pool.host import Mount
from belugafs.control import COMMAND_NAME, DIRECTORY_NAME
from belugafs.exits import Exit
from belugafs.pool import PoolError

_READ_BYTES = 1 << 16


class Daemon:
    """The daemon of one mount. Raises PoolError where it can't be asked; ``readonly`` mounts
    can't, and say so with ``Exit.UNSUPPORTED``."""

    def __init__(self, mount: Mount) -> None:
        self._mount_point = mount.mount_point
        names = (mount.mount_point, os.fsdecode(DIRECTORY_NAME), os.fsdecode(COMMAND_NAME))
        try:
            self._fd = os.open(os.path.join(*names), os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise self._cannot(error) from error

    def __enter__(self) -> "Daemon":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            os.close(self._fd)

    def ask(self, *words: object) -> dict[str, Any]:
        """Send a command, return its answer. Raises PoolError."""
        line = " ".join(map(str, words)).encode("ascii") + b"\n"
        answer = b""
        try:
            os.write(self._fd, line)
            while part := os.read(self._fd, _READ_BYTES):
                answer += part
        except OSError as error:
            raise self._cannot(error) from error
        found = json.loads(answer)
        assert isinstance(found, dict)
        return found

    def evictable_bytes(self) -> int:
        """What eviction could free now. Raises PoolError."""
        total, slot = 0, 0
        while True:
            answer = self.ask("evictable", slot)
            total += int(answer["evictable_bytes"])
            slot = int(answer["next"])
            if not slot:
                return total

    def _cannot(self, error: OSError) -> PoolError:
        place = self._mount_point
        if error.errno in (errno.EACCES, errno.EPERM):
            return PoolError(
                f"only root and the user who mounted {place} can do this", Exit.PERMISSION
            )
        if error.errno == errno.EROFS:
            return PoolError(f"{place} is mounted read-only", Exit.UNSUPPORTED)
        if error.errno in (errno.ENOENT, errno.EINVAL):
            return PoolError(
                f"the daemon of {place} is of another version, and doesn't know this command; "
                "mount it again",
                Exit.UNSUPPORTED,
            )
        return PoolError(
            f"the mount on {place} does not answer: {error.strerror}; mounting it again heals it",
            Exit.IO_ERROR,
        )

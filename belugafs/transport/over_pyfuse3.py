"""The ``pyfuse3`` transport: its life, from mount to umount. Requests are in :mod:`.operations`."""

import errno
import logging
import os
from collections.abc import Callable
from typing import Any

import pyfuse3

from belugafs import _native, mounts
from belugafs.control import ControlDirectory
from belugafs.transport import Plan, TransportError, polling
from belugafs.transport.operations import Operations


class Pyfuse3Session:
    """One mount; there is one in a process. Raises TransportError where it cannot be mounted."""

    def __init__(self, pool: _native.Pool, control: ControlDirectory, plan: Plan) -> None:
        self._on_ready: Callable[[], None] = lambda: None
        operations = Operations(
            pool, control, publish_close=plan.publish_close, on_ready=lambda: self._on_ready()
        )
        options = {"default_permissions", "subtype=belugafs", *plan.switches}
        options.add("fsname=" + _escaped(plan.source))
        if plan.allow_other:
            options.add("allow_other")
        try:
            pyfuse3.init(operations, plan.place, options)
        except RuntimeError:
            raise TransportError(
                f"{plan.place} cannot be mounted: the kernel or fusermount3 refused it"
                + ("" if os.geteuid() == 0 else " (the directory must be yours)")
            ) from None
        operations.device = mounts.device_number(plan.place)
        polling.install()

    def config(self) -> dict[str, object]:
        """What ``.beluga/config`` says of it."""
        return {"pyfuse3": pyfuse3.__version__}

    async def run(self, on_ready: Callable[[], None]) -> None:
        """See :class:`belugafs.transport.Session`."""
        self._on_ready = on_ready
        try:
            # No handler awaits, so further tasks would only hand requests to each other.
            await pyfuse3.main(min_tasks=1, max_tasks=1)
        except* OSError as group:
            number = errno_of(group) or errno.EIO
            raise OSError(number, os.strerror(number)) from group

    def cut_off(self) -> None:
        """See :class:`belugafs.transport.Session`."""
        pyfuse3.terminate()

    def close(self, *, unmount: bool) -> None:
        """See :class:`belugafs.transport.Session`."""
        # Does nothing where the kernel has unmounted or the connection was aborted.
        pyfuse3.close(unmount=unmount)


def errno_of(error: BaseException) -> int | None:
    """The errno in what a FUSE main loop raised, through groups of exceptions."""
    if isinstance(error, BaseExceptionGroup):
        numbers: list[Any] = [errno_of(part) for part in error.exceptions]
        return next((number for number in numbers if number is not None), None)
    return error.errno if isinstance(error, OSError) else None


def is_late_reply(record: logging.LogRecord) -> bool:
    """A reply to a request that an umount has ended meanwhile (the kernel says ENOENT: no such
    request) is nothing that anybody has to see to, though pyfuse3 calls it an error."""
    ended = os.strerror(errno.ENOENT) in record.getMessage()
    return record.name.startswith("pyfuse3") and "fuse_reply_" in str(record.msg) and ended


def _escaped(text: str) -> str:
    """For libfuse's parser of options, and pyfuse3's idea that they are ASCII."""
    plain = os.fsencode(text).decode("ascii", "backslashreplace")
    return plain.replace("\\", "\\\\").replace(",", "\\,")

"""The ``direct`` transport: its life, from mount to umount. The requests are served in C."""

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

import trio

from belugafs import _native, mounts
from belugafs.control import ControlDirectory
from belugafs.opener import Opener, has_open
from belugafs.transport import WANTED_PAGES, Plan, TransportError
from belugafs.transport.control_replies import ControlReplies
from belugafs.transport.mounting import mount
from belugafs.transport.passthrough import WORKS, refusal
from belugafs.transport.passthrough import note as lack_of_it

log = logging.getLogger("belugafs.transport")

DEFAULT_PAGES = 256
_LIMIT_FILE = Path("/proc/sys/fs/fuse/max_pages_limit")
THREADS_MAX = 8


def request_pages(note: Callable[[str], None]) -> int:
    """How many pages a request may have. Raises the kernel's limit where this process may."""
    try:
        limit = int(_LIMIT_FILE.read_text())
    except OSError:  # before Linux 6.13 it cannot be changed
        return DEFAULT_PAGES
    if limit < WANTED_PAGES and os.geteuid() == 0:
        try:
            _LIMIT_FILE.write_text(str(WANTED_PAGES))
        except OSError:  # /proc is read-only in this container
            return limit
        note(
            f"fs.fuse.max_pages_limit was {limit}: it is {WANTED_PAGES} now, for this and "
            "later mounts, so that requests have 4 MiB"
        )
        limit = WANTED_PAGES
    return min(limit, WANTED_PAGES)


class DirectSession:
    """One mount. Raises TransportError where it cannot be mounted."""

    def __init__(
        self,
        pool: _native.Pool,
        control: ControlDirectory,
        plan: Plan,
        note: Callable[[str], None],
    ) -> None:
        self._pool = pool
        self._replies = ControlReplies(control)
        control.counters.append(self._counters)
        self._plan = plan
        self._note = note
        self._pages = request_pages(note)
        self._device = ""
        self._server: _native.DirectServer | None = None
        self._fd = mount(plan)

    def config(self) -> dict[str, object]:
        """See :class:`belugafs.transport.Session`."""
        if self._server is None:
            return {}
        info = self._server.info()
        about: dict[str, object] = {
            "fuse_protocol": f"7.{info['kernel_minor']}",
            "request_bytes": info["request_bytes"],
        }
        if self._plan.passthrough_fd >= 0:
            refused = info["passthrough"]
            about["passthrough"] = "off" if refused else "on"
            about["passthrough_reason"] = refusal(refused) if refused else WORKS
        return about

    def _counters(self) -> dict[str, object]:
        if self._server is None:
            return {}
        info = self._server.info()
        return {"fuse_requests": info["requests"], "backing_ids": info["backing_ids"]}

    async def run(self, on_ready: Callable[[], None]) -> None:
        """See :class:`belugafs.transport.Session`."""
        try:
            # The kernel has sent its first request when mount(2) returned: this doesn't wait.
            self._server = _native.DirectServer(
                self._pool,
                self._fd,
                self._replies.answer,
                log.log,
                max_pages=self._pages,
                threads=max(2, min(os.cpu_count() or 1, THREADS_MAX)),
                still_open=self._still_open if self._plan.publish_close else None,
                passthrough=self._plan.passthrough_fd,
                sync="sync" in self._plan.switches,
                spin_us=self._plan.spin_us,
            )
        except OSError as error:
            advice = "; -o transport=pyfuse3" if error.errno == errno.EPROTO else ""
            raise TransportError(f"the kernel's first request failed: {error}{advice}") from error
        if self._plan.passthrough_fd >= 0 and (refused := self._server.info()["passthrough"]):
            self._note(lack_of_it(refusal(refused)))
        on_ready()
        await trio.lowlevel.wait_readable(self._server.fileno())
        number = self._server.info()["end"]
        if number not in (0, errno.ENODEV):
            raise OSError(number, os.strerror(number))

    def _still_open(self, tgid: int, start_ticks: int, ino: int) -> bool:
        if not self._device:
            self._device = mounts.device_number(self._plan.place)
        return has_open(Opener(tgid, start_ticks), self._device, ino)

    def cut_off(self) -> None:
        """See :class:`belugafs.transport.Session`."""
        if self._server is not None:
            self._server.stop()

    def close(self, *, unmount: bool) -> None:
        """See :class:`belugafs.transport.Session`."""
        ours = True
        if self._server is not None:
            self._server.stop()
            ours = self._server.info()["end"] == 0
            self._server.close()
        os.close(self._fd)
        # Unmounted or aborted by somebody else, the place is theirs.
        if unmount and ours and mounts.is_dead(self._plan.place):
            mounts.unmount(self._plan.place, lazy=True)

"""Being told when what is leased doesn't stand any more: :class:`Watch`.

Nothing that happens in a pool takes a leased block from its reader: neither eviction nor deletion,
nor the daemon's death. Two things do: the operator declares this host dead, so that other hosts
use its space again, or the pool itself goes (cut, or made anew). `Blocks.close` says the former at
the end; who computes for long with one lease wants to know at once.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable

from belugafs import _native
from belugafs.closing import Closing

log = logging.getLogger("belugafs.watch")

EVERY_S = 1.0


class LeaseLost(RuntimeError):
    """This host was declared dead while blocks were leased: what was read of them is to be thrown
    away."""


class PoolGone(OSError):
    """The pool was cut, or made anew: neither what is leased nor what is looked up is good."""


Gone = Callable[[LeaseLost | PoolGone], object]


def check(client: _native.Client) -> None:
    """Does all that is leased still stand? Some microseconds.

    Raises:
        LeaseLost: this host was declared dead since some of it was leased.
        PoolGone: the pool was cut, or made anew.
        OSError: it isn't known (EBADF: disconnected).
    """
    try:
        client.check()
    except OSError as error:
        if error.errno == errno.ESTALE:
            raise LeaseLost(str(error.strerror)) from None
        if error.errno == errno.ENODEV:
            raise PoolGone(errno.ENODEV, str(error.strerror)) from None
        raise


class Watch(Closing):
    """Looks every ``every_s`` seconds, in a thread of its own, and calls ``gone`` once, with the
    error, when what is leased doesn't stand any more; then it ends.

    What ``gone`` raises is logged. A context manager; it also ends when the connection is closed.
    """

    def __init__(self, client: _native.Client, gone: Gone, every_s: float = EVERY_S) -> None:
        if every_s <= 0:
            raise ValueError(f"every_s is {every_s}: seconds between two looks")
        self._client = client
        self._gone = gone
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="belugafs watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                check(self._client)
            except (LeaseLost, PoolGone) as error:
                try:
                    self._gone(error)
                except Exception:
                    log.exception("the callback for a pool that is gone failed")
                return
            except (OSError, RuntimeError):
                if self._client.closed:
                    return
                # Not known this time: a page of the tree was used again while it was read.

    def close(self) -> None:
        """Look no more. Safe from the callback, too."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

"""Asking the daemon for changes by a request ring (docs/ring.md): the client's side for Python.

:class:`Ring` belongs to one process and may be used by any of its threads; a call waits without
the GIL, and a daemon that ends is followed to the next one. Who connects, and how descriptors get
to the daemon, isn't known here: :class:`Ring` is given a function that does it.

Concurrency: the native client has its own locks. ``_lock`` is held only to connect, so that of
several threads that lose their daemon at once, one connects and the others go on with its ring.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from belugafs import _native
from belugafs._ring_format import Op
from belugafs.closing import Closing

DEFAULT_TIMEOUT_S = 30.0
_PAUSE_S, _PAUSE_MOST_S = 0.005, 0.25
_KEYS = struct.Struct("<IIII")
_HOW = {"hard": 1, "soft": 2}
_REQUEST_BYTES, _REPLY_BYTES = 4 << 20, 1 << 20
_KEYS_MOST = 65536
"""Of one request."""


class RingError(OSError):
    """The daemon refused a request: errno and its message."""


class UnknownOutcome(OSError):
    """No answer: the time was over, or no daemon could be reached (errno ETIMEDOUT, ENOTCONN).

    ``number``: of the request; :meth:`Ring.call` with it asks for the same one again. 0: it was
    never asked.
    """

    def __init__(self, error: int, text: str, number: int) -> None:
        super().__init__(error, text)
        self.number = number


class Reply(NamedTuple):
    """What a request brought."""

    status: int
    """0 or a negative errno."""
    result: int
    payload: bytes
    text: str
    """The daemon's message, if status isn't 0."""


Connect = Callable[[int, int], int]
"""Hands the descriptors of a ring and its bell to a daemon. Returns a descriptor that tells of that
daemon's death (a pidfd, the socket of the connection), which the ring closes, or -1. Raises OSError
where there is no daemon."""


class Ring(Closing):
    """A process's request ring.

    ``connect`` is called once now, and again whenever the daemon has ended, with a new ring.
    ``spin_us``: the longest that a call polls before it sleeps; None: as is best here.

    Raises OSError of ``connect``.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        slots: int = 128,
        request_bytes: int = _REQUEST_BYTES,
        reply_bytes: int = _REPLY_BYTES,
        spin_us: float | None = None,
    ) -> None:
        self._connect_to = connect
        self._request_bytes = request_bytes
        self._reply_bytes = reply_bytes
        self._lock = threading.Lock()
        self._native = _native.RingClient(
            slots=slots, request_bytes=request_bytes, reply_bytes=reply_bytes, spin_us=spin_us
        )
        # Generations of the ring: the newest one, and the newest that a daemon has.
        self._made, self._served = 1, 0
        try:
            self._connect(0)
        except BaseException:
            self._native.close()
            raise

    # ---- connecting --------------------------------------------------------------------------

    def _connect(self, lost: int) -> None:
        """A daemon for the ring, unless that of generation ``lost`` has been replaced already."""
        with self._lock:
            if self._served > lost:
                return
            self._native.renew(lost)
            ring, bell, self._made = self._native.fds()
            alive = self._connect_to(ring, bell)
            try:
                self._native.daemon(alive)
            finally:
                if alive >= 0:
                    os.close(alive)
            self._served = self._made

    def _reconnect(self, lost: int, deadline: float, number: int) -> None:
        pause = _PAUSE_S
        while True:
            try:
                return self._connect(lost)
            except OSError as error:
                if time.monotonic() + pause >= deadline:
                    what = f"the daemon has ended, and no other one was found: {error.strerror}"
                    raise UnknownOutcome(errno.ENOTCONN, what, number) from error
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_MOST_S)

    # ---- asking --------------------------------------------------------------------------------

    def call(
        self,
        op: int,
        payload: bytes | bytearray | memoryview = b"",
        *,
        arg: int = 0,
        reply_bytes: int = 0,
        number: int = 0,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Reply:
        """One request and its reply. A negative ``status`` is no exception here.

        ``number``: that of an :class:`UnknownOutcome`, to ask again. Raises UnknownOutcome;
        OSError with EMSGSIZE where request or reply don't fit into the ring.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            generation = self._served
            if generation != self._made:
                self._reconnect(generation, deadline, number)
                continue
            left = max(deadline - time.monotonic(), 1e-6)
            error, status, result, reply, text, number = self._native.call(
                op, arg, payload, reply_bytes, number, left
            )
            if error == 0:
                return Reply(status, result, reply, text)
            if error != errno.ENOTCONN:
                if error == errno.ETIMEDOUT:
                    raise UnknownOutcome(error, text, number)
                raise OSError(error, text)
            self._reconnect(generation, deadline, number)

    async def call_async(
        self,
        op: int,
        payload: bytes | bytearray | memoryview = b"",
        *,
        arg: int = 0,
        reply_bytes: int = 0,
        number: int = 0,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Reply:
        """:meth:`call` in a thread of trio's. Cancelled, it isn't waited for any more; what it
        asked for happens all the same, or doesn't."""
        import trio

        return await trio.to_thread.run_sync(
            lambda: self.call(
                op, payload, arg=arg, reply_bytes=reply_bytes, number=number, timeout_s=timeout_s
            ),
            abandon_on_cancel=True,
        )

    # ---- operations ------------------------------------------------------------------------------

    def ping(self, payload: bytes = b"", *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        """The payload, from the daemon's memory."""
        reply = self.call(Op.PING, payload, reply_bytes=len(payload), timeout_s=timeout_s)
        return _ok(reply).payload

    def ns_create(self, name: str | bytes, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> int:
        """Number of the block namespace of that name; made, if there is none."""
        return _ok(self.call(Op.NS_CREATE, os.fsencode(name), timeout_s=timeout_s)).result

    def put(
        self,
        ns: int,
        blocks: Iterable[tuple[bytes, bytes | bytearray | memoryview]],
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> list[int]:
        """Store blocks, (key, data) each; all keys have one length.

        A status for each: 0 = stored, EEXIST = it was there already, or another errno. As many
        requests are made as the ring's size asks for; ``timeout_s`` is for each of them. Raises
        RingError where none of a request's was stored for one and the same reason (no such
        namespace, a full pool), with the requests before it done.
        """
        statuses: list[int] = []
        for group in self._groups(blocks):
            lengths = struct.pack(f"<{len(group)}I", *(len(data) for _, data in group))
            keys = [key for key, _ in group]
            payload = b"".join([_head(keys), lengths, *keys, *(data for _, data in group)])
            statuses += self._statuses(Op.PUT, ns, payload, len(group), timeout_s)
        return statuses

    def delete(
        self, ns: int, keys: Sequence[bytes], *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> list[int]:
        """Delete blocks. A status for each: 0 = deleted, ENOENT = not there, or another errno."""
        return self._on_keys(Op.DELETE, ns, keys, 0, timeout_s)

    def pin(
        self,
        ns: int,
        keys: Sequence[bytes],
        how: Literal["hard", "soft"] = "hard",
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> list[int]:
        """Keep blocks from eviction: ``soft`` ones go when nothing else is left. A status each."""
        return self._on_keys(Op.PIN, ns, keys, _HOW[how], timeout_s)

    def unpin(
        self, ns: int, keys: Sequence[bytes], *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> list[int]:
        """Undo :meth:`pin`; a block that isn't pinned is 0, too. A status each."""
        return self._on_keys(Op.UNPIN, ns, keys, 0, timeout_s)

    def _on_keys(
        self, op: Op, ns: int, keys: Sequence[bytes], how: int, timeout_s: float
    ) -> list[int]:
        statuses: list[int] = []
        if not keys:
            return statuses
        fit = (self._request_bytes - _KEYS.size) // max(len(keys[0]), 1)
        step = max(1, min(fit, self._keys_most()))
        for i in range(0, len(keys), step):
            group = keys[i : i + step]
            payload = b"".join([_head(group, how), *group])
            statuses += self._statuses(op, ns, payload, len(group), timeout_s)
        return statuses

    def _statuses(self, op: Op, ns: int, payload: bytes, n: int, timeout_s: float) -> list[int]:
        reply = self.call(op, payload, arg=ns, reply_bytes=4 * n, timeout_s=timeout_s)
        if -reply.status not in (0, errno.EEXIST, errno.ENOENT) or len(reply.payload) != 4 * n:
            _ok(reply)
        return [-status for status in struct.unpack(f"<{n}i", reply.payload)]

    def _keys_most(self) -> int:
        return max(1, min(_KEYS_MOST, (self._reply_bytes - 4096) // 4))

    def _groups(
        self, blocks: Iterable[tuple[bytes, bytes | bytearray | memoryview]]
    ) -> Iterator[list[tuple[bytes, memoryview]]]:
        """Blocks that fit into one request."""
        group: list[tuple[bytes, memoryview]] = []
        size = _KEYS.size
        for key, data in blocks:
            view = memoryview(data).cast("B")
            more = 4 + len(key) + len(view)
            full = size + more > self._request_bytes or len(group) == self._keys_most()
            if group and full:
                yield group
                group, size = [], _KEYS.size
            group.append((key, view))
            size += more
        if group:
            yield group

    # ---- the rest -----------------------------------------------------------------------------

    def stats(self) -> dict[str, int]:
        """Calls, sleeps, bells rung, replies missed, generation of the ring, present spin time."""
        return self._native.stats()

    def close(self) -> None:
        """Close the ring; the daemon lets go of it. Calls under way end first."""
        self._native.close()


def _head(keys: Sequence[bytes], how: int = 0) -> bytes:
    size = len(keys[0])
    for key in keys:
        if len(key) != size:
            raise ValueError(f"keys of one request have one length: {size} and {len(key)} bytes")
    return _KEYS.pack(len(keys), size, how, 0)


def _ok(reply: Reply) -> Reply:
    if reply.status < 0:
        raise RingError(-reply.status, reply.text or os.strerror(-reply.status))
    return reply

"""The daemon's side of the library: who gets descriptors, and how (docs/security.md).

A process connects to a socket beside the mount's lease files and gets three descriptors: the pool
and the host file, read-only, and a lease file of its own. From then on it reads without asking
anybody (:mod:`belugafs.client`, ``include/belugafs.h``). One that writes connects once more, hands
over a request ring, and gets a descriptor of the pool to write by; that connection stays, and tells
each side of the other's end. Who it is, the kernel says (``SO_PEERCRED``).

Rings are served by a thread of the core's (docs/ring.md), which starts with the first of them.
"""

import contextlib
import errno
import logging
import os
import socket
import struct
import threading
import uuid
from typing import NamedTuple

from belugafs import _native, format
from belugafs.options import LIBRARY_OFF, MountOptions
from belugafs.rundir import run_dir

log = logging.getLogger("belugafs.library")

_MAGIC = int.from_bytes(b"BELUGALF", "little")
_VERSION = format.LOCAL_VERSION
_LEASE, _RING = 0, 1
_REQUEST = struct.Struct("<QII")
_ANSWER = struct.Struct("<QiI256s")
_CREDENTIALS = struct.Struct("3i")
_SO_PEERGROUPS = 59  # Linux 4.13
_GROUPS_MAX = 65536
_PATH_MAX = 107
_POLL_S = 0.25
_PATIENCE_S = 2.0


class Peer(NamedTuple):
    """Who is at the other end of a socket."""

    pid: int
    uid: int
    gids: frozenset[int]


class Library:
    """A socket that gives out descriptors of one attached pool.

    ``reason`` says why there is none, where ``path`` is empty.
    """

    def __init__(self, pool: _native.Pool, pool_uuid: bytes, options: MountOptions) -> None:
        self._pool = pool
        self._socket: socket.socket | None = None
        self._rings: _native.RingServer | None = None
        self._group = -1
        self.path = ""
        self.reason = ""
        if options.library.startswith("gid="):
            self._group = int(options.library.removeprefix("gid="))
        if options.library == LIBRARY_OFF:
            self.reason = "switched off"
        elif options.readonly:
            self.reason = "a read-only mount announces nothing"
        elif pool.local_error == errno.EOPNOTSUPP:
            self.reason = "a directory pool's files are mapped by its mount"
        elif pool.local_error:
            self.reason = f"leases have no place in {run_dir(options.run_dir)}: " + os.strerror(
                pool.local_error
            )
        else:
            slot = pool.statfs()["slot"]
            name = f"{uuid.UUID(bytes=pool_uuid).hex}.{slot}.sock"
            self._listen(os.path.join(run_dir(options.run_dir), name))

    @property
    def is_lack(self) -> bool:
        """Whether there ought to be one."""
        return not self.path and self.reason.startswith(("leases", "no socket"))

    def _listen(self, path: str) -> None:
        if len(os.fsencode(path)) > _PATH_MAX:
            self.reason = f"no socket: {path} is too long a name for one; choose a run_dir"
            return
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # This host's slot is ours: nobody listens there any more.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            server.bind(path)
            # Who connects is told by the kernel; the mode only keeps the others from trying.
            os.chmod(path, 0o666 if self._group >= 0 else 0o600)
            server.listen(64)
            server.settimeout(_POLL_S)
        except OSError as error:
            server.close()
            self.reason = f"no socket at {path}: {error.strerror}"
            return
        self._socket, self.path = server, path

    def run(self, stop: threading.Event) -> None:
        """Answer until ``stop`` is set, then take the socket away. A thread's."""
        if self._socket is None:
            return
        inode = os.stat(self.path).st_ino
        try:
            with self._socket as server:
                while not stop.is_set():
                    with contextlib.suppress(TimeoutError):
                        connection, _ = server.accept()
                        with connection:
                            self._serve(connection)
        finally:
            rings, self._rings = self._rings, None
            if rings is not None:
                rings.stop()  # its clients are told, and look for the next daemon
        with contextlib.suppress(OSError):
            if os.stat(self.path).st_ino == inode:
                os.unlink(self.path)

    def stats(self) -> dict[str, int]:
        """For ``.beluga/stats``: processes that use the pool in place, and what they hold."""
        clients = self._pool.clients()
        reservations, granules = self._pool.reservations()
        served = {"rings": 0, "requests": 0}
        with contextlib.suppress(ValueError):  # just being stopped
            if self._rings is not None:
                served = self._rings.stats()
        return {
            "readers": len(clients),
            "reader_leases": sum(client["leases"] for client in clients),
            "reader_granules": sum(client["granules"] for client in clients),
            "rings": served["rings"],
            "ring_requests": served["requests"],
            "reservations": reservations,
            "reserved_granules": granules,
        }

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(_PATIENCE_S)
            request, descriptors, _, _ = socket.recv_fds(connection, _REQUEST.size, 3)
            try:
                self._judge(connection, request, descriptors)
            finally:
                # A process lives as long as somebody has its lease file open: that isn't us.
                for descriptor in descriptors:
                    os.close(descriptor)
        except OSError as error:
            log.info("a process that wanted descriptors went away: %s", error.strerror)

    def _judge(self, connection: socket.socket, request: bytes, descriptors: list[int]) -> None:
        if len(request) != _REQUEST.size or _REQUEST.unpack(request)[0] != _MAGIC:
            return
        peer = peer_of(connection)
        _, version, what = _REQUEST.unpack(request)
        if version != _VERSION:
            _answer(connection, errno.EPROTONOSUPPORT, "the mount is of another version")
        elif not self.may(peer):
            log.info("no descriptors for process %d of user %d", peer.pid, peer.uid)
            text = f"user {peer.uid} gets no descriptors of this pool: mount it with library=gid=N"
            _answer(connection, errno.EACCES, text)
        elif what == _LEASE:
            self._give(connection, peer)
        elif what == _RING and len(descriptors) == 3:
            self._take(connection, *descriptors)
        else:
            _answer(connection, errno.EPROTO, "the mount doesn't know this request")

    def _give(self, connection: socket.socket, peer: Peer) -> None:
        try:
            descriptors = self._pool.client_new(max(peer.pid, 0), peer.uid)
        except _native.CoreError as error:
            _answer(connection, error.errno or errno.EIO, str(error.strerror))
            return
        try:
            socket.send_fds(connection, [_ANSWER.pack(_MAGIC, 0, 0, b"")], list(descriptors))
        finally:
            # The process is alive as long as somebody has its lease file open: that isn't us.
            for descriptor in descriptors:
                os.close(descriptor)

    def _take(self, connection: socket.socket, ring: int, bell: int, lease: int) -> None:
        """Serve a ring, and give the pool to write by. The connection is kept with the ring."""
        try:
            if self._rings is None:
                self._rings = _native.RingServer(self._pool)
            number = self._rings.add(ring, bell, connection.fileno(), lease)
        except _native.CoreError as error:
            _answer(connection, error.errno or errno.EIO, str(error.strerror))
            return
        pool = self._pool.descriptor()
        try:
            socket.send_fds(connection, [_ANSWER.pack(_MAGIC, 0, 0, b"")], [pool])
        except OSError:
            self._rings.remove(number)
            raise
        finally:
            os.close(pool)

    def may(self, peer: Peer) -> bool:
        """Whether this process gets descriptors: with them it can read and change all of the
        pool."""
        return peer.uid in (0, os.geteuid()) or self._group in peer.gids


def peer_of(connection: socket.socket) -> Peer:
    """Who connected, as the kernel noted it then."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    groups: tuple[int, ...] = ()
    with contextlib.suppress(OSError):
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * _GROUPS_MAX)
        groups = struct.unpack(f"{len(raw) // 4}I", raw)
    return Peer(pid, uid, frozenset({gid, *groups}))


def _answer(connection: socket.socket, number: int, text: str) -> None:
    encoded = text.encode()[:255]
    connection.send(_ANSWER.pack(_MAGIC, -number, len(encoded), encoded))

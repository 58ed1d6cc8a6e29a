"""Blocks looked up, read and stored in place: :func:`belugafs.connect` (docs/library.md).

A connected process has the pool mapped, read-only. Look-ups and leases read the pool's metadata
themselves; neither the daemon nor the kernel is asked. A leased block stays as it is until its
lease is closed, whatever is deleted or evicted meanwhile, and also while no daemon runs.

What changes the pool is asked of the daemon by a ring in shared memory; the first such call
connects it, and maps the pool for writing. New blocks are filled in place
(:mod:`belugafs.reservation`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from belugafs import _native, mounts
from belugafs.attach import attach, open_checked
from belugafs.closing import Closing
from belugafs.control import DIRECTORY_NAME, parse_pairs
from belugafs.options import MountOptions
from belugafs.pool import OpenPool
from belugafs.poolbytes import PoolBytes
from belugafs.reservation import Reservation
from belugafs.watch import EVERY_S, Gone, LeaseLost, Watch, check

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Data = bytes | bytearray | memoryview | NDArray[Any]
"""What a block is stored from: contiguous bytes."""

Keys = Sequence[bytes] | NDArray[np.uint8]
"""Keys of one length: a list of bytes, or an array of shape (n, bytes of a key)."""

IDENTITY = "user.beluga.identity"
_TICK_S = 0.1
_PINS = {"hard": 1, "soft": 2}
PATIENCE_S = 30.0


class BlockMissing(LookupError):
    """The block isn't in the pool: never stored, deleted, or evicted. A miss is always legal."""


class BlockDamaged(OSError):
    """The block is there, and can't be used: its checksum is wrong, or it isn't in one piece."""


class IdentityMismatch(ValueError):
    """The namespace's blocks were made by another model or layout than the caller's."""


def connect(path: str | os.PathLike[str], *, patience_s: float = PATIENCE_S) -> Pool:
    """Connect to a pool, to use its blocks in place.

    Args:
        path: a mount point, anything below one, or a pool that isn't mounted; that is attached by
            this process then, as a mount would, until `Pool.close`.
        patience_s: seconds that a call which changes the pool waits for a daemon, also for the
            next one if it has died. Then it is OSError, ENOTCONN or ETIMEDOUT.

    Raises:
        PermissionError: the mount gives no descriptors to this user (``-o library=``).
        OSError: nothing is there, or the mount can't be read in place; the text says why.
        belugafs.pool.PoolError: the pool can't be attached: it is in use, or none.
    """
    place = os.fspath(path)
    mount = mounts.mount_holding(place)
    if mount is None and not os.path.isdir(place):
        mounted = mounts.mounts_of_pool(place)
        mount = mounted[0] if mounted else None
    if mount is None:
        return _attached(place, patience_s)
    config_path = os.path.join(os.fsencode(mount.mount_point), DIRECTORY_NAME, b"config")
    with open(config_path, encoding="utf-8") as file:
        config = parse_pairs(file.read())
    socket = config.get("library_socket", "")
    if not socket:
        reason = config.get("library_reason", "the mount is of an older version")
        raise OSError(errno.EOPNOTSUPP, f"{mount.mount_point} can't be read in place: {reason}")
    client = _native.Client.connect(socket)
    client.patience(patience_s)
    return Pool(client, mount.mount_point)


def _attached(place: str, patience_s: float) -> Pool:
    options = MountOptions()
    opened, _ = open_checked(place, readonly=False, lock="exclusive")
    try:
        host = _Host(opened, attach(opened, options))
    except BaseException:
        opened.close()
        raise
    try:
        descriptors = host.pool.client_new(os.getpid(), os.geteuid())
        client = _native.Client.open(*descriptors)
        client.serve_by(host.rings)
        client.patience(patience_s)
        return Pool(client, place, host)
    except BaseException:
        host.close()
        raise


class _Host:
    """This process as the pool's host."""

    def __init__(self, opened: OpenPool, pool: _native.Pool) -> None:
        self._opened = opened
        self.pool = pool
        self.rings = _native.RingServer(pool)
        self._stop = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="belugafs tick", daemon=True)
        self._ticker.start()

    def _tick(self) -> None:
        while not self._stop.wait(_TICK_S):
            with contextlib.suppress(OSError):  # the next one tries again
                self.pool.tick()

    def close(self) -> None:
        self._stop.set()
        self._ticker.join()
        self.rings.stop()
        self.pool.close()
        self._opened.close()


class Pool(Closing):
    """A connected pool. From :func:`connect`; safe to use from threads.

    After a fork the child has to connect for itself: in it every call raises RuntimeError, and the
    pool isn't mapped.
    """

    def __init__(self, client: _native.Client, place: str, host: _Host | None = None) -> None:
        self._client = client
        self._host = host
        self.place = place
        """The mount point, or the pool."""

    def __repr__(self) -> str:
        return f"<belugafs.Pool {self.place}{' closed' if self._client.closed else ''}>"

    def close(self) -> None:
        """Disconnect. Arrays of blocks that are still in use keep the mapping and their leases."""
        self._client.close()
        host, self._host = self._host, None
        if host is not None:
            host.close()

    @property
    def closed(self) -> bool:
        return self._client.closed

    def check(self) -> None:
        """Whether all that is leased still stands; cheap enough to ask after each batch.

        Raises:
            LeaseLost: this host was declared dead since some of it was leased.
            PoolGone: the pool was cut, or made anew.
        """
        check(self._client)

    def watch(self, gone: Gone, *, every_s: float = EVERY_S) -> Watch:
        """Ask every ``every_s`` seconds in a thread, and call ``gone`` with that error, once.

        A ``with`` block, or `Watch.close`, ends it.
        """
        return Watch(self._client, gone, every_s)

    def namespace(
        self, name: str, *, identity: Mapping[str, Any] | None = None, create: bool = False
    ) -> Namespace:
        """The blocks of one model: a block namespace, a directory at the pool's root.

        Args:
            name: of that directory.
            identity: what decides the layout of the blocks' bytes, such as
                ``{"dtype": "bf16", "tp": "0/1", "block_tokens": 16}``; JSON values. A namespace
                that has none yet gets it, if this process may write to it; one that has another
                is refused.
            create: make the namespace if there is none.

        Raises:
            FileNotFoundError: there is no such namespace.
            NotADirectoryError: the name is an ordinary directory or file.
            FileExistsError: with ``create``, the same.
            IdentityMismatch: it has another identity.
            OSError: with ``create``, the daemon can't be asked: EACCES, ENOTCONN, EROFS.
        """
        if create:
            number = self._client.namespace_create(name)
        else:
            number = self._client.namespace(name)
        if identity is not None:
            self._compare(name, number, identity)
        return Namespace(self._client, name, number)

    def _compare(self, name: str, number: int, identity: Mapping[str, Any]) -> None:
        wanted = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        try:
            found = self._client.getxattr(number, IDENTITY).decode()
        except OSError as error:
            if error.errno != errno.ENODATA:
                raise
            self._identify(name, number, wanted.encode())
            return
        if found != wanted:
            raise IdentityMismatch(f"namespace {name} is of {found}, not of {wanted}")

    def _identify(self, name: str, number: int, identity: bytes) -> None:
        if self._host is not None:
            self._host.pool.setxattr(number, IDENTITY, identity)
        else:
            os.setxattr(os.path.join(self.place, name), IDENTITY, identity)

    def read_files(self, paths: Sequence[str]) -> Blocks:
        """Lease sealed files by their paths below the root, as `Namespace.read` does blocks by key.

        What an engine has written through the mount is read in place this way. A file that isn't
        there, or is being written for the first time, is missing.
        """
        inodes = []
        for path in paths:
            try:
                inodes.append(self._client.lookup(path.strip("/")))
            except FileNotFoundError:
                inodes.append(0)
        return Blocks(self._client, self._client.lease_inodes(inodes), list(paths))


class Namespace:
    """The blocks of one model, by key. From `Pool.namespace`."""

    def __init__(self, client: _native.Client, name: str, number: int) -> None:
        self._client = client
        self._number = number
        self.name = name

    def __repr__(self) -> str:
        return f"<belugafs.Namespace {self.name}>"

    def match(self, keys: Keys) -> int:
        """How many of the first keys are there without a gap: the longest present prefix.

        One call for thousands of keys, some 50 ns each. It counts as a use of the blocks found.
        """
        joined, key_bytes = _joined(keys)
        return self._client.match(self._number, joined, key_bytes) if key_bytes else 0

    def exists(self, keys: Keys) -> NDArray[np.bool_]:
        """For each key whether its block is there: an array of bool, shape (number of keys,)."""
        joined, key_bytes = _joined(keys)
        if not key_bytes:
            return np.zeros(0, np.bool_)
        return np.frombuffer(self._client.exists(self._number, joined, key_bytes), np.bool_)

    def read(self, keys: Keys) -> Blocks:
        """Lease the blocks that are there, to be read in place.

        Best as ``with ns.read(keys) as blocks:``.

        The checksums of blocks that this process hasn't read before are compared now.

        Raises:
            OSError: the look-up failed. A block that is missing or damaged is no error of this
                call: its `Block` says so.
        """
        joined, key_bytes = _joined(keys)
        leases = self._client.lease(self._number, joined, key_bytes) if key_bytes else []
        return Blocks(self._client, leases, keys)

    def get(self, key: bytes) -> bytes:
        """A copy of one block, whichever way it lies in the pool.

        Raises:
            BlockMissing, BlockDamaged.
        """
        try:
            return self._client.get(self._number, key)
        except OSError as error:
            raise _block_error(error.errno or 0, f"block {key.hex()}") from error

    def get_into(self, key: bytes, buffer: WriteableBuffer) -> int:
        """Copy one block into a buffer, whichever way it lies in the pool.

        Args:
            buffer: writable and contiguous, such as a bytearray or an array; at least as large as
                the block.

        Returns:
            The block's size in bytes.

        Raises:
            BlockMissing, BlockDamaged.
            ValueError: the block is larger.
        """
        try:
            return self._client.get_into(self._number, key, buffer)
        except OSError as error:
            if error.errno == errno.ERANGE:
                raise ValueError(f"block {key.hex()}: {error.strerror}") from None
            raise _block_error(error.errno or 0, f"block {key.hex()}") from error

    # ---- storing, deleting, pinning ----

    def reserve(self, keys: Keys, size_bytes: int) -> Reservation:
        """Room for new blocks, to be filled in place.

        Best as ``with ns.reserve(keys, size_bytes) as new:``, which commits at its end.

        Args:
            keys: of 1 to 65,536 blocks. Whether they are there already isn't looked at before
                the commit.
            size_bytes: of each block; at most a region of the pool (64 MiB, less in small pools).

        Raises:
            OSError: ENOSPC: all that is in the pool is in use; EFBIG; ENOTCONN, ETIMEDOUT: no
                daemon answers; EACCES.
        """
        joined, key_bytes = _joined(keys)
        if not key_bytes:
            raise ValueError("a reservation is for one block or more")
        whole = bytes(joined)
        room = self._client.reserve(self._number, len(whole) // key_bytes, size_bytes)
        return Reservation(room, whole, key_bytes, size_bytes)

    def put(self, key: bytes, data: Data) -> bool:
        """Store a copy of one block. False: a block with this key was there already.

        Raises:
            OSError: as `reserve`.
        """
        return self.put_many([(key, data)])[0]

    def put_many(self, blocks: Iterable[tuple[bytes, Data]]) -> list[bool]:
        """Store copies of blocks, (key, data) each; for each whether it was stored, or was there.

        Raises:
            OSError: some weren't stored for another reason; the others were.
        """
        pairs = list(blocks)
        joined, key_bytes = _joined([key for key, _ in pairs])
        if not key_bytes:
            return []
        data = [block.data if isinstance(block, np.ndarray) else block for _, block in pairs]
        numbers = self._client.put(self._number, joined, key_bytes, data)
        _raise_first(numbers, {errno.EEXIST}, "stored")
        return [number == 0 for number in numbers]

    def delete(self, keys: Keys) -> NDArray[np.bool_]:
        """Delete blocks; for each whether it was there. Who has leased one keeps its bytes.

        Raises:
            OSError: as `reserve`.
        """
        joined, key_bytes = _joined(keys)
        numbers = self._client.delete(self._number, joined, key_bytes) if key_bytes else []
        _raise_first(numbers, {errno.ENOENT}, "deleted")
        return _done(numbers)

    def pin(self, keys: Keys, how: Literal["hard", "soft"] = "hard") -> NDArray[np.bool_]:
        """Keep blocks from eviction: "hard" ones always, "soft" ones until nothing else is left.

        Returns:
            For each whether it is there, and pinned now.
        """
        return self._pin(keys, _PINS[how])

    def unpin(self, keys: Keys) -> NDArray[np.bool_]:
        """Undo `pin`; for each block whether it is there."""
        return self._pin(keys, 0)

    def _pin(self, keys: Keys, how: int) -> NDArray[np.bool_]:
        joined, key_bytes = _joined(keys)
        numbers = self._client.pin(self._number, joined, key_bytes, how) if key_bytes else []
        _raise_first(numbers, {errno.ENOENT}, "pinned")
        return _done(numbers)


def _done(numbers: Sequence[int]) -> NDArray[np.bool_]:
    return np.fromiter((number == 0 for number in numbers), np.bool_, len(numbers))


def _raise_first(numbers: Sequence[int], usual: set[int], done: str) -> None:
    odd = [number for number in numbers if number and number not in usual]
    if odd:
        raise OSError(
            odd[0], f"{len(odd)} of {len(numbers)} blocks weren't {done}: {os.strerror(odd[0])}"
        )


def _joined(keys: Keys) -> tuple[bytes | memoryview, int]:
    """One after the other, and the length of each; 0 for no keys."""
    if isinstance(keys, np.ndarray):
        if keys.ndim != 2 or keys.dtype != np.uint8:
            raise ValueError(
                f"an array of keys is uint8, (n, bytes), not {keys.dtype} {keys.shape}"
            )
        return np.ascontiguousarray(keys).data, keys.shape[1] if len(keys) else 0
    if len(keys) == 1:
        return bytes(keys[0]), len(keys[0])
    lengths = set(map(len, keys))
    if len(lengths) > 1:
        raise ValueError(f"the keys of one call have one length, not {sorted(lengths)} bytes")
    return b"".join(keys), lengths.pop() if lengths else 0


def _block_error(number: int, what: str) -> Exception:
    if number in (errno.ENOENT, errno.ESTALE):
        return BlockMissing(f"{what} isn't in the pool: never stored, deleted or evicted")
    if number == errno.EIO:
        return BlockDamaged(number, f"{what} is damaged: compute it anew, and run belugafs verify")
    if number == errno.EXDEV:
        return BlockDamaged(
            number, f"{what} isn't in one piece, so it can't be read in place; read the file"
        )
    if number == errno.EBUSY:
        return BlockMissing(f"{what} is being written")
    if number == errno.ENOBUFS:
        return BlockDamaged(number, f"{what} isn't leased: this process holds too many blocks")
    return BlockDamaged(number, f"{what}: {os.strerror(number)}")


class Blocks(Closing, Sequence["Block"]):
    """Leased blocks, in the order of their keys. From `Namespace.read`.

    Closing gives the leases back: at the end of ``with``, by `close`, or when nothing refers to
    them. Views are released then, and raise ValueError. An array or tensor that outlives it (also a
    slice of a view) keeps its own block leased until it is gone: never does anything show another
    block's bytes.
    """

    def __init__(
        self, client: _native.Client, leases: list[_native.Lease], names: Keys | list[str]
    ) -> None:
        self._client = client
        self._leases = leases
        self._names = names
        self._blocks: list[Block] | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._leases)

    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def __iter__(self) -> Iterator[Block]:
        return iter(self._all())

    def _all(self) -> list[Block]:
        if self._blocks is None:
            names = self._names
            self._blocks = [Block(lease, names, at) for at, lease in enumerate(self._leases)]
        return self._blocks

    @property
    def present(self) -> list[bool]:
        """For each block whether it is leased."""
        return [lease.error == 0 for lease in self._leases]

    def close(self) -> int:
        """Give the leases back; how many blocks are still used by arrays, and wait for these.

        Raises:
            LeaseLost: this host was declared dead since they were leased.
        """
        if self._closed:
            return 0
        self._closed = True
        for block in self._blocks or ():
            if block._view is not None:
                block._release_view()
        try:
            return self._client.release(self._leases)
        except OSError as error:
            if error.errno == errno.ESTALE:
                raise LeaseLost(str(error.strerror)) from error
            raise


class Block(PoolBytes):
    """One leased block. Its bytes are the pool's own memory, read-only."""

    __slots__ = ("_at", "_lease", "_names")

    def __init__(self, lease: _native.Lease, names: Keys | list[str], at: int) -> None:
        self._view = None
        self._lease = lease
        self._names = names
        self._at = at

    @property
    def _name(self) -> str:
        name = self._names[self._at]
        return name if isinstance(name, str) else f"block {bytes(name).hex()}"

    def __repr__(self) -> str:
        return f"<belugafs.Block {self._name}, {self.size_bytes} bytes>"

    @property
    def present(self) -> bool:
        """Whether it is leased."""
        return self._lease.error == 0

    @property
    def size_bytes(self) -> int:
        return self._lease.size

    @property
    def address(self) -> int:
        """Where its bytes are in this process; a multiple of 4096."""
        return self._lease.address

    @property
    def verified(self) -> bool:
        """Whether its checksums were compared, now or by this process before; False: it has
        none."""
        return self._lease.verified

    def _buffer(self) -> Any:
        try:
            return self._lease.buffer()
        except ValueError as error:
            if self._lease.error:
                raise _block_error(self._lease.error, self._name) from None
            raise ValueError(f"{self._name}: {error}") from None

"""Blocks that a process stores itself: `Namespace.reserve` (docs/library.md).

The daemon reserves room in the pool, the process fills it in place, and a commit makes the blocks
visible, all of them in one request. Reserved room belongs to the process until then, whichever
daemon runs, and ends with it.

Concurrency: as with leases, all calls may come from any thread; the native `Room` counts buffers,
and is what keeps room from being used again under an array that outlives its block.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from belugafs import _native
from belugafs.poolbytes import PoolBytes

_COMMITTED = (0, errno.EEXIST)
"""Outcomes of a commit after which the block is in the pool."""


class Reservation(Sequence["NewBlock"]):
    """Room for blocks, in the order of their keys. From `Namespace.reserve`.

    Best as ``with ns.reserve(keys, size_bytes) as new:``. At its end the blocks are committed; if
    it ends with an exception, what isn't committed yet is dropped. A block whose view, array,
    tensor or address nobody asked for wasn't filled, and is dropped.
    """

    def __init__(self, room: _native.Room, keys: bytes, key_bytes: int, size_bytes: int) -> None:
        self._room = room
        self._keys = keys
        self._key_bytes = key_bytes
        self._blocks: list[NewBlock | None] = [None] * (len(keys) // key_bytes)
        self.size_bytes = size_bytes
        """Of each block."""

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._block(at) for at in range(*index.indices(len(self)))]
        return self._block(range(len(self))[index])

    def __iter__(self) -> Iterator[NewBlock]:
        return (self._block(at) for at in range(len(self)))

    def _block(self, at: int) -> NewBlock:
        block = self._blocks[at]
        if block is None:
            key = self._keys[at * self._key_bytes : (at + 1) * self._key_bytes]
            block = self._blocks[at] = NewBlock(self, self._room, at, key)
        return block

    def _known(self) -> list[NewBlock]:
        """Those that somebody has asked for."""
        return [block for block in self._blocks if block is not None]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if exc_type is None and not self._room.dropped:
                self.commit()
        finally:
            self.drop()

    @property
    def stored(self) -> list[bool]:
        """For each block whether this reservation has stored it."""
        return [block is not None and block.stored for block in self._blocks]

    def commit(self, filled: int | Sequence[int] | None = None) -> int:
        """Make all blocks visible that were touched and aren't committed yet.

        Their views are released. An array that is still there must not be stored into any more:
        who reads the block afterwards would find it damaged.

        Args:
            filled: bytes that were stored into each, from its start: one number for all of them,
                or one for each block of the reservation. The rest becomes zeros. By default all
                of it was filled, or what `NewBlock.filled_bytes` was set to.

        Returns:
            How many were stored. The others were there already: `NewBlock.existed`.

        Raises:
            ValueError: the reservation is closed; more filled than there is.
            OSError: some couldn't be stored, and stay reserved: there is no room for metadata
                (ENOSPC), there is no daemon (ENOTCONN), or none that answers (ETIMEDOUT). To be
                asked again; what was done is found to be there.
        """
        if filled is not None:
            sizes = [filled] * len(self) if isinstance(filled, int) else list(filled)
            if len(sizes) != len(self):
                raise ValueError(f"{len(sizes)} sizes for {len(self)} blocks")
            for block in self._known():
                if block._open:
                    block.filled_bytes = sizes[block._at]
        return self._commit(
            [
                block
                for block in self._blocks
                if block is not None and block._touched and block._error not in _COMMITTED
            ]
        )

    def _commit(self, blocks: list[NewBlock]) -> int:
        if not blocks:
            return 0
        # A thousand blocks at a time are usual: no call for each, where there is nothing to do.
        for block in blocks:
            if block._view is not None:
                block._release_view()
        whole = len(blocks) == len(self._blocks)
        numbers = self._room.commit(
            self._keys if whole else b"".join([block.key for block in blocks]),
            self._key_bytes,
            [block._at for block in blocks],
            [self.size_bytes if block._filled < 0 else block._filled for block in blocks],
        )
        for block, number in zip(blocks, numbers, strict=True):
            block._error = number
        failed = next((number for number in numbers if number not in _COMMITTED), 0)
        if failed:
            raise OSError(failed, f"some blocks weren't stored: {os.strerror(failed)}")
        return numbers.count(0)

    def drop(self) -> int:
        """Give back what isn't committed; how many blocks are still used by arrays. These keep
        the reservation, or their own committed block's room, until they are gone."""
        for block in self._blocks:
            if block is not None and block._view is not None:
                block._release_view()
        return self._room.drop()


class NewBlock(PoolBytes):
    """Room for one block: the pool's own memory, writable until its commit. It holds what its
    former owners left, which nobody else ever sees: what isn't filled becomes zeros."""

    __slots__ = ("_at", "_error", "_filled", "_reservation", "_room", "_touched", "key")

    def __init__(self, reservation: Reservation, room: _native.Room, at: int, key: bytes) -> None:
        self._view = None
        self._reservation = reservation
        self._room = room
        self._at = at
        self._error = -1
        self._filled = -1
        self._touched = False
        self.key = key

    def __repr__(self) -> str:
        return f"<belugafs.NewBlock {self.key.hex()}, {self.size_bytes} bytes>"

    @property
    def _name(self) -> str:
        return f"block {self.key.hex()}"

    @property
    def _open(self) -> bool:
        return self._error not in _COMMITTED

    @property
    def size_bytes(self) -> int:
        return self._reservation.size_bytes

    @property
    def filled_bytes(self) -> int:
        """Bytes that were stored, from its start; the rest becomes zeros at the commit."""
        return self.size_bytes if self._filled < 0 else self._filled

    @filled_bytes.setter
    def filled_bytes(self, size_bytes: int) -> None:
        if not 0 <= size_bytes <= self.size_bytes:
            raise ValueError(f"{size_bytes} bytes filled of {self.size_bytes}")
        self._filled = size_bytes

    @property
    def address(self) -> int:
        """Where its bytes are in this process; a multiple of 4096."""
        self._touched = True
        return self._room.address(self._at)

    @property
    def stored(self) -> bool:
        """Whether it was committed, and is in the pool by that."""
        return self._error == 0

    @property
    def existed(self) -> bool:
        """Whether its commit found a block with this key, which is the same one."""
        return self._error == errno.EEXIST

    def _buffer(self) -> Any:
        try:
            buffer = self._room.buffer(self._at)
        except ValueError as error:
            raise ValueError(f"{self._name}: {error}") from None
        self._touched = True
        return buffer

    def commit(self, filled: int | None = None) -> bool:
        """Make it visible now, alone. As `Reservation.commit`.

        Returns:
            Whether it was stored; else it was there already.
        """
        if filled is not None:
            self.filled_bytes = filled
        if not self._open:
            raise ValueError(f"{self._name} is committed")
        self._touched = True
        return self._reservation._commit([self]) == 1

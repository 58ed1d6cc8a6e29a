"""What every way of copying between an engine and a pool has in common.

A mover takes whole transfers, gives back a ticket at once or after it is done, and says what it
needs of the memory. Two exist: :class:`~belugafs.kernels.cpu.CpuMover` and
:class:`~belugafs.kernels.cuda.CudaMover`. A third, for Intel DSA, fits the same interface: a
transfer is a list of descriptors (piece: source, destination, length), a ticket waits for their
completion records, and ``needs_registration`` is False, since DSA takes the addresses of a process
(shared virtual memory).
"""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import ArrayLike

from belugafs.kernels.layout import Blocks, PagedCache


class Ticket(Protocol):
    """A transfer under way. Until it is done, both sides must stay as they are: hold the lease."""

    @property
    def done(self) -> bool: ...

    def wait(self) -> None:
        """Return when all is copied and what went to the pool is in the pool.

        OSError (EIO): memory failed, and the destination's content is undefined.
        """


class Mover(Protocol):
    """Not for two threads at once, unless its class says so."""

    @property
    def name(self) -> str: ...

    @property
    def needs_registration(self) -> bool:
        """Whether pool memory must be known to a device first (``registration``)."""

    def gather_write(
        self, cache: PagedCache, pages: ArrayLike, blocks: Blocks, *, stream: Any = None
    ) -> Ticket:
        """Engine to pool. ``stream``: of the device that the mover is for; else None."""

    def scatter_read(
        self, cache: PagedCache, pages: ArrayLike, blocks: Blocks, *, stream: Any = None
    ) -> Ticket:
        """Pool to engine."""

"""belugafs: the KV cache of LLM engines as files in a shared memory pool.

The filesystem: ``mkfs.belugafs``, ``mount -t belugafs``, ``belugafs status`` and ``ls``,
``fsck.belugafs``. Beside it :func:`connect` reads and stores blocks in place (docs/library.md).
The C core is ``belugafs._native``.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from belugafs.client import (
        Block,
        BlockDamaged,
        BlockMissing,
        Blocks,
        IdentityMismatch,
        Namespace,
        Pool,
        connect,
    )
    from belugafs.reservation import NewBlock, Reservation
    from belugafs.watch import LeaseLost, PoolGone

__all__ = [
    "Block",
    "BlockDamaged",
    "BlockMissing",
    "Blocks",
    "IdentityMismatch",
    "LeaseLost",
    "Namespace",
    "NewBlock",
    "Pool",
    "PoolGone",
    "Reservation",
    "connect",
]


_OF = {
    "NewBlock": "reservation",
    "Reservation": "reservation",
    "LeaseLost": "watch",
    "PoolGone": "watch",
}
"""Where those are that aren't in ``client``."""


def __getattr__(name: str) -> Any:
    # Commands start without numpy and the C core.
    if name in __all__:
        module = importlib.import_module(f"belugafs.{_OF.get(name, 'client')}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__version__ = "0.1.0"

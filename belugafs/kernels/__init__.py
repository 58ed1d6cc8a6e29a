"""Copies between an engine's KV cache and blocks of a pool: on the CPU and on the GPU.

===============  ================================================================
``layout``       the shape of a model's KV cache; where its pages lie; lists of pieces
``mover``        what every way of copying has in common; room for others (DSA)
``cpu``          copies by the processor; checksums beside the copy
``cuda``         the GPU's own kernels, and CUDA's copies
``choice``       which of them for which sizes; measuring that
``registration``  pool memory known to the GPU, lazily and in chunks
``cudart``       the calls of the CUDA runtime that CuPy doesn't have
``bench``        ``python -m belugafs.kernels.bench``
``_copy``        the C part (``kernels/*.c`` at the top of the repository)
===============  ================================================================

Nothing here knows of pools, leases or names: it is given addresses, and who gives them holds
what they point to. Importing this needs neither torch nor CuPy nor a GPU.
"""

from belugafs.kernels.cpu import CpuMover
from belugafs.kernels.layout import Layout, LayoutError, PagedCache
from belugafs.kernels.mover import Mover, Ticket

__all__ = ["CpuMover", "Layout", "LayoutError", "Mover", "PagedCache", "Ticket"]

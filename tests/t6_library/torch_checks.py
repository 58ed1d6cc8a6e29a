"""Leased blocks as torch tensors on the CPU: run by test_torch.py, in interpreters that have torch.

    python torch_checks.py POOL     a pool with blocks 0 to 3 of namespace ``llama``

Needs neither pytest nor anything else but torch, numpy and belugafs. The last line that it prints
is ``checked N`` with the number of checks.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import belugafs

BLOCK_BYTES = 300 << 10
SHAPE = (BLOCK_BYTES // 64, 32)
DTYPES = (
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.int8,
    torch.uint8,
    torch.float8_e4m3fn,
)


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def content(number: int) -> bytes:
    return (np.arange(BLOCK_BYTES // 8, dtype=np.uint64) * np.uint64(number + 3)).tobytes()


def refused(kind: type[BaseException], words: str, call: Callable[[], object]) -> None:
    try:
        call()
    except kind as error:
        assert words in str(error), f"{error}: should say {words!r}"
        return
    raise AssertionError(f"no {kind.__name__}")


def no_copy(pool: Any) -> None:
    start, size = pool._client.span
    with pool.namespace("llama").read([key(1)]) as blocks:
        block = blocks[0]
        for dtype in DTYPES:
            tensor = block.tensor(dtype)
            assert tensor.dtype == dtype and tensor.device.type == "cpu"
            assert tensor.data_ptr() == block.address
            assert start <= tensor.data_ptr() < start + size
            assert tensor.untyped_storage().nbytes() == BLOCK_BYTES
            assert tensor.view(torch.uint8).numpy().tobytes() == content(1)
        shaped = block.tensor(torch.bfloat16, SHAPE)
        assert tuple(shaped.shape) == SHAPE and shaped.is_contiguous()
        assert shaped[5].data_ptr() == block.address + 5 * 64
        assert block.tensor().dtype == torch.uint8


def by_dlpack(pool: Any) -> None:
    with pool.namespace("llama").read([key(2)]) as blocks:
        tensor = torch.from_dlpack(blocks[0])
        assert tensor.data_ptr() == blocks[0].address
        assert tensor.numpy().tobytes() == content(2)
        del tensor


def errors(pool: Any) -> None:
    ns = pool.namespace("llama")
    with ns.read([key(1), key(99)]) as blocks:
        block, missing = blocks
        size = f"has {BLOCK_BYTES} bytes"
        refused(ValueError, size, lambda: block.tensor(torch.float32, (3, 5)))
        refused(ValueError, size, lambda: block.tensor(torch.float32, BLOCK_BYTES))
        refused(ValueError, "negative", lambda: block.tensor(torch.uint8, (-1, 32)))
        refused(belugafs.BlockMissing, "isn't in the pool", lambda: missing.tensor(torch.uint8, 0))
    refused(ValueError, "lease is closed", lambda: block.tensor())


def odd_sizes(pool: Any) -> None:
    """A block that is no whole number of elements, and an empty one."""
    core = pool._host.pool
    ns = core.ns_create("llama")
    core.block_put(ns, key(50), b"odd")
    core.block_put(ns, key(51), b"")
    with pool.namespace("llama").read([key(50), key(51)]) as blocks:
        refused(ValueError, "no whole number of torch.int16", lambda: blocks[0].tensor(torch.int16))
        assert blocks[0].tensor().tolist() == list(b"odd")
        assert tuple(blocks[1].tensor(torch.float32, (0, 4)).shape) == (0, 4)


def evicted(pool: Any) -> None:
    core = pool._host.pool
    core.block_put(core.ns_create("llama"), key(60), content(60))
    core.evict(1 << 30)
    with pool.namespace("llama").read([key(60)]) as blocks:
        refused(belugafs.BlockMissing, "deleted or evicted", lambda: blocks[0].tensor())


def a_tensor_keeps_its_block(pool: Any) -> None:
    core = pool._host.pool
    ns = core.ns_create("llama")
    with pool.namespace("llama").read([key(3)]) as blocks:
        part = blocks[0].tensor(torch.int64)[100:200]
    core.block_delete(ns, key(3))
    for number in range(1000, 1400):  # more than fits: whatever may be used again, is
        core.block_put(ns, key(number), content(number))
    assert part.numpy().tobytes() == content(3)[800:1600]
    assert pool._client.leases == 1
    del part
    gc.collect()
    assert pool._client.leases == 0


CHECKS = (no_copy, by_dlpack, errors, odd_sizes, a_tensor_keeps_its_block, evicted)


def main(path: str) -> None:
    with belugafs.connect(path) as pool:
        for check in CHECKS:
            check(pool)
            gc.collect()
            assert pool._client.leases == 0, check.__name__
    print(f"checked {len(CHECKS)}")


if __name__ == "__main__":
    main(sys.argv[1])

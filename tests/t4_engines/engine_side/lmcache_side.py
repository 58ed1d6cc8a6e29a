"""LMCache's stores that keep blocks on a directory.

usage: lmcache_side.py DIR local_disk|local_disk_odirect
       lmcache_side.py DIR fs|fs_odirect|fs_native|fs_native_odirect store|load

``local_disk`` has its index in memory only, so one process stores, loads and evicts. The other
two are level 2 of the multi-process server: a second process finds what the first one stored.
"""

from __future__ import annotations

import asyncio
import functools
import json
import mmap
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase
from lmcache.v1.distributed.l2_adapters.factory import create_l2_adapter_from_registry
from lmcache.v1.distributed.l2_adapters.fs_l2_adapter import FSL2AdapterConfig
from lmcache.v1.distributed.l2_adapters.fs_native_l2_adapter import FSNativeL2AdapterConfig
from lmcache.v1.memory_allocators.tensor_memory_allocator import TensorMemoryAllocator
from lmcache.v1.memory_management import MemoryFormat, MemoryObj
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.storage_backend.local_disk_backend import LocalDiskBackend

CHUNKS = 6
# 256 tokens of 8 KiB: key and value, 4 layers, 256 hidden, in bfloat16.
SHAPE = torch.Size([2, 4, 256, 512])
CHUNK_BYTES = SHAPE.numel() * 2


def content(number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(SHAPE, generator=generator).to(torch.bfloat16)


def memory(size_bytes: int) -> Any:
    """Page-aligned, as the server's own buffers are: O_DIRECT needs it on other filesystems."""
    return TensorMemoryAllocator(torch.frombuffer(mmap.mmap(-1, size_bytes), dtype=torch.uint8))


def allocate(allocator: Any) -> MemoryObj:
    got = allocator.allocate(SHAPE, torch.bfloat16, MemoryFormat.KV_2LTD)
    assert got is not None
    return got


def wait_for(condition: Callable[[], Any], fd: int | None = None) -> Any:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        got = condition()
        if got:
            return got
        if fd is None:
            time.sleep(0.02)
        else:
            select.select([fd], [], [], 0.2)
    raise TimeoutError("LMCache didn't finish within 60 s")


def local_disk(directory: str, odirect: bool) -> dict[str, object]:
    # Room for four chunks: the fifth evicts the first.
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=256,
        local_cpu=False,
        max_local_cpu_size=0.1,
        local_disk=directory,
        max_local_disk_size=4.5 * CHUNK_BYTES / 2**30,
        extra_config={"use_odirect": odirect},
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    allocator = memory(64 << 20)
    cpu = LocalCPUBackend(config, memory_allocator=allocator)
    disk = LocalDiskBackend(config, loop, cpu, "cpu")
    keys = [CacheEngineKey("tiny/random", 1, 0, 1000 + i, torch.bfloat16) for i in range(CHUNKS)]
    stored = 0
    for number, key in enumerate(keys):
        chunk = allocate(allocator)
        assert chunk.tensor is not None
        chunk.tensor.copy_(content(number))
        disk.submit_put_task(key, chunk)
        wait_for(functools.partial(disk.contains, key))
        stored += 1
    there = [disk.contains(key) for key in keys]
    right = 0
    for number, key in enumerate(keys):
        if there[number]:
            got = disk.get_blocking(key)
            right += (
                got is not None
                and got.tensor is not None
                and bool(torch.equal(got.tensor.view(SHAPE), content(number)))
            )
    # A file that the filesystem evicted. LMCache notices, forgets the key, and then stumbles over
    # its own index (KeyError in 0.5.6); from then on the chunk is a miss.
    last = next(name for name in os.listdir(directory) if f"@{1000 + CHUNKS - 1:x}@" in name)
    os.unlink(os.path.join(directory, last))
    try:
        when_evicted = str(disk.get_blocking(keys[-1]))
    except Exception as error:
        when_evicted = type(error).__name__
    result = {
        "block_bytes": disk.os_disk_bs,
        "odirect": disk.use_odirect,
        "stored": stored,
        "there": there,
        "right": right,
        "when_evicted": when_evicted,
        "then_there": disk.contains(keys[-1]),
        "files": len(os.listdir(directory)),
    }
    disk.close()
    loop.call_soon_threadsafe(loop.stop)
    return result


def level_2(directory: str, kind: str, phase: str) -> dict[str, object]:
    settings: dict[str, object] = {"base_path": directory, "use_odirect": "odirect" in kind}
    config: L2AdapterConfigBase
    if kind.startswith("fs_native"):
        config = FSNativeL2AdapterConfig.from_dict(settings | {"num_workers": 2})
    else:
        config = FSL2AdapterConfig.from_dict(settings)
    adapter = create_l2_adapter_from_registry(config)
    allocator = memory(64 << 20)
    chunks = [allocate(allocator) for _ in range(CHUNKS)]
    keys = [
        ObjectKey(chunk_hash=b"%032d" % number, model_name="org/tiny", kv_rank=0x01000100)
        for number in range(CHUNKS)
    ]
    result: dict[str, object] = {}
    if phase == "store":
        for number, chunk in enumerate(chunks):
            assert chunk.tensor is not None
            chunk.tensor.copy_(content(number))
        adapter.submit_store_task(keys, chunks)
        wait_for(adapter.pop_completed_store_tasks, adapter.get_store_event_fd())
    else:
        task = adapter.submit_lookup_and_lock_task(keys, {})
        found = wait_for(
            lambda: adapter.query_lookup_and_lock_result(task),
            adapter.get_lookup_and_lock_event_fd(),
        )
        result["found"] = list(found.get_indices_list())
        load = adapter.submit_load_task(keys, chunks)
        loaded = wait_for(lambda: adapter.query_load_result(load), adapter.get_load_event_fd())
        result["loaded"] = list(loaded.get_indices_list())
        result["right"] = [
            number
            for number, chunk in enumerate(chunks)
            if chunk.tensor is not None and torch.equal(chunk.tensor.view(SHAPE), content(number))
        ]
        adapter.submit_unlock(keys)
        adapter.delete(keys[:2])
        wait_for(lambda: len(os.listdir(directory)) <= CHUNKS - 2)
    result["files"] = sorted(os.listdir(directory))
    result["sizes"] = sorted(
        {os.path.getsize(os.path.join(directory, name)) for name in os.listdir(directory)}
    )
    adapter.close()
    return result


def main() -> None:
    directory, kind, *phase = sys.argv[1:]
    if kind.startswith("local_disk"):
        result = local_disk(directory, kind.endswith("odirect"))
    else:
        result = level_2(directory, kind, phase[0])
    print("BELUGAFS_RESULT", json.dumps(result | {"chunk_bytes": CHUNK_BYTES}), flush=True)


if __name__ == "__main__":
    main()

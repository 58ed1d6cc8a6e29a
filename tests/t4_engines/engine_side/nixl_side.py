"""NIXL's POSIX plugin: blocks written to a file and read back by one of its queues.

usage: nixl_side.py DIR aio|uring|posix_aio direct|buffered
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from nixl._api import nixl_agent, nixl_agent_config

BLOCK_BYTES = 1 << 20
BLOCKS = 16


def main() -> None:
    directory, queue, how = sys.argv[1:]
    agent = nixl_agent("belugafs-test", nixl_agent_config(backends=[]))
    agent.create_backend("POSIX", {f"use_{queue}": "true"})
    flags = os.O_RDWR | os.O_CREAT | (os.O_DIRECT if how == "direct" else 0)
    fd = os.open(os.path.join(directory, "blocks.bin"), flags, 0o644)
    file_memory = agent.register_memory([(0, BLOCK_BYTES * BLOCKS, fd, "")], "FILE")

    def transfer(operation: str, tensor: torch.Tensor, order: list[int]) -> str:
        agent.register_memory(tensor)
        base = tensor.data_ptr()
        host = [(base + i * BLOCK_BYTES, BLOCK_BYTES, 0) for i in order]
        file = [(i * BLOCK_BYTES, BLOCK_BYTES, fd) for i in order]
        handle = agent.initialize_xfer(
            operation,
            agent.get_xfer_descs(host, "DRAM"),
            agent.get_xfer_descs(file, "FILE"),
            "belugafs-test",
        )
        state = agent.transfer(handle)
        deadline = time.monotonic() + 60
        while state == "PROC" and time.monotonic() < deadline:
            time.sleep(0.001)
            state = agent.check_xfer_state(handle)
        agent.release_xfer_handle(handle)
        return str(state)

    generator = torch.Generator().manual_seed(20172)
    stored = torch.randint(
        -(2**31), 2**31 - 1, (BLOCK_BYTES * BLOCKS // 4,), dtype=torch.int32, generator=generator
    )
    written = transfer("WRITE", stored, list(reversed(range(BLOCKS))))
    loaded = torch.zeros_like(stored)
    read = transfer("READ", loaded, list(range(BLOCKS)))
    agent.deregister_memory(file_memory)
    os.close(fd)
    content = bytearray(Path(directory, "blocks.bin").read_bytes())
    by_read = torch.frombuffer(content, dtype=torch.int32)
    result = {
        "plugins": sorted(agent.get_plugin_list()),
        "write": written,
        "read": read,
        "same": bool(torch.equal(stored, loaded)),
        "same_by_read": bool(torch.equal(stored, by_read)),
        "blocks": BLOCKS,
        "bytes": by_read.numel() * 4,
    }
    print("BELUGAFS_RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

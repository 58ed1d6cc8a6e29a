"""Lets vLLM's tiered KV offloading, and so its ``fs`` tier, run on a CPU (vLLM 0.32).

vLLM's ``TieringOffloadingSpec`` refuses to make a worker on anything but a GPU, since the copy
between device and host is written for one. Here that copy alone is replaced: scheduler,
look-up, primary tier, ``fs`` tier, its threads and its file I/O are vLLM's own. vLLM loads
this module by name from ``kv_connector_extra_config``::

    {"spec_name": "CpuTieringSpec", "spec_module_path": "belugafs_vllm_cpu_spec", ...}

It is for demos and tests. On a GPU use ``TieringOffloadingSpec`` itself.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time

import numpy as np
import torch
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class HostCopyWorker(OffloadingWorker):
    """Copies between the engine's KV tensors and the offload region, at once, on this thread.

    Both lie in host memory. A *chunk* of the region holds ``blocks_per_chunk`` of the engine's
    blocks, tensor after tensor. Since a copy is done when ``submit_*`` returns, a job is
    finished at the next ``get_finished`` and there is never anything to wait for.
    """

    def __init__(
        self, kv_caches: CanonicalKVCaches, blocks_per_chunk: int, region: SharedOffloadRegion
    ) -> None:
        self._region = region
        self._blocks_per_chunk = blocks_per_chunk
        self._group_refs = kv_caches.group_data_refs
        self._finished: list[TransferResult] = []
        self._engine: list[torch.Tensor] = []  # each (blocks, page bytes)
        self._host: list[torch.Tensor] = []  # each (chunks, blocks per chunk, page bytes)
        for cache in kv_caches.tensors:
            page = cache.page_size_bytes
            self._engine.append(cache.tensor.view(torch.int8).view(-1, page))
            rows = region.create_next_worker_view(page * blocks_per_chunk)
            self._host.append(rows.unflatten(1, (blocks_per_chunk, page)))

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        return self._transfer(job_id, src_spec, dst_spec, to_host=True)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        return self._transfer(job_id, dst_spec, src_spec, to_host=False)

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        pass

    def shutdown(self) -> None:
        self._host.clear()
        self._region.cleanup()

    def _transfer(
        self, job_id: int, engine_spec: GPULoadStoreSpec, host_spec: LoadStoreSpec, to_host: bool
    ) -> bool:
        assert isinstance(host_spec, BlockIDsLoadStoreSpec)
        started = time.perf_counter()
        moved = block_at = chunk_at = 0
        for group, refs in enumerate(self._group_refs):
            count = engine_spec.group_sizes[group]
            if count == 0:
                continue
            # The run of blocks may begin inside a chunk: number them from that chunk's start.
            first = engine_spec.block_indices[group] % self._blocks_per_chunk
            place, inside = np.divmod(first + np.arange(count), self._blocks_per_chunk)
            chunk_count = int(place[-1]) + 1
            blocks = torch.from_numpy(
                engine_spec.block_ids[block_at : block_at + count].astype(np.int64)
            )
            chunk_ids = host_spec.block_ids[chunk_at : chunk_at + chunk_count].astype(np.int64)
            chunks, slots = torch.from_numpy(chunk_ids[place]), torch.from_numpy(inside)
            for ref in refs:
                # A page may be padded; the padding is nobody's data.
                engine = self._engine[ref.tensor_idx][:, : ref.page_size_bytes]
                host = self._host[ref.tensor_idx][:, :, : ref.page_size_bytes]
                if to_host:
                    host[chunks, slots] = engine[blocks]
                else:
                    engine[blocks] = host[chunks, slots]
                moved += count * ref.page_size_bytes
            block_at += count
            chunk_at += chunk_count
        self._finished.append(
            TransferResult(
                job_id=job_id,
                success=True,
                transfer_size=moved,
                transfer_time=time.perf_counter() - started,
            )
        )
        return True


class CpuTieringSpec(TieringOffloadingSpec):
    """``TieringOffloadingSpec`` with a worker for host memory."""

    _worker: OffloadingWorker | None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self._worker is None:
            region = SharedOffloadRegion(
                engine_id=self.config.engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            # The scheduler's half opens the region by this name later than we do, so the name
            # can't go before the process does; one that is killed leaves it to its starter.
            atexit.register(_unlink, region.mmap_path)
            self._worker = HostCopyWorker(kv_caches, self.blocks_per_chunk, region)
        return self._worker


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)

"""SGLang's HiCacheFile: pages of a prefix stored, found and loaded.

usage: sglang_side.py DIR store|load PAGES MAX_SIZE

``load`` reports how long a prefix of all pages is found, and how many of those loaded are right.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorageConfig

PAGE_BYTES = 512 * 1024  # 64 tokens of 8 KiB


def page(number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(PAGE_BYTES // 2, generator=generator, dtype=torch.float32).to(torch.bfloat16)


def main() -> None:
    directory, phase, pages, max_size = sys.argv[1:]
    storage = HiCacheFile(
        HiCacheStorageConfig(
            tp_rank=0,
            tp_size=1,
            pp_rank=0,
            pp_size=1,
            attn_cp_rank=0,
            attn_cp_size=1,
            is_mla_model=False,
            enable_storage_metrics=False,
            is_page_first_layout=True,
            model_name="tiny/random",
            extra_config={
                "file_storage_path": directory,
                "max_size": max_size,
                "min_free_space": "1Mi",
            },
        )
    )
    keys = [hashlib.sha256(b"page %d" % number).hexdigest() for number in range(int(pages))]
    result: dict[str, object] = {}
    if phase == "store":
        result["stored"] = sum(
            bool(storage.set(key, page(number))) for number, key in enumerate(keys)
        )
        # A second time: they are there.
        result["again"] = sum(
            bool(storage.set(key, page(number))) for number, key in enumerate(keys)
        )
    else:
        found = int(storage.batch_exists_v2(keys).kv_hit_pages)
        each = [bool(storage.exists(key)) for key in keys]
        right = 0
        for number, key in enumerate(keys):
            target = torch.empty(PAGE_BYTES // 2, dtype=torch.bfloat16)
            got = storage.get(key, target)
            right += got is not None and bool(torch.equal(got.view(-1), page(number)))
        result |= {"prefix": found, "exists": sum(each), "right": right}
    result["files"] = len(os.listdir(directory))
    print("BELUGAFS_RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

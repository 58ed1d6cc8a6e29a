"""torch.save, torch.load and safetensors, by reads and by mmap.

usage: tensors_side.py DIR store|load
"""

from __future__ import annotations

import json
import os
import sys

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file


def cache() -> dict[str, torch.Tensor]:
    """Keys and values of four layers, as a prompt cache has them."""
    generator = torch.Generator().manual_seed(7)
    return {
        f"{kind}.{layer}": torch.randn(1, 4, 611, 64, generator=generator).to(torch.bfloat16)
        for layer in range(4)
        for kind in ("key", "value")
    }


def main() -> None:
    directory, phase = sys.argv[1:]
    plain = os.path.join(directory, "cache.pt")
    safe = os.path.join(directory, "cache.safetensors")
    wanted = cache()
    if phase == "store":
        torch.save(wanted, plain)
        save_file(wanted, safe, metadata={"model": "tiny"})
        # In place over what is there, and by rename over what is there.
        torch.save(wanted, plain)
        save_file(wanted, safe, metadata={"model": "tiny"})
        result: dict[str, object] = {"sizes": [os.path.getsize(plain), os.path.getsize(safe)]}
    else:
        with safe_open(safe, framework="pt") as file:
            lazily = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            part = file.get_slice("key.3")[:, 1:2, 100:200]
            model = file.metadata()["model"]
        ways = {
            "torch.load": torch.load(plain),
            "torch.load by mmap": torch.load(plain, mmap=True),
            "load_file": load_file(safe),
            "safe_open": lazily,
        }
        result = {
            "right": {
                way: sorted(got) == sorted(wanted)
                and all(torch.equal(got[key], wanted[key]) for key in wanted)
                for way, got in ways.items()
            },
            "slice": bool(torch.equal(part, wanted["key.3"][:, 1:2, 100:200])),
            "model": model,
        }
    print("BELUGAFS_RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

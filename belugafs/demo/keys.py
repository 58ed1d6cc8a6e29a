"""Names of KV blocks: what the model is, and the chain of hashes over token blocks.

A block's key stands for *all* tokens up to its end, not for its own tokens alone, since its
keys and values depend on everything before it. So the keys form a chain, and the longest
present prefix is found by asking for one key after the other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

# Bump when the bytes of a block change their meaning.
BLOCK_LAYOUT = "layer,kv,token,head,dim/1"


@dataclass(frozen=True)
class Identity:
    """Everything that two processes must agree on to use each other's blocks.

    ``name`` is for people; ``digest`` (32 bytes) covers the name and all facts. Two identities
    with one different fact share no key and no directory.
    """

    name: str
    digest: bytes

    @classmethod
    def of(cls, name: str, facts: Mapping[str, object]) -> Identity:
        """Make an identity from JSON-able ``facts`` (model shape, weights, dtype, block size)."""
        canonical = json.dumps(
            {"name": name, "layout": BLOCK_LAYOUT, "facts": facts},
            sort_keys=True,
            separators=(",", ":"),
        )
        return cls(name, hashlib.sha256(canonical.encode()).digest())

    @property
    def directory(self) -> str:
        """The directory name, ``<name>-<12 hex digits>``."""
        return f"{self.name}-{self.digest.hex()[:12]}"


def block_keys(identity: Identity, tokens: Sequence[int], block_tokens: int) -> list[bytes]:
    """The keys, 32 bytes each, of all whole blocks of ``tokens``, first block first.

    ``key[i] = SHA-256(identity || key[i-1] || tokens of block i as little-endian u32)``, where
    ``key[-1]`` is empty: every part has a fixed length, so no two inputs run together. A last
    block that isn't full has no key.
    """
    if block_tokens <= 0:
        raise ValueError(f"block_tokens must be positive, not {block_tokens}")
    keys: list[bytes] = []
    parent = b""
    for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
        block = np.asarray(tokens[start : start + block_tokens], dtype="<u4")
        parent = hashlib.sha256(identity.digest + parent + block.tobytes()).digest()
        keys.append(parent)
    return keys

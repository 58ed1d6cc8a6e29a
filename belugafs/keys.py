"""Keys of KV blocks: a chain of hashes over the tokens of a prompt.

A block's key is the hash of its parent's key, its own tokens and what else decides its content
(a LoRA adapter, an image, a cache salt). So two prompts share the keys of their common prefix,
in whole blocks, and a key says everything about what the block holds.

The algorithms are those of vLLM's `--prefix-caching-hash-algo`, and give the same keys, if the
seed is the same: vLLM takes PYTHONHASHSEED, and where that isn't set "vllm-none-hash" for the two
of SHA-256 and random bytes for the two of xxh3 (vLLM 0.32).
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import cbor2
import xxhash

VLLM_SEED = "vllm-none-hash"
"""What vLLM derives the parent of first blocks from, where PYTHONHASHSEED isn't set."""

Extra = tuple[Any, ...]


def _pickled(value: Any) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def _cbor(value: Any) -> bytes:
    return cbor2.dumps(value, canonical=True)


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _xxh3_128(data: bytes) -> bytes:
    return xxhash.xxh3_128_digest(data)


ALGORITHMS: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], bytes]]] = {
    "sha256": (_pickled, _sha256),
    "sha256_cbor": (_cbor, _sha256),
    "xxhash": (_pickled, _xxh3_128),
    "xxhash_cbor": (_cbor, _xxh3_128),
}
"""Name to encoder and hash. The `_cbor` ones don't depend on Python: another language gets the
same bytes by canonical CBOR (RFC 8949, section 4.2.1)."""


class Chain:
    """The keys of one prompt, as it grows.

    Args:
        block_tokens: tokens of a block, at least 1.
        algorithm: a name of `ALGORITHMS`; by default "sha256_cbor", with `trusted` "xxhash_cbor".
        trusted: nobody who can choose prompts wants to harm others: the faster hash, which isn't
            collision resistant (whoever finds two prompts with one key reads another's blocks).
        seed: from which the parent of first blocks is derived; programs that are to share blocks
            take the same one.
        parent: go on behind this key of an earlier chain, in place of the seed.

    Raises:
        ValueError: an unknown algorithm, or a block without tokens.
    """

    def __init__(
        self,
        block_tokens: int,
        *,
        algorithm: str | None = None,
        trusted: bool = False,
        seed: str = VLLM_SEED,
        parent: bytes | None = None,
    ) -> None:
        name = algorithm or ("xxhash_cbor" if trusted else "sha256_cbor")
        if name not in ALGORITHMS:
            raise ValueError(f"no algorithm {name!r}: there are {', '.join(ALGORITHMS)}")
        if block_tokens < 1:
            raise ValueError(f"block_tokens is {block_tokens}: a block has at least 1 token")
        self.algorithm = name
        self.block_tokens = block_tokens
        self._encode, self._hash = ALGORITHMS[name]
        self._parent = self._hash(self._encode(seed)) if parent is None else bytes(parent)
        self._rest: list[int] = []
        self.keys: list[bytes] = []
        """One for each whole block so far, in order."""

    def extend(
        self, tokens: Iterable[int], extra: Sequence[Extra | None] | Extra | None = None
    ) -> list[bytes]:
        """Add tokens; a block that isn't full waits for more.

        Args:
            tokens: token ids. Anything with integers, numpy and torch included.
            extra: what else decides the content of the blocks that these tokens fill: one tuple
                for all of them, or a list with one (or None) for each. vLLM's extra keys.

        Returns:
            The keys of the blocks that have become full.

        Raises:
            ValueError: `extra` is a list of another length than there are new blocks.
            TypeError: a token isn't an integer.
        """
        more = tokens.tolist() if hasattr(tokens, "tolist") else tokens
        rest = [*self._rest, *more]
        for token in rest[len(self._rest) :]:
            if type(token) is not int:
                raise TypeError(f"a token is {token!r}: token ids are integers")
        size = self.block_tokens
        count = len(rest) // size
        if isinstance(extra, tuple) or extra is None:
            extras: Sequence[Extra | None] = [extra] * count
        elif len(extra) == count:
            extras = extra
        else:
            raise ValueError(f"extra has {len(extra)} entries for {count} new blocks")
        parent, keys = self._parent, []
        for i in range(count):
            block = (parent, tuple(rest[i * size : (i + 1) * size]), extras[i])
            parent = self._hash(self._encode(block))
            keys.append(parent)
        self._parent = parent
        self._rest = rest[count * size :]
        self.keys += keys
        return keys


def chained(
    tokens: Iterable[int],
    block_tokens: int,
    *,
    algorithm: str | None = None,
    trusted: bool = False,
    seed: str = VLLM_SEED,
    parent: bytes | None = None,
    extra: Sequence[Extra | None] | Extra | None = None,
) -> list[bytes]:
    """Keys of the whole blocks of a prompt; what is left over at its end has none.

    Arguments and errors as for `Chain` and `Chain.extend`.
    """
    chain = Chain(block_tokens, algorithm=algorithm, trusted=trusted, seed=seed, parent=parent)
    return chain.extend(tokens, extra)

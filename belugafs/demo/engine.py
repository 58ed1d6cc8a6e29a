"""One engine process: look up the prompt's blocks, compute what is missing, generate, store.

``python -m belugafs.demo.engine --kv-dir DIR`` prints one JSON object (``EngineResult``) on
standard output. Started once it fills the directory; started again it finds what is there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from belugafs.demo.keys import Identity, block_keys
from belugafs.demo.model import Model, ModelConfig
from belugafs.demo.paged import PagedCache, PageGeometry
from belugafs.demo.store import BlockStore, ReadMode
from belugafs.demo.text import prompt_bytes


@dataclass(frozen=True)
class EngineResult:
    """What one process did. Times in seconds, sizes in tokens, blocks and bytes."""

    identity: str
    prompt_tokens: int
    hit_tokens: int
    block_tokens: int
    block_bytes: int
    blocks_loaded: int
    blocks_stored: int
    blocks_failed: int
    tokens: list[int]
    ttft_s: float
    lookup_load_s: float
    prefill_s: float
    decode_s: float
    store_s: float
    last_error: str | None = None


def generate(
    model: Model,
    tokens: list[int],
    new_tokens: int,
    root: Path,
    *,
    block_tokens: int = 64,
    read: ReadMode = "mmap",
    dtype: str = "float16",
) -> EngineResult:
    """Generate ``new_tokens`` (>= 1) greedily after ``tokens``, sharing blocks below ``root``.

    The prompt is computed one block at a time, at the same boundaries in every process, so a
    process that skips blocks does the rest with exactly the same matrix shapes: the tokens are
    equal because the arithmetic is, not because rounding was kind.
    """
    if not tokens or new_tokens < 1:
        raise ValueError("needs at least one prompt token and one new token")
    config = model.config
    geometry = PageGeometry.of(config, block_tokens, dtype)
    identity = Identity.of(
        config.name, {**model.facts(), "block_tokens": block_tokens, "dtype": dtype}
    )
    store = BlockStore(root, identity, geometry, read)
    cache = PagedCache(geometry)

    started = time.perf_counter()
    keys = block_keys(identity, tokens, block_tokens)
    # The last token is always computed: the cache holds keys and values, but no logits.
    usable = (len(tokens) - 1) // block_tokens
    cache.adopt(store.load_prefix(keys[:usable]))
    hit_tokens = cache.length
    loaded = time.perf_counter()

    logits = np.zeros(config.vocab_size, np.float32)
    for start in range(hit_tokens, len(tokens), block_tokens):
        logits = model.forward(np.asarray(tokens[start : start + block_tokens]), cache)
    output = [int(logits.argmax())]
    first = time.perf_counter()

    while len(output) < new_tokens:
        logits = model.forward(np.asarray(output[-1:]), cache)
        output.append(int(logits.argmax()))
    decoded = time.perf_counter()

    # Generated blocks are stored too: the next turn of a conversation begins with them. The
    # last token's keys and values were never computed, so the cache is what counts here.
    known = (tokens + output)[: cache.length]
    for index, key in enumerate(block_keys(identity, known, block_tokens)):
        if index >= hit_tokens // block_tokens:
            store.save(key, cache.pages[index])
    stored = time.perf_counter()

    return EngineResult(
        identity=identity.directory,
        prompt_tokens=len(tokens),
        hit_tokens=hit_tokens,
        block_tokens=block_tokens,
        block_bytes=geometry.nbytes,
        blocks_loaded=store.counts.loaded,
        blocks_stored=store.counts.stored,
        blocks_failed=store.counts.failed_loads + store.counts.failed_stores,
        tokens=output,
        ttft_s=first - started,
        lookup_load_s=loaded - started,
        prefill_s=first - loaded,
        decode_s=decoded - first,
        store_s=stored - decoded,
        last_error=store.last_error,
    )


def main(argv: list[str] | None = None) -> int:
    """Run one engine process; exit code 0 when it produced tokens."""
    parser = argparse.ArgumentParser(prog="belugafs.demo.engine", description=__doc__)
    parser.add_argument("--kv-dir", type=Path, required=True)
    parser.add_argument("--prompt-tokens", type=int, default=2100)
    parser.add_argument("--new-tokens", type=int, default=24)
    parser.add_argument("--block-tokens", type=int, default=64)
    parser.add_argument("--read", choices=["mmap", "readinto"], default="mmap")
    args = parser.parse_args(argv)
    model = Model(ModelConfig())
    # The first product starts BLAS's threads, which is no part of the time to a token.
    model.forward(np.zeros(8, np.int64), PagedCache(PageGeometry.of(model.config, 8)))
    result = generate(
        model,
        list(prompt_bytes(args.prompt_tokens)),
        args.new_tokens,
        args.kv_dir,
        block_tokens=args.block_tokens,
        read=args.read,
    )
    print(json.dumps(asdict(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

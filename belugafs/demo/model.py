"""A small decoder-only transformer in numpy: RMSNorm, RoPE, grouped-query attention, SwiGLU.

The architecture is that of the Llama family, with tied embeddings; the weights are random but
fixed by a seed, so every process has the same model without a download. Greedy output of such
a model is no language, but it depends on every token before it, which is what the demo needs:
a wrong block in the cache changes the tokens.

Shapes below: T tokens of this step, N tokens of the whole context, H heads, G kv heads, D
dimensions of a head.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ModelConfig:
    """Shape and seed of a model. Sizes are numbers of elements."""

    name: str = "beluga-demo"
    vocab_size: int = 256  # one token is one byte
    hidden: int = 512
    layers: int = 8
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 64
    ffn: int = 1408
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    seed: int = 20172

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads can't share {self.kv_heads} kv heads evenly")
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for RoPE, not {self.head_dim}")


@dataclass(frozen=True)
class LayerWeights:
    """One layer. Matrices are (inputs, outputs): ``x @ w``."""

    attention_norm: Array
    query: Array
    key: Array
    value: Array
    output: Array
    ffn_norm: Array
    gate: Array
    up: Array
    down: Array


class KvCache(Protocol):
    """What the model needs of a cache; ``belugafs.demo.paged.PagedCache`` is one."""

    length: int

    def put(self, layer: int, keys: Array, values: Array) -> None: ...

    def advance(self, tokens: int) -> None: ...

    def gather(self, layer: int, tokens: int) -> tuple[Array, Array]: ...


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Scale the last axis to a root mean square of 1, then by ``weight``."""
    scale = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps))
    scaled: Array = x / scale * weight
    return scaled


def rotate(x: Array, positions: npt.NDArray[np.int64], theta: float) -> Array:
    """Apply rotary position embedding to x, (T, heads, D); halves are paired, as in Llama."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-np.arange(half, dtype=np.float64) / half)
    angles = positions[:, None] * frequencies
    cos = np.cos(angles).astype(np.float32)[:, None, :]
    sin = np.sin(angles).astype(np.float32)[:, None, :]
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attend(q: Array, keys: Array, values: Array, start: int) -> Array:
    """Causal attention of T queries at positions ``start``.. over N = start + T keys.

    q is (T, H, D), keys and values are (N, G, D); the result is (T, H * D).
    """
    tokens, heads, dim = q.shape
    groups = keys.shape[1]
    # The H/G query heads that share a kv head become one tall matrix per kv head.
    grouped = q.reshape(tokens, groups, heads // groups, dim).transpose(1, 2, 0, 3)
    scores: Array = (
        grouped.reshape(groups, -1, dim) @ keys.transpose(1, 2, 0) * np.float32(dim**-0.5)
    )
    scores = scores.reshape(groups, heads // groups, tokens, -1)
    if tokens > 1:
        future = np.arange(keys.shape[0])[None, :] > (start + np.arange(tokens))[:, None]
        scores[:, :, future] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    mixed: Array = scores.reshape(groups, -1, scores.shape[-1]) @ values.transpose(1, 0, 2)
    mixed = mixed.reshape(groups, heads // groups, tokens, dim)
    return np.ascontiguousarray(mixed.transpose(2, 0, 1, 3)).reshape(tokens, heads * dim)


class Model:
    """Weights and the forward step. Has no state that a step changes."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        rng = np.random.default_rng(config.seed)

        def matrix(rows: int, columns: int) -> Array:
            weights = rng.standard_normal((rows, columns), dtype=np.float32)
            return weights * np.float32(rows**-0.5)

        # Small beside what the layers add, or tied embeddings would let a random model repeat
        # its last token for ever.
        shape = (config.vocab_size, config.hidden)
        self.embedding: Array = rng.standard_normal(shape, dtype=np.float32) * np.float32(0.05)
        ones = np.ones(config.hidden, np.float32)
        q_width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.layers = [
            LayerWeights(
                attention_norm=ones,
                # Sharper than 1, so that attention picks tokens instead of averaging them all.
                query=matrix(config.hidden, q_width) * np.float32(4.0),
                key=matrix(config.hidden, kv_width),
                value=matrix(config.hidden, kv_width) * np.float32(2.0),
                output=matrix(q_width, config.hidden),
                ffn_norm=ones,
                gate=matrix(config.hidden, config.ffn),
                up=matrix(config.hidden, config.ffn),
                down=matrix(config.ffn, config.hidden),
            )
            for _ in range(config.layers)
        ]
        self.final_norm = ones

    def facts(self) -> dict[str, object]:
        """What decides the values in a cache, for the model's identity.

        The weights are hashed as they are: a seed alone would call two models the same when a
        scale here, or the generator in another numpy, has changed.
        """
        digest = hashlib.sha256(self.embedding.data)
        for layer in self.layers:
            for weights in vars(layer).values():
                digest.update(weights.data)
        digest.update(self.final_norm.data)
        return {**asdict(self.config), "weights": digest.hexdigest()}

    def forward(self, tokens: npt.NDArray[np.int64], cache: KvCache) -> Array:
        """Run T tokens that follow what the cache holds; returns the last one's logits (vocab).

        The step reads its own keys and values back from the cache, so a cache of a narrower
        dtype gives the same result whether a token was computed now or loaded.
        """
        config, start = self.config, cache.length
        positions = np.arange(start, start + len(tokens))
        x: Array = self.embedding[tokens]
        for index, layer in enumerate(self.layers):
            h = rms_norm(x, layer.attention_norm, config.norm_eps)
            q = (h @ layer.query).reshape(-1, config.heads, config.head_dim)
            k = (h @ layer.key).reshape(-1, config.kv_heads, config.head_dim)
            v = (h @ layer.value).reshape(-1, config.kv_heads, config.head_dim)
            q = rotate(q, positions, config.rope_theta)
            cache.put(index, rotate(k, positions, config.rope_theta), v)
            keys, values = cache.gather(index, start + len(tokens))
            x = x + attend(q, keys, values, start) @ layer.output
            h = rms_norm(x, layer.ffn_norm, config.norm_eps)
            gate = h @ layer.gate
            x = x + (gate / (1 + np.exp(-gate)) * (h @ layer.up)) @ layer.down
        cache.advance(len(tokens))
        last = rms_norm(x[-1], self.final_norm, config.norm_eps)
        logits: Array = last @ self.embedding.T
        return logits

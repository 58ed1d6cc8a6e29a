"""The demo's transformer: right by itself, and unchanged by where its cache comes from."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belugafs.demo.model import Model, ModelConfig, rotate
from belugafs.demo.paged import PagedCache, PageGeometry

CONFIG = ModelConfig(
    name="tiny", vocab_size=61, hidden=48, layers=3, heads=6, kv_heads=2, head_dim=8, ffn=80
)
MODEL = Model(CONFIG)
TOKENS = np.random.default_rng(1).integers(0, CONFIG.vocab_size, 37)


def new_cache(block_tokens: int = 8, dtype: str = "float32") -> PagedCache:
    return PagedCache(PageGeometry.of(CONFIG, block_tokens, dtype))


def norm(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    result: npt.NDArray[np.float64] = x / np.sqrt((x * x).mean() + CONFIG.norm_eps)
    return result


def plain_logits(tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Logits of every position, (T, vocab), token by token and head by head in float64.

    Written from the formulas, without a cache and without the module's helpers.
    """

    def turn(vector: npt.NDArray[np.float64], position: int) -> npt.NDArray[np.float64]:
        half = CONFIG.head_dim // 2
        out = np.empty_like(vector)
        for i in range(half):
            angle = position * CONFIG.rope_theta ** (-2 * i / CONFIG.head_dim)
            a, b = vector[i], vector[half + i]
            out[i] = a * np.cos(angle) - b * np.sin(angle)
            out[half + i] = a * np.sin(angle) + b * np.cos(angle)
        return out

    dim, share = CONFIG.head_dim, CONFIG.heads // CONFIG.kv_heads
    states = [MODEL.embedding[t].astype(np.float64) for t in tokens]
    for layer in MODEL.layers:
        normed = [norm(x) * layer.attention_norm for x in states]
        keys = [(h @ layer.key).reshape(-1, dim) for h in normed]
        keys = [np.stack([turn(v, p) for v in head]) for p, head in enumerate(keys)]
        values = [(h @ layer.value).reshape(-1, dim) for h in normed]
        for position, h in enumerate(normed):
            queries = (h @ layer.query).reshape(-1, dim)
            mixed = []
            for head, query in enumerate(queries):
                turned = turn(query, position)
                scores = np.array(
                    [turned @ keys[p][head // share] for p in range(position + 1)]
                ) / np.sqrt(dim)
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                mixed.append(sum(w * values[p][head // share] for p, w in enumerate(weights)))
            states[position] = states[position] + np.concatenate(mixed) @ layer.output
        for position, x in enumerate(states):
            h = norm(x) * layer.ffn_norm
            gate = h @ layer.gate
            states[position] = x + (gate / (1 + np.exp(-gate)) * (h @ layer.up)) @ layer.down
    return np.stack([norm(x) * MODEL.final_norm @ MODEL.embedding.T for x in states])


@pytest.fixture(scope="module")
def expected() -> npt.NDArray[np.float64]:
    return plain_logits(TOKENS)


def test_one_forward_of_all_tokens_agrees_with_the_formulas(
    expected: npt.NDArray[np.float64],
) -> None:
    logits = MODEL.forward(TOKENS, new_cache())
    np.testing.assert_allclose(logits, expected[-1], rtol=1e-3, atol=1e-4)


def test_token_by_token_agrees_at_every_position(expected: npt.NDArray[np.float64]) -> None:
    cache = new_cache()
    for position, token in enumerate(TOKENS):
        logits = MODEL.forward(np.array([token]), cache)
        np.testing.assert_allclose(logits, expected[position], rtol=1e-3, atol=1e-4)
    assert cache.length == len(TOKENS)


@settings(deadline=None, max_examples=40)
@given(steps=st.lists(st.integers(1, 12), max_size=6), block_tokens=st.sampled_from([1, 3, 8, 64]))
def test_any_split_into_steps_and_any_page_size_give_the_same_logits(
    steps: list[int], block_tokens: int
) -> None:
    whole = MODEL.forward(TOKENS, new_cache())
    cache, start = new_cache(block_tokens), 0
    for step in steps:
        if start + step < len(TOKENS):
            MODEL.forward(TOKENS[start : start + step], cache)
            start += step
    np.testing.assert_allclose(MODEL.forward(TOKENS[start:], cache), whole, rtol=1e-3, atol=1e-4)


def test_half_precision_cache_stays_close(expected: npt.NDArray[np.float64]) -> None:
    logits = MODEL.forward(TOKENS, new_cache(dtype="float16"))
    assert np.abs(logits - expected[-1]).max() < 0.02 * np.abs(expected[-1]).max()


def test_every_earlier_token_matters() -> None:
    base = MODEL.forward(TOKENS, new_cache())
    for position in (0, 5, 20, len(TOKENS) - 1):
        changed = TOKENS.copy()
        changed[position] = (changed[position] + 1) % CONFIG.vocab_size
        assert np.abs(MODEL.forward(changed, new_cache()) - base).max() > 1e-3


def test_rotation_keeps_lengths_and_depends_on_distance_only() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((2, 1, 1, 8)).astype(np.float32)
    near = rotate(a, np.array([3]), 1e4).ravel() @ rotate(b, np.array([7]), 1e4).ravel()
    far = rotate(a, np.array([103]), 1e4).ravel() @ rotate(b, np.array([107]), 1e4).ravel()
    assert near == pytest.approx(far, rel=1e-4)
    np.testing.assert_allclose(
        np.linalg.norm(rotate(a, np.array([9]), 1e4)), np.linalg.norm(a), rtol=1e-6
    )


def test_same_seed_same_weights_and_other_seed_others() -> None:
    assert Model(CONFIG).facts() == MODEL.facts()
    other = Model(dataclasses.replace(CONFIG, seed=CONFIG.seed + 1))
    assert other.facts()["weights"] != MODEL.facts()["weights"]


def test_impossible_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="kv heads"):
        dataclasses.replace(CONFIG, heads=5)
    with pytest.raises(ValueError, match="even"):
        dataclasses.replace(CONFIG, head_dim=7)


def test_loaded_pages_are_never_written() -> None:
    cache = new_cache(block_tokens=8)
    MODEL.forward(TOKENS[:8], cache)
    pages = [p.copy() for p in cache.pages]
    for page in pages:
        page.flags.writeable = False
    loaded = new_cache(block_tokens=8)
    loaded.adopt(pages)
    assert loaded.length == 8
    MODEL.forward(TOKENS[8:], loaded)  # would raise on a write into a loaded page
    with pytest.raises(ValueError, match="empty"):
        loaded.adopt(pages)

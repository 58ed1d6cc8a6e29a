"""Keys, files and reuse of prefixes, on an ordinary directory."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from belugafs.demo.engine import EngineResult, generate
from belugafs.demo.keys import Identity, block_keys
from belugafs.demo.model import Model, ModelConfig
from belugafs.demo.paged import Page, PageGeometry
from belugafs.demo.store import BlockStore, ReadMode
from belugafs.demo.text import prompt_bytes

CONFIG = ModelConfig(
    name="tiny", vocab_size=256, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, ffn=96
)
MODEL = Model(CONFIG)
IDENTITY = Identity.of("tiny", {"dtype": "float16"})
GEOMETRY = PageGeometry.of(CONFIG, 16)
PROMPT = list(prompt_bytes(150))


def run(root: Path, prompt: list[int] = PROMPT, read: ReadMode = "mmap") -> EngineResult:
    return generate(MODEL, prompt, 12, root, block_tokens=16, read=read)


def page_of(seed: int) -> Page:
    return np.random.default_rng(seed).random(GEOMETRY.shape).astype(GEOMETRY.dtype)


# --- keys ---------------------------------------------------------------------------------


def test_a_key_stands_for_the_whole_prefix() -> None:
    keys = block_keys(IDENTITY, list(range(64)), 16)
    assert [len(k) for k in keys] == [32] * 4
    assert len(set(keys)) == 4
    longer = block_keys(IDENTITY, list(range(70)), 16)
    assert longer == keys  # six tokens more are no block
    first_changed = block_keys(IDENTITY, [99, *range(1, 64)], 16)
    assert not set(first_changed) & set(keys)
    third_changed = block_keys(IDENTITY, [*range(32), 99, *range(33, 64)], 16)
    assert third_changed[:2] == keys[:2]
    assert not set(third_changed[2:]) & set(keys)


def test_repeated_blocks_have_different_keys() -> None:
    assert len(set(block_keys(IDENTITY, [7] * 64, 16))) == 4


def test_any_fact_of_the_model_changes_directory_and_keys() -> None:
    facts = {**MODEL.facts(), "block_tokens": 16, "dtype": "float16"}
    base = Identity.of("tiny", facts)
    for name in facts:
        other = Identity.of("tiny", {**facts, name: "something else"})
        assert other.directory != base.directory, name
        assert block_keys(other, PROMPT, 16)[0] != block_keys(base, PROMPT, 16)[0], name
    assert Identity.of("tiny", dict(reversed(facts.items()))) == base


def test_a_block_size_must_be_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        block_keys(IDENTITY, [1, 2], 0)


# --- files --------------------------------------------------------------------------------


@pytest.mark.parametrize("read", ["mmap", "readinto"])
def test_a_page_comes_back_as_it_was(tmp_path: Path, read: ReadMode) -> None:
    store = BlockStore(tmp_path, IDENTITY, GEOMETRY, read)
    key = bytes(range(32))
    assert store.save(key, page_of(1))
    path = store.path(key)
    assert path == tmp_path / IDENTITY.directory / "00" / "01" / f"{key.hex()}.kv"
    assert path.stat().st_size == GEOMETRY.nbytes
    (page,) = store.load_prefix([key])
    np.testing.assert_array_equal(page, page_of(1))
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # no temporary file


def test_a_mapped_page_outlives_its_file(tmp_path: Path) -> None:
    store = BlockStore(tmp_path, IDENTITY, GEOMETRY, "mmap")
    store.save(b"k" * 32, page_of(1))
    (page,) = store.load_prefix([b"k" * 32])
    store.path(b"k" * 32).unlink()
    np.testing.assert_array_equal(page, page_of(1))
    with pytest.raises(ValueError, match="read-only"):
        page[0] = 0


def test_a_stored_block_is_not_written_again(tmp_path: Path) -> None:
    store = BlockStore(tmp_path, IDENTITY, GEOMETRY)
    assert store.save(b"k" * 32, page_of(1))
    inode = store.path(b"k" * 32).stat().st_ino
    assert store.save(b"k" * 32, page_of(2))
    assert store.path(b"k" * 32).stat().st_ino == inode
    assert (store.counts.stored, store.counts.present) == (1, 1)


@pytest.mark.parametrize("size", [0, 1, GEOMETRY.nbytes - 1, GEOMETRY.nbytes + 1])
def test_a_block_of_a_wrong_size_ends_the_prefix(tmp_path: Path, size: int) -> None:
    store = BlockStore(tmp_path, IDENTITY, GEOMETRY)
    keys = [bytes([i]) * 32 for i in range(4)]
    for i, key in enumerate(keys):
        store.save(key, page_of(i))
    store.path(keys[2]).write_bytes(b"x" * size)
    assert len(store.load_prefix(keys)) == 2
    assert store.counts.failed_loads == 1


def test_a_gap_ends_the_prefix(tmp_path: Path) -> None:
    store = BlockStore(tmp_path, IDENTITY, GEOMETRY)
    keys = [bytes([i]) * 32 for i in range(4)]
    for i in (0, 1, 3):
        store.save(keys[i], page_of(i))
    assert store.match(keys) == 2


def test_a_store_that_cannot_write_goes_on(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_bytes(b"")
    store = BlockStore(blocker, IDENTITY, GEOMETRY)
    assert not store.save(b"k" * 32, page_of(1))
    assert store.counts.failed_stores == 1
    assert store.last_error is not None
    assert store.load_prefix([b"k" * 32]) == []


# --- reuse --------------------------------------------------------------------------------


@pytest.mark.parametrize("read", ["mmap", "readinto"])
def test_a_second_run_skips_the_prefix_and_says_the_same(tmp_path: Path, read: ReadMode) -> None:
    first, second = run(tmp_path, read=read), run(tmp_path, read=read)
    assert first.hit_tokens == 0
    # 150 prompt tokens and the 11 generated ones that were fed back: ten whole blocks.
    assert first.blocks_stored == 10
    assert second.hit_tokens == 144
    assert second.blocks_stored == 0
    assert second.tokens == first.tokens
    assert len(set(first.tokens)) > 1


@pytest.mark.parametrize("kept", range(0, 10, 3))
def test_a_partly_evicted_prefix_gives_the_same_tokens(tmp_path: Path, kept: int) -> None:
    first = run(tmp_path)
    store = BlockStore(tmp_path, _identity(), GEOMETRY)
    for key in block_keys(_identity(), PROMPT, 16)[kept:]:
        store.path(key).unlink()
    second = run(tmp_path)
    assert second.hit_tokens == min(kept, 9) * 16
    assert second.tokens == first.tokens


def test_a_prompt_with_the_same_beginning_hits_only_that(tmp_path: Path) -> None:
    run(tmp_path)
    other = PROMPT[:100] + [120] * 50
    shared = run(tmp_path, other)
    assert shared.hit_tokens == 96
    assert shared.tokens == generate(MODEL, other, 12, tmp_path / "empty", block_tokens=16).tokens


def test_generated_tokens_are_found_by_the_next_turn(tmp_path: Path) -> None:
    first = run(tmp_path)
    turn = run(tmp_path, PROMPT + first.tokens + [33] * 4)
    assert turn.hit_tokens == 160


def test_another_model_finds_nothing(tmp_path: Path) -> None:
    run(tmp_path)
    other = Model(dataclasses.replace(CONFIG, seed=1))
    assert generate(other, PROMPT, 1, tmp_path, block_tokens=16).hit_tokens == 0
    assert generate(MODEL, PROMPT, 1, tmp_path, block_tokens=32).hit_tokens == 0
    assert generate(MODEL, PROMPT, 1, tmp_path, block_tokens=16, dtype="float32").hit_tokens == 0


def test_wrong_bytes_in_a_block_change_the_tokens(tmp_path: Path) -> None:
    """The comparison of tokens can fail: it would notice a cache that returns other bytes."""
    first = run(tmp_path)
    store = BlockStore(tmp_path, _identity(), GEOMETRY)
    for key in block_keys(_identity(), PROMPT, 16):
        path = store.path(key)
        path.write_bytes(np.roll(np.fromfile(path, np.uint8), 64).tobytes())
    damaged = run(tmp_path)
    assert damaged.hit_tokens == 144
    assert damaged.tokens != first.tokens


def test_a_prompt_of_one_token_and_an_empty_one(tmp_path: Path) -> None:
    assert len(generate(MODEL, [5], 3, tmp_path, block_tokens=16).tokens) == 3
    with pytest.raises(ValueError, match="at least one"):
        generate(MODEL, [], 3, tmp_path)


def _identity() -> Identity:
    return Identity.of("tiny", {**MODEL.facts(), "block_tokens": 16, "dtype": "float16"})

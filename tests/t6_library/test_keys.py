"""Block keys: a chain, the same in every language, and the same however the tokens come."""

from __future__ import annotations

import hashlib
import pickle
import struct

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from belugafs.keys import ALGORITHMS, VLLM_SEED, Chain, chained

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def head(major: int, value: int) -> bytes:
    """The head of a CBOR item in its shortest form: RFC 8949, sections 3 and 4.2.1."""
    for limit, code, width in ((24, None, ""), (1 << 8, 24, ">B"), (1 << 16, 25, ">H")):
        if value < limit:
            if code is None:
                return bytes([major << 5 | value])
            return bytes([major << 5 | code]) + struct.pack(width, value)
    if value < 1 << 32:
        return bytes([major << 5 | 26]) + struct.pack(">I", value)
    return bytes([major << 5 | 27]) + struct.pack(">Q", value)


def block_cbor(parent: bytes, tokens: list[int]) -> bytes:
    items = b"".join(head(0, token) for token in tokens)
    return head(4, 3) + head(2, len(parent)) + parent + head(4, len(tokens)) + items + b"\xf6"


@given(TOKENS, st.integers(1, 9))
def test_cbor_chain_by_hand(tokens: list[int], size: int) -> None:
    for trusted, digest in (
        (False, lambda data: hashlib.sha256(data).digest()),
        (True, xxhash.xxh3_128_digest),
    ):
        parent = digest(head(3, len(VLLM_SEED)) + VLLM_SEED.encode())
        expected = []
        for at in range(0, len(tokens) - size + 1, size):
            parent = digest(block_cbor(parent, tokens[at : at + size]))
            expected.append(parent)
        assert chained(tokens, size, trusted=trusted) == expected


@given(TOKENS, st.integers(1, 9), st.sampled_from(sorted(ALGORITHMS)), st.data())
def test_however_the_tokens_come(
    tokens: list[int], size: int, algorithm: str, data: st.DataObject
) -> None:
    whole = chained(tokens, size, algorithm=algorithm)
    assert len(whole) == len(tokens) // size == len(set(whole))
    chain = Chain(size, algorithm=algorithm)
    at = 0
    while at < len(tokens):
        step = data.draw(st.integers(1, len(tokens)), label="step")
        chain.extend(tokens[at : at + step])
        at += step
    assert chain.keys == whole
    assert chained(np.array(tokens, dtype=np.int64), size, algorithm=algorithm) == whole
    if whole:
        later = chained(tokens[size:], size, algorithm=algorithm, parent=whole[0])
        assert later == whole[1:]


def test_what_changes_a_key() -> None:
    tokens = list(range(64))
    keys = chained(tokens, 16)
    other = tokens.copy()
    other[17] = 1000
    changed = chained(other, 16)
    assert changed[0] == keys[0]
    assert not set(changed[1:]) & set(keys)
    assert not set(chained(tokens, 16, seed="another")) & set(keys)
    assert not set(chained(tokens, 16, extra=("adapter", 1))) & set(keys)
    late = chained(tokens, 16, extra=[None, None, ("image", 7), None])
    assert late[:2] == keys[:2]
    assert not set(late[2:]) & set(keys)


def test_pickled_as_vllm_does() -> None:
    """What the default algorithm of vLLM hashes: (parent, tokens, extra keys), pickled."""
    seed = hashlib.sha256(pickle.dumps(VLLM_SEED, protocol=5)).digest()
    block = pickle.dumps((seed, tuple(range(16)), ("salt",)), protocol=5)
    expected = hashlib.sha256(block).digest()
    assert chained(range(16), 16, algorithm="sha256", extra=("salt",)) == [expected]


def test_refusals() -> None:
    with pytest.raises(ValueError, match="there are sha256, sha256_cbor"):
        Chain(16, algorithm="md5")
    with pytest.raises(ValueError, match="at least 1 token"):
        Chain(0)
    with pytest.raises(ValueError, match="2 entries for 1 new blocks"):
        Chain(16).extend(range(16), [None, None])
    for wrong in (1.0, True, "1", None):
        with pytest.raises(TypeError, match="token ids are integers"):
            Chain(1).extend([wrong])  # type: ignore[list-item]
    chain = Chain(4)
    with pytest.raises(TypeError):
        chain.extend([1, 2, 3, "x"])  # type: ignore[list-item]
    assert chain.extend(range(4)) == chained(range(4), 4), "a refused call has changed nothing"

"""Block keys are the ones that vLLM computes, by each of its algorithms."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from belugafs.demo.mounting import DemoError
from belugafs.demo.vllm_flow import vllm_python
from belugafs.keys import ALGORITHMS, VLLM_SEED, chained

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]

TOKENS = [*range(40), 128255, 70000, 2**31, *range(300, 321)]
BLOCK_TOKENS = 16
EXTRA = ("adapter", 3)

SEEDS = [None, "7"]

VLLM_SIDE = """
import json, os, sys
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils
tokens, size, extra, cases = json.load(sys.stdin)
out = []
for name, seed in cases:
    os.environ.pop("PYTHONHASHSEED", None)
    if seed is not None:
        os.environ["PYTHONHASHSEED"] = seed
    function = get_hash_fn_by_name(name)
    try:
        kv_cache_utils.init_none_hash(function)
    except ModuleNotFoundError:  # of xxhash, which is optional there
        out.append(None)
        continue
    chains = []
    for keys in (None, tuple(extra)):
        parent, chain = None, []
        for at in range(0, len(tokens) - size + 1, size):
            block = tokens[at : at + size]
            parent = kv_cache_utils.hash_block_tokens(function, parent, block, keys)
            chain.append(parent.hex())
        chains.append(chain)
    out.append(chains)
json.dump(out, sys.stdout)
"""


def test_same_keys_as_vllm() -> None:
    try:
        python = vllm_python()
    except DemoError as error:
        if os.environ.get("BELUGAFS_REQUIRE_VLLM") == "1":
            raise
        pytest.skip(str(error))
    # without a shared seed vLLM draws one for the two that aren't collision resistant
    cases = [
        (name, seed)
        for name in sorted(ALGORITHMS)
        for seed in SEEDS
        if seed or name.startswith("sha256")
    ]
    run = subprocess.run(
        [str(python), "-c", VLLM_SIDE],
        input=json.dumps([TOKENS, BLOCK_TOKENS, EXTRA, cases]),
        env=os.environ | {"VLLM_LOGGING_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    theirs = json.loads(run.stdout.splitlines()[-1])
    for (name, seed), chains in zip(cases, theirs, strict=True):
        assert chains or name.startswith("xxhash"), name
        for extra, chain in zip((None, EXTRA), chains or (), strict=False):
            ours = chained(
                TOKENS, BLOCK_TOKENS, algorithm=name, seed=seed or VLLM_SEED, extra=extra
            )
            assert [key.hex() for key in ours] == chain, (name, seed)

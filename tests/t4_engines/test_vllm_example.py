"""vLLM's example connector keeps each layer of each prompt in a safetensors file on the mount.

Such files are sized by ftruncate, written, renamed while they are open for writing, and read by
mmap. As with the fs tier, a second process must find them and produce the same tokens.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from belugafs.demo.text import prompt_text
from belugafs.demo.vllm_flow import (
    BLOCK_TOKENS,
    example_config,
    run_offline,
)

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

PROMPT_TOKENS = 2400  # one byte is one token
HIT_TOKENS = (PROMPT_TOKENS - 1) // BLOCK_TOKENS * BLOCK_TOKENS
LAYERS = 4
KV_BYTES_PER_TOKEN = 8192


def test_a_second_process_reads_what_the_first_wrote(
    model: Path, kv_dir: Path, tmp_path: Path
) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(prompt_text(PROMPT_TOKENS))
    first = run_offline(model, prompt, 16, kv_dir, timeout_s=150, config=example_config)
    assert first["hit_tokens"] == 0
    big = [f for f in kv_dir.rglob("*.safetensors") if f.stat().st_size > 1 << 20]
    assert len(big) == LAYERS  # the requests before and after the prompt are small
    assert len({f.parent for f in big}) == 1
    for file in big:
        payload = HIT_TOKENS * KV_BYTES_PER_TOKEN // LAYERS
        assert payload <= file.stat().st_size < payload + 4096
        assert os.getxattr(file, "user.beluga.class") == b"block"
    assert not [f for f in kv_dir.rglob("*") if f.is_file() and f.suffix != ".safetensors"]

    second = run_offline(model, prompt, 16, kv_dir, timeout_s=150, config=example_config)
    assert second["hit_tokens"] == HIT_TOKENS >= 2304
    assert second["tokens"] == first["tokens"]
    assert len(second["tokens"]) == 16

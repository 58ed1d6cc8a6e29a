"""One fresh vLLM engine process: one prompt, greedy tokens, one JSON line.

usage: offline_run.py MODEL_DIR PROMPT_FILE NEW_TOKENS CONNECTOR_JSON

The last line printed is ``BELUGAFS_RESULT {...}`` with prompt_tokens, hit_tokens, tokens,
ttft_s and total_s.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig


def main() -> None:
    model, prompt_file, new_tokens, connector = sys.argv[1:]
    llm = LLM(
        model=model,
        dtype="float32",
        max_model_len=4096,
        enforce_eager=True,
        enable_prefix_caching=True,
        # The time to the first token is part of the statistics.
        disable_log_stats=False,
        kv_transfer_config=KVTransferConfig(**json.loads(connector)),
    )
    # The first request pays for lazy initialisation; this one shares no block with the prompt.
    llm.generate(["warm up"], SamplingParams(max_tokens=2), use_tqdm=False)
    started = time.perf_counter()
    output = llm.generate(
        [Path(prompt_file).read_text()],
        SamplingParams(max_tokens=int(new_tokens), temperature=0, ignore_eos=True),
        use_tqdm=False,
    )[0]
    total_s = time.perf_counter() - started
    ttft_s = output.metrics.first_token_latency if output.metrics else 0.0
    # Stores run beside the engine; their ends are collected in the steps of later requests.
    for _ in range(4):
        time.sleep(0.25)
        llm.generate(["flush"], SamplingParams(max_tokens=2), use_tqdm=False)
    result = {
        "prompt_tokens": len(output.prompt_token_ids or []),
        "hit_tokens": output.num_cached_tokens or 0,
        "tokens": list(output.outputs[0].token_ids),
        "ttft_s": ttft_s,
        "total_s": total_s,
    }
    llm.llm_engine.engine_core.shutdown()
    print("BELUGAFS_RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

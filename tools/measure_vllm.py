#!/usr/bin/env python3
"""Times vLLM's fs tier on warm prefixes: the same prompts, from tmpfs and from a mount, in turns.

usage: tools/measure_vllm.py DIR DIR... [--prompts N] [--tokens N] [--rounds N]

The first directory is what the others are compared with. Each gets the KV cache of the prompts
once; then fresh processes load it, a directory at a time, in turns, so that what the machine does
besides falls on all. A figure is the time to the first token of one prompt. Needs `make vllm-venv`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from belugafs.demo import vllm_flow
from belugafs.demo.text import prompt_text

SIDE = """
import json, sys, time
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
model, prompts, connector = sys.argv[1], json.load(open(sys.argv[2])), json.loads(sys.argv[3])
llm = LLM(model=model, dtype="float32", max_model_len=4096, enforce_eager=True,
          enable_prefix_caching=True, disable_log_stats=False,
          kv_transfer_config=KVTransferConfig(**connector))
one = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
llm.generate(["warm up"], one, use_tqdm=False)
out = []
for prompt in prompts:
    began = time.perf_counter()
    got = llm.generate([prompt], one, use_tqdm=False)[0]
    out.append({"s": time.perf_counter() - began, "hit": got.num_cached_tokens or 0,
                "of": len(got.prompt_token_ids or [])})
for _ in range(4):
    time.sleep(0.25)
    llm.generate(["flush"], one, use_tqdm=False)
llm.llm_engine.engine_core.shutdown()
print("RESULT", json.dumps(out), flush=True)
"""


def run(model: Path, prompts: Path, where: Path) -> list[dict[str, float]]:
    """One fresh process; raises SystemExit with the end of what it said when it fails."""
    engine_id = vllm_flow.new_engine_id()
    config = json.dumps(vllm_flow.connector_config(where, engine_id))
    command = [str(vllm_flow.vllm_python()), "-c", SIDE, str(model), str(prompts), config]
    environment = vllm_flow.vllm_environment(in_process=True)
    try:
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    finally:
        vllm_flow.remove_leftovers(engine_id)
    for line in ran.stdout.splitlines():
        if line.startswith("RESULT "):
            result: list[dict[str, float]] = json.loads(line[7:])
            return result
    raise SystemExit(f"vLLM ended with exit code {ran.returncode}:\n{ran.stderr[-3000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, nargs="+")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument(
        "--tokens", type=int, default=3500, help="of each prompt; a token is a byte"
    )
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        model, prompts = Path(work) / "model", Path(work) / "prompts.json"
        vllm_flow.make_tiny_model(model)
        text = prompt_text(options.tokens - 10)
        prompts.write_text(json.dumps([f"No. {i:4d}. {text}" for i in range(options.prompts)]))
        for where in options.directory:
            run(model, prompts, where)
        times: dict[Path, list[float]] = {where: [] for where in options.directory}
        for _ in range(options.rounds):
            for where in options.directory:
                for one in run(model, prompts, where):
                    if one["hit"] < 0.9 * one["of"]:
                        sys.exit(f"{where}: {one['hit']} of {one['of']} tokens were found")
                    times[where].append(one["s"])
        base = statistics.median(times[options.directory[0]])
        for where, values in times.items():
            middle = statistics.median(values)
            print(f"{middle * 1000:8.1f} ms  {middle / base:5.2f}  {where}")


if __name__ == "__main__":
    main()

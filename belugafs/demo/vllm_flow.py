"""Starts vLLM processes on a directory: for ``belugafs demo --engine vllm`` and for the tests.

vLLM lives in an environment of its own (``make vllm-venv``); this module runs in belugafs's and
imports nothing of it. What is vLLM's own and what is ours is told in
``vllm_side/belugafs_vllm_cpu_spec.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from belugafs.demo.contract import DemoOptions, EngineRun, Runner
from belugafs.demo.mounting import DemoError, run
from belugafs.demo.text import prompt_text

SIDE = Path(__file__).parent / "vllm_side"
PRIMARY_TIER_BYTES = 256 << 20
# The CPU backend's block, and so the grain of a hit.
BLOCK_TOKENS = 128
_SHM = Path("/dev/shm")


def vllm_python() -> Path:
    """The interpreter of the vLLM environment.

    ``BELUGAFS_VLLM_VENV`` names the environment; without it, ``.venv-vllm`` beside the checkout.
    Raises DemoError, saying what to run, when there is none.
    """
    default = Path(__file__).parents[2] / ".venv-vllm"
    venv = Path(os.environ.get("BELUGAFS_VLLM_VENV") or default)
    python = venv / "bin" / "python"
    if not python.exists():
        raise DemoError(
            f"no vLLM environment at {venv}: run 'make vllm-venv' in the checkout (3.4 GB), "
            "or set BELUGAFS_VLLM_VENV"
        )
    return python


def new_engine_id() -> str:
    """A name for one engine process, so that what it leaves in /dev/shm can be told apart.

    ``BELUGAFS_RUN_ID`` in the environment becomes part of it, else the process number.
    """
    run_id = os.environ.get("BELUGAFS_RUN_ID") or str(os.getpid())
    return f"belugafs-{run_id}-{uuid.uuid4().hex[:8]}"


def remove_leftovers(engine_id: str) -> None:
    """Remove the primary tier (``PRIMARY_TIER_BYTES`` of memory) that a killed engine left."""
    for path in _SHM.glob(f"vllm_offload_{engine_id}*"):
        path.unlink(missing_ok=True)


def connector_config(kv_dir: Path, engine_id: str) -> dict[str, Any]:
    """vLLM's ``--kv-transfer-config``: offload to host memory, and from there to ``kv_dir``."""
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "engine_id": engine_id,
        # A block that vanished is computed again; vLLM's default fails the request.
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "spec_name": "CpuTieringSpec",
            "spec_module_path": "belugafs_vllm_cpu_spec",
            "cpu_bytes_to_use": PRIMARY_TIER_BYTES,
            "secondary_tiers": [
                {
                    "type": "fs",
                    "root_dir": str(kv_dir),
                    "n_read_threads": 4,
                    "n_write_threads": 4,
                }
            ],
        },
    }


def example_config(kv_dir: Path, engine_id: str) -> dict[str, Any]:
    """vLLM's ``--kv-transfer-config`` for its example connector: a safetensors file for each layer
    of each prompt."""
    return {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "engine_id": engine_id,
        "kv_connector_extra_config": {"shared_storage_path": str(kv_dir)},
    }


def vllm_environment(*, in_process: bool) -> dict[str, str]:
    """The environment of a vLLM process; ``in_process`` keeps the engine in the one process."""
    env = dict(os.environ)
    # Hashes of token blocks, and so file names, must agree between processes.
    env |= {"PYTHONHASHSEED": "0", "PYTHONPATH": str(SIDE)}
    env |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    env |= {"TRANSFORMERS_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    if not in_process:
        del env["VLLM_ENABLE_V1_MULTIPROCESSING"]
    return env


def make_tiny_model(out: Path, timeout_s: float = 120) -> None:
    """Write the random checkpoint of ``vllm_side/tiny_model.py`` into a directory."""
    command = [str(vllm_python()), str(SIDE / "tiny_model.py"), str(out)]
    ran = run(command, timeout_s=timeout_s, env=vllm_environment(in_process=True))
    if ran.code != 0:
        raise DemoError(f"making the model failed:\n{ran.output[-2000:]}")


def run_offline(
    model: Path,
    prompt_file: Path,
    new_tokens: int,
    kv_dir: Path,
    *,
    timeout_s: float,
    runner: Runner = run,
    config: Callable[[Path, str], dict[str, Any]] = connector_config,
) -> dict[str, Any]:
    """One fresh vLLM process over ``kv_dir``; returns what ``offline_run.py`` documents.

    ``config`` makes the ``--kv-transfer-config``: ``connector_config`` or ``example_config``.
    """
    engine_id = new_engine_id()
    command = [str(vllm_python()), str(SIDE / "offline_run.py"), str(model), str(prompt_file)]
    command += [str(new_tokens), json.dumps(config(kv_dir, engine_id))]
    try:
        ran = runner(command, timeout_s=timeout_s, env=vllm_environment(in_process=True))
    finally:
        remove_leftovers(engine_id)
    for line in reversed(ran.output.splitlines()):
        if line.startswith("BELUGAFS_RESULT "):
            result: dict[str, Any] = json.loads(line.split(" ", 1)[1])
            return result
    raise DemoError(f"vLLM ended with exit code {ran.code}:\n{ran.output[-4000:]}")


class VllmEngine:
    """vLLM on the CPU with its own file tier, for ``belugafs demo --engine vllm``."""

    title = "vLLM 0.32 (CPU) with its fs tier"

    def __init__(self, options: DemoOptions) -> None:
        vllm_python()
        self._options = options
        self._work = Path(tempfile.mkdtemp(prefix="belugafs-demo-vllm-"))
        self._model = self._work / "model"
        self._prompt = self._work / "prompt.txt"
        # The model's context is 4096 tokens.
        self._prompt.write_text(prompt_text(min(options.prompt_tokens, 3500)))

    def process(self, kv_dir: Path, runner: Runner) -> EngineRun:
        if not self._model.exists():
            make_tiny_model(self._model)
        o = self._options
        result = run_offline(
            self._model,
            self._prompt,
            o.new_tokens,
            kv_dir / "vllm",
            timeout_s=o.timeout_s,
            runner=runner,
        )
        return EngineRun(
            prompt_tokens=result["prompt_tokens"],
            hit_tokens=result["hit_tokens"],
            tokens=result["tokens"],
            ttft_s=result["ttft_s"],
            notes={"whole request": f"{result['total_s'] * 1e3:.0f} ms"},
        )

    def close(self) -> None:
        with contextlib.suppress(OSError):
            shutil.rmtree(self._work)

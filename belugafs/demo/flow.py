"""The demo from beginning to end: pool, mount, two engine processes, what a person sees of it.

``run_demo`` is what the command calls. The engines are behind one small interface
(:mod:`belugafs.demo.contract`), so that numpy and vLLM show the same table.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from belugafs.demo.contract import DemoOptions, Engine, EngineRun, Runner
from belugafs.demo.mounting import DemoError, DemoMount, run, tool

_SHM = Path("/dev/shm")


class NumpyEngine:
    """The transformer of this package."""

    title = "a small transformer in numpy"

    def __init__(self, options: DemoOptions) -> None:
        self._options = options

    def process(self, kv_dir: Path, runner: Runner) -> EngineRun:
        o = self._options
        command = [sys.executable, "-m", "belugafs.demo.engine", "--kv-dir", str(kv_dir)]
        command += ["--prompt-tokens", str(o.prompt_tokens), "--new-tokens", str(o.new_tokens)]
        command += ["--block-tokens", str(o.block_tokens), "--read", o.read]
        # One thread: on a busy machine the threads of a BLAS spin for each other, and the prefill
        # takes minutes instead of seconds.
        one = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        ran = runner(command, timeout_s=o.timeout_s, env={**os.environ, **one})
        if ran.code != 0:
            raise DemoError(f"the engine failed with exit code {ran.code}:\n{ran.output[-2000:]}")
        result = json.loads(next(s for s in reversed(ran.output.splitlines()) if s[:1] == "{"))
        if result["blocks_failed"]:
            raise DemoError(f"{result['blocks_failed']} blocks failed: {result['last_error']}")
        return EngineRun(
            prompt_tokens=result["prompt_tokens"],
            hit_tokens=result["hit_tokens"],
            tokens=result["tokens"],
            ttft_s=result["ttft_s"],
            notes={
                "blocks stored": f"{result['blocks_stored']} x {result['block_bytes'] >> 10} KiB",
                "blocks loaded": f"{result['blocks_loaded']}",
                "look-up and load": f"{result['lookup_load_s'] * 1e3:.1f} ms",
                "prefill": f"{result['prefill_s'] * 1e3:.0f} ms",
            },
        )

    def close(self) -> None:
        pass


def make_engine(options: DemoOptions) -> Engine:
    """The engine that the options name; raises DemoError where it isn't installed."""
    if options.engine == "vllm":
        from belugafs.demo.vllm_flow import VllmEngine

        return VllmEngine(options)
    return NumpyEngine(options)


def run_demo(options: DemoOptions, console: Console | None = None) -> int:
    """Run the demo; returns the exit code: 0 when the second process hit and agreed, else 1."""
    console = console or Console()
    try:
        with _sigterm_unwinds(), contextlib.ExitStack() as stack:
            engine = make_engine(options)
            stack.callback(engine.close)
            if options.plain_dir is not None:
                options.plain_dir.mkdir(parents=True, exist_ok=True)
                console.print(f"engine: {engine.title}, on a plain directory {options.plain_dir}")
                return _two_processes(engine, options.plain_dir, run, console)
            return _on_a_mount(options, engine, console)
    except DemoError as error:
        # soft_wrap: what may be copied into a shell or searched for stays in one piece
        console.print(f"[bold red]demo failed:[/] {escape(str(error))}", soft_wrap=True)
        return 1


def _on_a_mount(options: DemoOptions, engine: Engine, console: Console) -> int:
    pool = (_SHM if _SHM.is_dir() else Path(tempfile.gettempdir())) / (
        f"belugafs-demo-{os.getpid()}.pool"
    )
    console.print(f"engine: {engine.title}; pool: {options.size} of memory")
    demo = DemoMount(pool, options.mountpoint, options.size)
    keep = False
    try:
        _typed(console, demo.make())
        _typed(console, demo.mount())
        status = _two_processes(engine, demo.path, demo.run, console)
        mnt = str(demo.path)
        for command, lines in (
            (["ls", "-R", mnt], 14),
            (["du", "-sh", mnt], 5),
            (["df", "-h", mnt], 5),
            (["belugafs", "status", mnt], 40),
        ):
            _show(console, demo, command, lines)
        if options.keep:
            keep = True
            console.print(
                f"kept: [bold]{mnt}[/] with its pool {pool}; when done: "
                f"[bold]umount {mnt} && rm {pool}[/]",
                soft_wrap=True,
            )
            return status
        _typed(console, demo.unmount())
        typed, ran = demo.fsck()
        _typed(console, typed)
        _print_output(console, ran.output, 40)
        if ran.code != 0:
            console.print(f"[bold red]fsck found something[/] (exit code {ran.code})")
            status = 1
        return status
    finally:
        demo.close(keep)


def _two_processes(engine: Engine, kv_dir: Path, runner: Runner, console: Console) -> int:
    with console.status("process 1: computes the prompt and stores its blocks"):
        first = engine.process(kv_dir, runner)
    with console.status("process 2: a fresh process with the same prompt"):
        second = engine.process(kv_dir, runner)
    same = first.tokens == second.tokens
    table = Table(title=f"one prompt of {first.prompt_tokens} tokens, two processes")
    table.add_column("")
    table.add_column("process 1", justify="right")
    table.add_column("process 2", justify="right")
    table.add_row("found in cache (tokens)", str(first.hit_tokens), str(second.hit_tokens))
    table.add_row(
        "time to first token", f"{first.ttft_s * 1e3:.0f} ms", f"{second.ttft_s * 1e3:.0f} ms"
    )
    for name in first.notes:
        table.add_row(name, first.notes[name], second.notes.get(name, ""))
    table.add_row("first tokens out", _excerpt(first.tokens), _excerpt(second.tokens))
    console.print(table)
    if not same:
        console.print("[bold red]same tokens: no[/]")
        return 1
    console.print(f"same tokens: [bold green]yes[/] ({len(first.tokens)} of {len(first.tokens)})")
    if second.hit_tokens == 0:
        console.print("[bold red]the second process found nothing[/]")
        return 1
    if second.ttft_s > 0:
        console.print(f"first token {first.ttft_s / second.ttft_s:.1f} times as early")
    return 0


def _excerpt(tokens: Sequence[int]) -> str:
    return " ".join(map(str, tokens[:6])) + (" …" if len(tokens) > 6 else "")


def _typed(console: Console, command: Sequence[str]) -> None:
    console.print(f"[bold cyan]$ {escape(shlex.join(command))}[/]", soft_wrap=True)


def _show(console: Console, demo: DemoMount, command: list[str], lines: int) -> None:
    _typed(console, command)
    line = [*tool("belugafs"), *command[1:]] if command[0] == "belugafs" else command
    ran = demo.run(line, timeout_s=60)
    _print_output(console, ran.output, lines)
    if ran.code != 0:
        raise DemoError(f"{shlex.join(command)} failed with exit code {ran.code}")


def _print_output(console: Console, output: str, lines: int) -> None:
    shown = output.rstrip().splitlines()
    for text in shown[:lines]:
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    if len(shown) > lines:
        console.print(f"[dim]… {len(shown) - lines} more lines[/]")


@contextlib.contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """SIGTERM ends us through the ``finally`` blocks, as Ctrl-C does."""

    def leave(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

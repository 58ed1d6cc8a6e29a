"""The click command ``belugafs demo``. Imports nothing heavy until it runs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from belugafs.command import Command
from belugafs.exits import Exit


@click.command(
    "demo",
    cls=Command,
    short_help="Share a KV cache between two processes, on a pool in memory.",
    examples=[
        ("belugafs demo", "half a minute, needs nothing more"),
        ("belugafs demo --keep", "leave the mount to look at"),
    ],
    exits=(Exit.OK, Exit.USAGE),
)
@click.option(
    "--engine",
    type=click.Choice(["numpy", "vllm"]),
    default="numpy",
    show_default=True,
    help="numpy needs nothing more; vllm needs the environment that 'make vllm-venv' builds.",
)
@click.option("--size", default="256M", show_default=True, help="Size of the pool.")
@click.option("--keep", is_flag=True, help="Leave pool and mount behind to look at.")
@click.option(
    "--dir",
    "mountpoint",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Mount there instead of on a temporary directory.",
)
@click.option(
    "--plain-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="No pool and no mount: run the two processes on this directory, and leave it.",
)
@click.option("--prompt-tokens", type=click.IntRange(2, 8000), default=2100, show_default=True)
@click.option("--new-tokens", type=click.IntRange(1, 1000), default=24, show_default=True)
@click.option(
    "--block-tokens",
    type=click.IntRange(1, 1024),
    default=64,
    show_default=True,
    help="Tokens of a block, for the numpy engine.",
)
@click.option(
    "--read",
    type=click.Choice(["mmap", "readinto"]),
    default="mmap",
    show_default=True,
    help="How the numpy engine reads a block: in place, or into its own memory.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=180.0,
    show_default=True,
    help="Seconds after which an engine process counts as hung.",
)
def demo_command(
    engine: str,
    size: str,
    keep: bool,
    mountpoint: Path | None,
    plain_dir: Path | None,
    prompt_tokens: int,
    new_tokens: int,
    block_tokens: int,
    read: str,
    timeout_s: float,
) -> None:
    """Make a pool in memory, mount it, and let two processes share a KV cache through it.

    The first process computes a prompt and stores its blocks as files. The second one, a fresh
    process, finds them, skips that work and must produce the same tokens. Then the mount is
    shown with ordinary tools, unmounted, checked and removed.

    Exit code 0: the second process found blocks and its tokens were the same.
    """
    from belugafs.demo.contract import DemoOptions
    from belugafs.demo.flow import run_demo

    if plain_dir is not None and (mountpoint is not None or keep):
        raise click.UsageError("--plain-dir makes no mount: --dir and --keep mean nothing with it")
    sys.exit(
        run_demo(
            DemoOptions(
                engine=engine,
                size=size,
                keep=keep,
                mountpoint=mountpoint,
                plain_dir=plain_dir,
                prompt_tokens=prompt_tokens,
                new_tokens=new_tokens,
                block_tokens=block_tokens,
                read=read,
                timeout_s=timeout_s,
            )
        )
    )

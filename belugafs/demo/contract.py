"""What the demo asks of an engine, and what it is told: ``flow`` drives, an engine answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from belugafs.demo.mounting import Ran


@dataclass(frozen=True)
class DemoOptions:
    """What the command line says. ``size`` is text for mkfs; ``timeout_s`` is for one engine."""

    engine: str = "numpy"
    size: str = "256M"
    keep: bool = False
    mountpoint: Path | None = None
    plain_dir: Path | None = None
    prompt_tokens: int = 2100
    new_tokens: int = 24
    block_tokens: int = 64
    read: str = "mmap"
    timeout_s: float = 180.0


@dataclass(frozen=True)
class EngineRun:
    """What one engine process reported; times in seconds, ``ttft_s`` is time to first token."""

    prompt_tokens: int
    hit_tokens: int
    tokens: list[int]
    ttft_s: float
    notes: dict[str, str]


Runner = Callable[..., Ran]


class Engine(Protocol):
    """An engine that keeps blocks in a directory. ``process`` runs one fresh process of it."""

    title: str

    def process(self, kv_dir: Path, runner: Runner) -> EngineRun: ...

    def close(self) -> None: ...

"""The result: tables with ratios first, one object for scripts, a picture."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from belugafs import ring_bench
from belugafs.bench.library.rows import LIBRARY, Row
from belugafs.bench.library.run import Outcome
from belugafs.bench.plot import pyplot, save

_WIDTH = 150  # where the output is no terminal
_PLACES = ("dict", "FUSE", "LMDB", "Mooncake")


def as_dict(outcome: Outcome) -> dict[str, Any]:
    """Everything, for ``--json``."""
    return {
        "ok": True,
        "machine": outcome.machine,
        "rounds": outcome.rounds,
        "many_blocks": outcome.many,
        "missing": outcome.missing,
        "results": [row.as_dict() for row in outcome.rows],
        "kernels": [row.as_dict() for row in outcome.kernels],
        "ring": {
            **asdict(outcome.ring),
            "paper_round_trip_us": ring_bench.PAPER_ROUND_TRIP_US,
            "paper_requests_per_s": ring_bench.PAPER_REQUESTS_PER_S,
        },
    }


def _ratio(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _us(row: Row, place: str) -> str:
    if place not in row.places:
        return ""
    value = row.places[place].median_s * 1e6
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _rate(row: Row) -> str:
    per_s = row.count / row.places[LIBRARY].median_s
    if row.size_bytes and row.limit:
        return f"{row.size_bytes / row.places[LIBRARY].median_s / 1e9:.1f} GB/s"
    return f"{per_s / 1e6:.2f} M/s"


def _table(title: str, names: list[str]) -> Table:
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for name in names:
        left = name in ("what", "goal", "limit")
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    return table


def print_tables(outcome: Outcome) -> None:
    """Print all to standard output."""
    console = Console(width=None if os.isatty(1) else _WIDTH)
    places = [name for name in _PLACES if any(name in row.places for row in outcome.rows)]
    names = ["what", "/ limit", *(f"/ {name}" for name in places), "limit", "goal", "met"]
    table = _table("speed of the library / that of others in the same rounds (medians)", names)
    for row in outcome.rows:
        met = {None: "", True: "yes", False: "no"}[row.met]
        ratios = [_ratio(row.ratio(name)) for name in places]
        table.add_row(row.name, _ratio(row.ratio(row.limit)), *ratios, row.limit, row.goal, met)
    console.print(table)
    names = ["what", LIBRARY, *places, "limit", "rate"]
    table = _table("us of one run (for what that is see below), rate of the library", names)
    for row in outcome.rows:
        limit = row.limit and f"{_us(row, row.limit)}"
        figures = [_us(row, name) for name in (LIBRARY, *places)]
        table.add_row(row.name, *figures, limit, _rate(row))
    console.print(table)
    table = _table("processor seconds per 10^9 bytes; of rows without bytes us per key", names[:-2])
    for row in outcome.rows:
        table.add_row(row.name, *(_cpu(row, name) for name in (LIBRARY, *places)))
    console.print(table)
    for row in outcome.rows:
        console.print(f"{row.name:<24} {row.text}", highlight=False, soft_wrap=True)
    _print_kernels(console, outcome)
    for line in ring_bench.lines(outcome.ring):
        console.print(f"ring: {line}", highlight=False, soft_wrap=True)
    for name, reason in outcome.missing.items():
        console.print(f"left out: {name}: {reason}", highlight=False, soft_wrap=True)
    about = f"{outcome.rounds} rounds, {outcome.machine['cpus']} processors"
    console.print(f"{about}, load {outcome.machine['load_1m']:.1f}", highlight=False)


def _cpu(row: Row, place: str) -> str:
    if place not in row.places:
        return ""
    per_gb = row.cpu_s_per_gb(place)
    if per_gb is None:
        return f"{row.cpu_us_per_operation(place):.2f} us"
    return f"{per_gb:.3f}" if per_gb >= 0.001 else f"{per_gb:.1e}"


def _print_kernels(console: Console, outcome: Outcome) -> None:
    names = ["what", "/ limit", "limit", "goal", "GB/s", "us", "CPU s/GB"]
    table = _table("copies of kernels/, between a buffer and tmpfs, one thread", names)
    for row in outcome.kernels:
        data = row.as_dict()
        table.add_row(
            row.name,
            f"{row.ratio:.2f}",
            row.against,
            "" if row.goal is None else f">= {row.goal:g}",
            f"{data['gb_per_s']:.1f}",
            f"{data['median_us']:,.1f}",
            f"{data['cpu_s_per_gb']:.3f}",
        )
    console.print(table)


def draw(outcome: Outcome, path: str) -> None:
    """Bars of the ratios, by row and other place; the format is that of the file's name. Raises
    PoolError."""
    plt = pyplot()
    places = ["limit", *(n for n in _PLACES if any(n in row.places for row in outcome.rows))]
    figure, panel = plt.subplots(figsize=(10, 0.45 * len(outcome.rows) * len(places) / 3 + 2))
    height = 0.8 / len(places)
    for number, name in enumerate(places):
        found = [
            (at + number * height, row.ratio(row.limit if name == "limit" else name))
            for at, row in enumerate(outcome.rows)
        ]
        known = [(at, ratio) for at, ratio in found if ratio is not None]
        if known:
            panel.barh(*zip(*known, strict=True), height=height, label=name)
    panel.set_yticks(
        [at + 0.4 - height / 2 for at in range(len(outcome.rows))],
        [f"{row.name} ({row.limit})" if row.limit else row.name for row in outcome.rows],
    )
    panel.invert_yaxis()
    panel.axvline(1.0, color="grey", linewidth=0.8)
    panel.set_xscale("log")
    panel.set_xlabel("speed of the library / speed there")
    panel.legend(fontsize="small")
    save(figure, path)

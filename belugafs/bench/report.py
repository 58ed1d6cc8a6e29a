"""The result for people: ratios first, then figures. For scripts: one object."""

import os
import platform
import statistics
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from belugafs.bench.runner import MountTimes, Result
from belugafs.units import format_size

_WIDTH = 100  # where the output is no terminal


def as_dict(
    results: list[Result], times: MountTimes | None, about: dict[str, Any]
) -> dict[str, Any]:
    """Everything, for ``--json``."""
    mount = None
    if times is not None:
        mount = {
            "mount_s": statistics.median(times.mount_s),
            "tmpfs_s": statistics.median(times.tmpfs_s) if times.tmpfs_s else None,
        }
    return {
        "ok": True,
        "machine": {
            "cpus": len(os.sched_getaffinity(0)),
            "kernel": platform.release(),
            "load_1m": os.getloadavg()[0],
        },
        **about,
        "mount_time": mount,
        "results": [result.as_dict() for result in results],
    }


def _ratio(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _gb_per_s(result: Result, place: str) -> str:
    value = result.median(place, "bytes_per_s") if result.cell.size_bytes else None
    return "" if value is None else f"{value / 1e9:.2f}"


def _per_s(result: Result, place: str) -> str:
    """Operations, or entries of a listed directory."""
    listed = result.cell.case == "readdir"
    value = result.median(place, "bytes_per_s" if listed else "operations_per_s")
    return "" if value is None else f"{value:,.0f}"


def _cpu(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _table(title: str, names: list[str], results: list[Result], rows: list[list[str]]) -> Table:
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for name in ("\nwhat", "\nsize"):
        table.add_column(name, no_wrap=True)
    for name in ("\nclients", *names):
        table.add_column(name, justify="right", no_wrap=True)
    former = None
    for result, row in zip(results, rows, strict=True):
        cell = result.cell
        head = (cell.label, cell.size_bytes)
        shown = ("", "") if head == former else (cell.label, _size(cell.size_bytes))
        table.add_row(*shown, str(cell.clients), *row)
        former = head
    return table


def print_tables(results: list[Result], times: MountTimes | None) -> None:
    """Print all to standard output."""
    console = Console(width=None if os.isatty(1) else _WIDTH)
    ratios = [
        [
            _ratio(result.ratio("tmpfs")),
            _ratio(result.ratio("memcpy")),
            _cpu(result.cpu_s_per_gb("mount", "client")),
            _cpu(result.cpu_s_per_gb("mount", "daemon")),
            _cpu(result.cpu_s_per_gb("tmpfs", "client")),
        ]
        for result in results
    ]
    names = ["ratio\n/ tmpfs", "ratio\n/ memcpy"]
    names += [f"CPU s/GB\n{who}" for who in ("client", "daemon", "tmpfs")]
    title = "rate of the mount / rate of tmpfs and memcpy; processor seconds per 10^9 bytes"
    console.print(_table(title, names, results, ratios))
    figures = [
        [
            *(_gb_per_s(result, place) for place in ("mount", "tmpfs", "memcpy")),
            *(_per_s(result, place) for place in ("mount", "tmpfs")),
        ]
        for result in results
    ]
    names = [f"GB/s\n{place}" for place in ("mount", "tmpfs", "memcpy")]
    names += [f"per s\n{place}" for place in ("mount", "tmpfs")]
    title = "GB/s, and operations (entries of readdir) a second"
    console.print(_table(title, names, results, figures))
    seen = {result.cell.label: result.cell.text for result in results}
    for label, text in seen.items():
        console.print(f"{label:<15} {text}", highlight=False)
    if times is not None:
        line = f"{'mount':<15} {statistics.median(times.mount_s):.2f} s until it answers"
        if times.tmpfs_s:
            line += f"; mount -t tmpfs {statistics.median(times.tmpfs_s):.3f} s"
        console.print(line, highlight=False)


def _size(size_bytes: int) -> str:
    return format_size(size_bytes) if size_bytes else ""

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

_WIDTH = 150  # where the output is no terminal


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


def _rate(result: Result, place: str) -> str:
    name = "bytes_per_s" if result.cell.size_bytes else "operations_per_s"
    if result.cell.case == "readdir":
        name = "bytes_per_s"  # entries
    value = result.median(place, name)
    if value is None:
        return ""
    if result.cell.size_bytes:
        per_s = result.median(place, "operations_per_s")
        files = f" {per_s:,.0f}/s" if per_s is not None and per_s >= 100 else ""
        return f"{value / 1e9:.2f} GB/s{files}"
    return f"{value:,.0f}/s"


def _cpu(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def print_tables(results: list[Result], times: MountTimes | None) -> None:
    """Print all to standard output."""
    console = Console(width=None if os.isatty(1) else _WIDTH)
    table = Table(
        title="the mount beside tmpfs and memcpy: ratio of rates, 1.00 is as fast",
        title_justify="left",
        box=box.SIMPLE,
    )
    for name in ("what", "size"):
        table.add_column(name, no_wrap=True)
    for name in ("clients", "/ tmpfs", "/ memcpy", "mount", "tmpfs", "memcpy"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("CPU s/GB:\nclient", "\ndaemon", "\ntmpfs"):
        table.add_column(name, justify="right")
    former = None
    for result in results:
        cell = result.cell
        head = (cell.label, cell.size_bytes)
        if former is not None and head != former:
            table.add_section()
        table.add_row(
            *(("", "") if head == former else (cell.label, _size(cell.size_bytes))),
            str(cell.clients),
            _ratio(result.ratio("tmpfs")),
            _ratio(result.ratio("memcpy")),
            *(_rate(result, place) for place in ("mount", "tmpfs", "memcpy")),
            _cpu(result.cpu_s_per_gb("mount", "client")),
            _cpu(result.cpu_s_per_gb("mount", "daemon")),
            _cpu(result.cpu_s_per_gb("tmpfs", "client")),
        )
        former = head
    console.print(table)
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

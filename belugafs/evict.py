"""``belugafs evict``: free space now, by dropping least recently used blocks."""

import json
import os
from typing import Any

import click

from belugafs import _native, attach, mounts, status
from belugafs.command import Command, bytes_bar, json_option, say, size_value
from belugafs.control_client import Daemon
from belugafs.exits import Exit
from belugafs.options import MountOptions
from belugafs.pool import Progress
from belugafs.units import SIZE_MAX_BYTES, format_size

Report = dict[str, Any]
"""``pool``, ``mount_point``, ``asked_bytes`` (None: all), ``freed_bytes``, ``blocks``, and what
is so afterwards: ``used_bytes``, ``data_bytes``, ``evictable_bytes``."""

_STEP_GRANULES = 16384  # of an unmounted pool, between two steps of the bar


@click.command(
    "evict",
    cls=Command,
    short_help="Free space in a mount or pool by dropping its oldest blocks.",
    examples=[
        ("belugafs evict --bytes 2G /mnt/beluga", "make 2 GiB free that are not"),
        ("belugafs evict --percent 20 /mnt/beluga", "a fifth of the space"),
        ("belugafs evict --all /dev/shm/beluga.pool", "every block, of a pool that is not mounted"),
    ],
    exits=(
        Exit.OK,
        Exit.USAGE,
        Exit.NOT_FOUND,
        Exit.PERMISSION,
        Exit.IN_USE,
        Exit.EMPTY,
        Exit.IO_ERROR,
        Exit.UNSUPPORTED,
        Exit.INCOMPLETE,
    ),
)
@click.option("--bytes", "size_bytes", metavar="SIZE", callback=size_value, help="Such as 2G.")
@click.option(
    "--percent",
    type=click.FloatRange(0, 100, min_open=True),
    help="So much of the pool's data space.",
)
@click.option("--all", "everything", is_flag=True, help="All that can go.")
@json_option
@click.argument("where", required=False, metavar="[MOUNT|POOL]", type=click.Path())
def evict_command(
    size_bytes: int | None,
    percent: float | None,
    everything: bool,
    as_json: bool,
    where: str | None,
) -> int:
    """Drop least recently used blocks until so much more is free.

    Files that are open, pinned or ordinary (written more than once) stay. Without MOUNT or POOL:
    the one mount of this machine. A mount is evicted by its daemon, at root's wish and that of
    the user who mounted it.

    Exit status 26 if less than that could be freed.
    """
    if (size_bytes is not None) + (percent is not None) + everything != 1:
        raise click.UsageError("give one of --bytes, --percent and --all")
    place = where if where is not None else mounts.only_mount().mount_point
    with bytes_bar("evicting", shown=not as_json) as progress:
        report = evict(place, size_bytes, percent, progress)
    short = report["asked_bytes"] is not None and report["freed_bytes"] < report["asked_bytes"]
    code = Exit.INCOMPLETE if short else Exit.OK
    if as_json:
        say(json.dumps({"ok": not short, "exit_code": code, **report}))
        return code
    used, data = report["used_bytes"], report["data_bytes"]
    say(
        f"freed {format_size(report['freed_bytes'])} in {report['blocks']} blocks; "
        f"{format_size(used)} of {format_size(data)} ({100 * used / data:.1f} %) in use"
    )
    if short:
        say("that is less than asked for: the rest is open, pinned, or ordinary files")
    return code


def evict(where: str, size_bytes: int | None, percent: float | None, progress: Progress) -> Report:
    """Free size_bytes, or percent of the data space, or, with neither, all that can go, of a
    mount or an unmounted pool. Raises PoolError."""
    mount = mounts.mount_of(where)
    if mount is not None:
        stats = status.report(where)["stats"]
        wanted = _wanted(stats, size_bytes, percent)
        freed, blocks = 0, 0
        with Daemon(mount) as daemon:
            total = min(wanted, daemon.evictable_bytes())
            done = False
            while not done:
                answer = daemon.ask("evict", wanted - freed)
                freed += answer["freed_bytes"]
                blocks += answer["blocks"]
                done = answer["done"] or freed >= wanted
                progress(freed, total)
            evictable = daemon.evictable_bytes()
        pool_path, stats = mount.source, status.report(where)["stats"]
    else:
        mounts.refuse_plain_directory(where)
        pool_path = os.path.realpath(where)
        opened, _ = attach.open_checked(where, readonly=False, lock="exclusive")
        with opened, attach.attach(opened, MountOptions(), wait_s=attach.LOCK_WAIT_S) as pool:
            stats = pool.statfs()
            wanted = _wanted(stats, size_bytes, percent)
            freed, first = 0, stats["evicted_blocks"]
            total = min(wanted, status.evictable_bytes(pool))
            got = 1
            while got and freed < wanted:
                missing = -(-(wanted - freed) // _native.GRANULE_BYTES)
                got = pool.evict(min(missing, _STEP_GRANULES)) * _native.GRANULE_BYTES
                freed += got
                progress(freed, total)
            stats, evictable = pool.statfs(), status.evictable_bytes(pool)
            blocks = stats["evicted_blocks"] - first
    everything = size_bytes is None and percent is None
    return {
        "pool": pool_path,
        "mount_point": mount.mount_point if mount is not None else None,
        "asked_bytes": None if everything else wanted,
        "freed_bytes": freed,
        "blocks": blocks,
        "used_bytes": stats["used_granules"] * _native.GRANULE_BYTES,
        "data_bytes": stats["data_granules"] * _native.GRANULE_BYTES,
        "evictable_bytes": evictable,
    }


def _wanted(stats: dict[str, Any], size_bytes: int | None, percent: float | None) -> int:
    if percent is not None:
        return int(stats["data_granules"] * _native.GRANULE_BYTES * percent / 100)
    return SIZE_MAX_BYTES if size_bytes is None else size_bytes

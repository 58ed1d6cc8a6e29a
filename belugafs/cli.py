"""The command ``belugafs``: look at mounts, pools and this machine, and look after them.

Commands that belong to other parts are imported only when they run. Exit codes are those of
:mod:`belugafs.exits`.
"""

import importlib
import json
import os

import click

from belugafs.command import HELP_OPTIONS, Group, say
from belugafs.exits import Exit

_LOOKING = (
    Exit.OK,
    Exit.USAGE,
    Exit.NOT_FOUND,
    Exit.PERMISSION,
    Exit.IN_USE,
    Exit.FOREIGN,
    Exit.EMPTY,
    Exit.IO_ERROR,
)

_LAZY = {
    "bench": ("belugafs.bench.cli", "bench_command"),
    "demo": ("belugafs.demo.cli", "demo_command"),
    "evict": ("belugafs.evict", "evict_command"),
    "pin": ("belugafs.pin", "pin_command"),
    "unpin": ("belugafs.pin", "unpin_command"),
    "verify": ("belugafs.verify", "verify_command"),
}


class _Group(Group):
    """Commands of other parts by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_LAZY])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _LAZY:
            return super().get_command(ctx, cmd_name)
        module, name = _LAZY[cmd_name]
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command


@click.group("belugafs", cls=_Group, context_settings=HELP_OPTIONS)
@click.version_option(package_name="belugafs", prog_name="belugafs")
def main() -> None:
    """Look at belugafs mounts and pools, and look after them.

    Pools are made with mkfs.belugafs, mounted with mount -t belugafs, checked with
    fsck.belugafs.
    """


@main.command(
    short_help="How full a mount or pool is, and what it has done.",
    examples=[
        ("belugafs status", "all mounts of this machine"),
        ("belugafs status /mnt/beluga", "one, by any path in it"),
        ("belugafs status /dev/shm/beluga.pool", "a pool, mounted or not"),
        ("belugafs status --json /mnt/beluga | jq .stats", "all counters, for a script"),
    ],
    exits=_LOOKING,
)
@click.argument("where", required=False, type=click.Path())
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object (without WHERE: a list)."
)
def status(where: str | None, as_json: bool) -> int:
    """Show a mount (its directory, or any path in it) or a pool that is not mounted.

    Without WHERE, all mounts on this machine. Sizes in the JSON are in granules of
    granule_bytes each.
    """
    from belugafs import status as status_of

    reports = status_of.all_mounts() if where is None else [status_of.report(where)]
    if as_json:
        say(json.dumps(reports if where is None else reports[0]))
    elif not reports:
        say("no belugafs is mounted here")
    else:
        say("\n".join(status_of.as_text(report) for report in reports))
    return Exit.OK


@main.command(
    "ls",
    short_help="List files of a mount, or of a pool that is not mounted.",
    examples=[
        ("belugafs ls -l /mnt/beluga", "with class and state of each file"),
        ("belugafs ls -lR /dev/shm/beluga.pool", "all of a pool, without mounting it"),
        ("belugafs ls /dev/shm/beluga.pool:/vllm", "one directory of it"),
    ],
    exits=_LOOKING,
)
@click.argument("where", type=click.Path())
@click.option("-l", "long", is_flag=True, help="Mode, owner, size, time, class, state, pin.")
@click.option("-R", "recursive", is_flag=True, help="Directories below, too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def list_files(where: str, long: bool, recursive: bool, as_json: bool) -> int:
    """WHERE is a path in a mount, or POOL or POOL:PATH for a pool that is not mounted.

    A pool is only read: nothing in it changes.
    """
    from belugafs import listing

    for line in listing.lines(where, long=long, recursive=recursive, as_json=as_json):
        click.echo(os.fsencode(line))
    return Exit.OK


@main.command(
    short_help="Which processes keep a mount busy, or hold a file.",
    examples=[
        ("belugafs holders /mnt/beluga", "after umount has said busy"),
        ("belugafs holders --json /mnt/beluga | jq .[].pid", "their process ids"),
        ("belugafs holders /mnt/beluga/vllm/0a1b.bin", "who has this block open or leased"),
        ("belugafs holders --leased /mnt/beluga", "each block that is read in place"),
    ],
    exits=(Exit.OK, Exit.USAGE, Exit.NOT_FOUND, Exit.PERMISSION, Exit.IO_ERROR),
)
@click.argument("where", type=click.Path())
@click.option("--leased", is_flag=True, help="All that processes read in place, by path.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of processes.")
def holders(where: str, leased: bool, as_json: bool) -> int:
    """Say which processes have files of a mount open or mapped, or are in it.

    For an umount that says "busy". WHERE is the mount's directory, or one in it. For a file:
    who has it open or mapped, or reads it in place; the latter alone keeps no umount waiting.
    """
    from dataclasses import asdict

    from belugafs import held, mounts
    from belugafs import holders as holders_of
    from belugafs.pool import PoolError

    mount = mounts.mount_holding(where)
    if mount is None:
        raise PoolError(f"no belugafs is mounted on {where}", Exit.NOT_FOUND)
    if leased:
        entries = held.leased(mount)
        say(json.dumps(entries) if as_json else "\n".join(held.leased_lines(entries)))
        return Exit.OK
    is_top = mounts.real_place(where) == mount.mount_point
    of_file = None if is_top else held.file_holders(mount, where)
    if of_file is not None:
        found = [asdict(holder) for holder in of_file]
        say(json.dumps(found) if as_json else "\n".join(held.file_lines(where, of_file)))
        return Exit.OK
    if as_json:
        say(json.dumps([asdict(holder) for holder in holders_of.holders(mount)]))
    else:
        say("\n".join(holders_of.lines(mount)))
    return Exit.OK


@main.command(
    short_help="What this machine offers to belugafs.",
    examples=[
        ("belugafs doctor", "what is there, limited, or missing"),
        ("belugafs doctor /mnt/beluga", "also whether what is mapped there can be pinned"),
        ("belugafs doctor --json", "the same as a list of name, state and text"),
    ],
    exits=(Exit.OK, Exit.USAGE, Exit.UNSUPPORTED),
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.argument("where", required=False, nargs=-1, metavar="[MOUNT]...")  # not touched: it may hang
def doctor(as_json: bool, where: tuple[str, ...]) -> int:
    """Look for what belugafs needs and what makes it faster. Changes nothing.

    Of each MOUNT, whether what a process maps there can be pinned for long, as a GPU needs it: that
    is tried with a file of 64 KiB without a name, by cudaHostRegister where there is a GPU, else by
    io_uring.

    Exit status 24 if something is missing that mounting needs.
    """
    from belugafs.doctor import examine

    findings = list(examine(where))
    if as_json:
        say(json.dumps([finding._asdict() for finding in findings]))
    else:
        for finding in findings:
            say(f"{finding.name:<14} {finding.state:<8} {finding.text}")
    broken = any(finding.needed and finding.state == "missing" for finding in findings)
    return Exit.UNSUPPORTED if broken else Exit.OK


if __name__ == "__main__":
    main()

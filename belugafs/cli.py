"""The command ``belugafs``: look at mounts, pools and this machine.

Commands that belong to other parts are imported only when they run. Exit codes are those of
:mod:`belugafs.exits`.
"""

import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from belugafs.exits import Exit
from belugafs.pool import PoolError

_LAZY = {"demo": ("belugafs.demo.cli", "demo_command")}


class _Group(click.Group):
    """Commands of other parts by name; errors by exit code, usage errors with 1."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_LAZY])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _LAZY:
            return super().get_command(ctx, cmd_name)
        module, name = _LAZY[cmd_name]
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run and exit; with ``standalone_mode=False`` return the exit code."""
        try:
            result = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            code = int(result or Exit.OK)
        except click.ClickException as error:
            error.show()
            code = Exit.USAGE
        except click.Abort:
            code = Exit.INTERRUPTED
        except PoolError as error:
            click.echo(f"belugafs: {error}", err=True)
            code = error.exit_code
        except BrokenPipeError:
            # The reader has gone; keep Python from failing over it again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())
            code = Exit.OK
        if standalone_mode:
            sys.exit(code)
        return code


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="belugafs", prog_name="belugafs")
def main() -> None:
    """Look at belugafs mounts and pools.

    Pools are made with mkfs.belugafs, mounted with mount -t belugafs, checked with
    fsck.belugafs.
    """


@main.command(short_help="How full a mount or pool is, and what it has done.")
@click.argument("where", required=False, type=click.Path())
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object (without WHERE: a list)."
)
def status(where: str | None, as_json: bool) -> int:
    """Show a mount (its directory, or any path in it) or a pool that is not mounted.

    Without WHERE, all mounts on this machine.
    """
    from belugafs import status as status_of

    reports = status_of.all_mounts() if where is None else [status_of.report(where)]
    if as_json:
        click.echo(json.dumps(reports if where is None else reports[0]))
    elif not reports:
        click.echo("no belugafs is mounted here")
    else:
        click.echo(os.fsencode("\n".join(status_of.as_text(report) for report in reports)))
    return Exit.OK


@main.command(name="ls", short_help="List files of a mount, or of a pool that is not mounted.")
@click.argument("where", type=click.Path())
@click.option("-l", "long", is_flag=True, help="Mode, owner, size, time, class and state.")
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


@main.command(short_help="What this machine offers to belugafs.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def doctor(as_json: bool) -> int:
    """Look for what belugafs needs and what makes it faster. Changes nothing.

    Exit status 24 if something is missing that mounting needs.
    """
    from belugafs.doctor import examine

    needed = {"/dev/fuse", "fusermount3", "pyfuse3", "trio", "C core"}
    findings = list(examine())
    if as_json:
        click.echo(json.dumps([finding._asdict() for finding in findings]))
    else:
        for name, state, text in findings:
            click.echo(f"{name:<14} {state:<8} {text}")
    broken = any(name in needed and state == "missing" for name, state, _ in findings)
    return Exit.UNSUPPORTED if broken else Exit.OK


if __name__ == "__main__":
    main()

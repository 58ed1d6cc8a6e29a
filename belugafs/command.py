"""What the commands built on click have in common: exit codes, errors, JSON, progress bars.

Commands that mount(8) and fsck(8) call have to start fast, and use argparse by
:mod:`belugafs.cmdline` instead.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

import click

from belugafs.exits import Exit
from belugafs.pool import PoolError, Progress
from belugafs.units import parse_size

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as one JSON object."
)


class Terminated(BaseException):
    """SIGTERM or SIGHUP, as an exception so that everything is cleaned up on the way out."""


class _ExitCodes:
    """For a command that is run by itself: the exit codes of :mod:`belugafs.exits`, in which
    wrong usage is 1, not click's 2."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run and exit; with ``standalone_mode=False`` return the exit code."""
        run: Callable[..., Any] = super().main  # type: ignore[misc]
        try:
            code = int(run(args, prog_name, complete_var, standalone_mode=False, **extra) or 0)
        except click.ClickException as error:
            error.show()
            code = Exit.USAGE
        except (click.Abort, KeyboardInterrupt):
            code = Exit.INTERRUPTED
        except Terminated:
            code = Exit.TERMINATED
        except Exception:
            traceback.print_exc()
            code = Exit.INTERNAL
        if standalone_mode:
            sys.exit(code)
        return code


class Command(_ExitCodes, click.Command):
    """A command whose help ends with examples and exit codes, and whose PoolError becomes one
    line and an exit code, and with ``--json`` an object that says so too.

    ``examples`` are (what to type, what it does); ``exits`` those codes that it can have,
    None for all.
    """

    def __init__(
        self,
        *args: Any,
        examples: Sequence[tuple[str, str]] = (),
        exits: Iterable[Exit] | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(*args, **extra)
        self._examples = examples
        self._exits = list(Exit if exits is None else exits)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PoolError as error:
            prog = ctx.find_root().command.name or "belugafs"
            return fail(prog, str(error), error.exit_code, bool(ctx.params.get("as_json")))
        except BrokenPipeError:  # caught here: further up click makes an exit code of 1 of it
            _forget_stdout()
            return Exit.OK

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Examples and exit codes, from the one place where each is declared."""
        if self._examples:
            with formatter.section("Examples"):
                formatter.write_dl(self._examples, col_max=54)
        with formatter.section("Exit status"):
            formatter.write_dl([(str(int(code)), code.meaning) for code in self._exits])


class Group(_ExitCodes, click.Group):
    """Commands by name, all of them of the class above."""

    command_class = Command


def fail(prog: str, message: str, code: Exit, as_json: bool) -> int:
    """Say what is wrong, on standard error and to a script; returns the exit code."""
    click.echo(os.fsencode(f"{prog}: {message}"), err=True)
    if as_json:
        say(json.dumps({"ok": False, "error": message, "code": code.name, "exit_code": code}))
    return code


def say(text: str) -> None:
    """Print a line; a path in it may be any bytes, and the reader may have gone."""
    try:
        click.echo(os.fsencode(text))
    except BrokenPipeError:
        _forget_stdout()


def _forget_stdout() -> None:
    # The reader has gone; keep Python from failing over it again at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())


def size_value(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """click callback: a size as people type it, in bytes."""
    try:
        return None if value is None else parse_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP raise :class:`Terminated` in here. Does nothing in another thread than
    the main one."""

    def stop(signum: int, frame: FrameType | None) -> NoReturn:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {
        signum: signal.signal(signum, stop)
        for signum in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(signum) is signal.SIG_DFL
    }
    try:
        yield
    finally:
        for signum, handler in former.items():
            signal.signal(signum, handler)


@contextlib.contextmanager
def bytes_bar(label: str, *, shown: bool) -> Iterator[Progress]:
    """A bar of bytes on standard error, if that is a terminal and ``shown``; else nothing.
    What it gives is called with (bytes done, bytes in all); 0 in all: nobody knows."""
    if not shown or not sys.stderr.isatty():
        yield lambda done_bytes, total_bytes: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bar

    with Bar(
        TextColumn(label),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done_bytes, total_bytes: bar.update(
            task, completed=done_bytes, total=total_bytes or None
        )

"""``mkfs.belugafs``: make a pool in a file or on a DAX device. The command line; the work is in
:mod:`belugafs._pool.make`.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from types import FrameType
from typing import Any, NoReturn

import click

from belugafs._pool.make import (
    HOSTS_MAX,
    INODES_MAX,
    LABEL_BYTES_MAX,
    Request,
    Summary,
    make_pool,
)
from belugafs.exits import Exit
from belugafs.pool import PoolError, Progress
from belugafs.units import format_size, parse_size


class _Command(click.Command):
    """A click command with the exit codes of this project: 1 for usage, not 2."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run and exit, or, with ``standalone_mode=False``, return the exit code."""
        try:
            result = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            code = int(result or Exit.OK)
        except click.ClickException as error:
            error.show()
            code = Exit.USAGE
        except click.Abort:
            code = Exit.INTERRUPTED
        except Exception:
            traceback.print_exc()
            code = Exit.INTERNAL
        if not standalone_mode:
            return code
        sys.exit(code)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Examples and exit codes, from the one place where each is declared."""
        with formatter.section("Examples"):
            formatter.write_dl(
                [
                    (
                        "mkfs.belugafs --size 8G /dev/shm/beluga.pool",
                        "8 GiB of this machine's memory",
                    ),
                    ("mkfs.belugafs /dev/dax0.0", "all of a CXL memory device"),
                    ("mkfs.belugafs --size 8G /mnt/huge/pool", "in a mounted hugetlbfs"),
                    ("mount -t belugafs /dev/shm/beluga.pool /mnt/beluga", "then use it"),
                ],
                col_max=54,
            )
        with formatter.section("Exit status"):
            formatter.write_dl([(str(int(code)), code.meaning) for code in Exit])


class _Terminated(BaseException):
    """SIGTERM or SIGHUP, as an exception so that everything is cleaned up on the way out."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    def stop(signum: int, frame: FrameType | None) -> NoReturn:
        raise _Terminated

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
def _progress_bar(path: str, shown: bool) -> Iterator[Progress]:
    """A bar on standard error, if that is a terminal; else nothing."""
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
        TextColumn("taking memory"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(path, total=None)
        yield lambda done_bytes, total_bytes: bar.update(
            task, completed=done_bytes, total=total_bytes
        )


_KIND_NAMES = {
    "file": "regular file",
    "tmpfs": "file in memory (tmpfs)",
    "hugetlbfs": "file in huge pages (hugetlbfs)",
    "devdax": "DAX device",
}


def _summary_lines(summary: Summary) -> Iterator[str]:
    rows = [
        ("size", f"{format_size(summary.size_bytes)} ({summary.size_bytes} bytes)"),
        ("payload", f"{format_size(summary.data_bytes)} for blocks"),
        ("inodes", f"{summary.inodes} (files and directories at most)"),
        ("uuid", summary.uuid),
        ("kind", _KIND_NAMES[summary.kind] + (", sparse" if summary.sparse else "")),
        ("huge pages", summary.huge_pages),
    ]
    if summary.label:
        rows.insert(0, ("label", summary.label))
    if summary.numa_node is not None:
        rows.append(("NUMA node", str(summary.numa_node)))
    yield f"made a belugafs pool: {summary.path}"
    yield from (f"  {name:<11} {value}" for name, value in rows)
    yield from (f"note: {note}" for note in summary.notes)
    yield f"next: {summary.next_command}"


def _say(text: str) -> None:
    """Print a line; a path in it may be any bytes, and the reader may have gone."""
    try:
        click.echo(os.fsencode(text))
    except BrokenPipeError:
        # Keep Python from failing over it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())


def _size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else parse_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _label(ctx: click.Context, param: click.Parameter, value: str) -> bytes:
    label = os.fsencode(value)
    if len(label) > LABEL_BYTES_MAX or b"\0" in label:
        raise click.BadParameter(f"a label has at most {LABEL_BYTES_MAX} bytes, and no NUL")
    return label


@click.command(
    name="mkfs.belugafs",
    cls=_Command,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("pool", type=click.Path())
@click.option(
    "--size",
    metavar="SIZE",
    callback=_size,
    help="Size of the pool: 8G, 512M, 1.5T (powers of 1024). Needed to make a new file; "
    "default for an existing file or device: all of it.",
)
@click.option(
    "--max-size",
    metavar="SIZE",
    callback=_size,
    help="Keep room in the metadata to let the pool grow up to this size later. "
    "[default: the size]",
)
@click.option(
    "--inodes",
    type=click.IntRange(1, INODES_MAX),
    help="How many files and directories there can be at most. [default: by size]",
)
@click.option(
    "--hosts",
    type=click.IntRange(1, HOSTS_MAX),
    default=HOSTS_MAX,
    show_default=True,
    help="How many hosts can mount the pool at the same time.",
)
@click.option("-L", "--label", default="", callback=_label, help="A name of your choice.")
@click.option(
    "--sparse",
    is_flag=True,
    help="Don't take the memory now. Quick, but first writes are slow, and fail if the memory "
    "is gone by then: for experiments.",
)
@click.option(
    "-f",
    "--force",
    count=True,
    help="Overwrite data that is there, an old pool too. Twice: even while the pool is mounted "
    "or open, under the feet of its users.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors and warnings.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.version_option(package_name="belugafs", prog_name="mkfs.belugafs")
def main(
    pool: str,
    size: int | None,
    max_size: int | None,
    inodes: int | None,
    hosts: int,
    label: bytes,
    sparse: bool,
    force: int,
    quiet: bool,
    as_json: bool,
) -> int:
    """Make a belugafs pool: the memory that holds an LLM's KV cache as files.

    POOL is a file to be made (in memory: /dev/shm/NAME), an existing file, a file in a mounted
    hugetlbfs, or a DAX device such as /dev/dax0.0. All of its memory is taken at once, so that
    it cannot run out later. A file gets mode 0600.

    Nothing is overwritten unless --force is given.
    """
    request = Request(pool, size, max_size, inodes or 0, hosts, label, sparse, force)
    summary: Summary | None = None
    try:
        with _terminable(), _progress_bar(pool, shown=not quiet and not as_json) as progress:
            summary = make_pool(request, progress=progress, warn=_warn)
    except PoolError as error:
        return _fail(str(error), error.exit_code, as_json)
    except (KeyboardInterrupt, _Terminated) as error:
        if summary is None:  # else it was all done
            if isinstance(error, _Terminated):
                return _fail("terminated; no pool was made", Exit.TERMINATED, as_json)
            return _fail("interrupted; no pool was made", Exit.INTERRUPTED, as_json)
    if as_json:
        _say(json.dumps({"ok": True, **asdict(summary)}))
    elif not quiet:
        for line in _summary_lines(summary):
            _say(line)
    return Exit.OK


def _warn(message: str) -> None:
    click.echo(f"mkfs.belugafs: WARNING: {message}", err=True)


def _fail(message: str, code: Exit, as_json: bool) -> int:
    click.echo(f"mkfs.belugafs: {message}", err=True)
    if as_json:
        _say(json.dumps({"ok": False, "error": message, "code": code.name, "exit_code": code}))
    return code


if __name__ == "__main__":
    main()

"""``fsck.belugafs [-n | -y | -p] [--data] [--json] POOL``: check and repair a pool that is not
mounted.

Exit codes are fsck(8)'s, as bits: 0 clean, 1 problems found and repaired, 4 problems left, 8 could
not be checked or repaired, 16 usage, 32 interrupted. What a finding means, and why a repair may
be killed at any instant, is in docs/fsck-codes.md.
"""

import argparse
import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from belugafs import _native, hostid
from belugafs.attach import open_when_free
from belugafs.cmdline import Parser
from belugafs.exits import Exit
from belugafs.pool import PoolError, require_pool
from belugafs.rundir import has_readers
from belugafs.units import format_size

CLEAN = 0
REPAIRED = 1
PROBLEMS = 4
FAILED = 8
USAGE = 16
CANCELLED = 32

Finding = tuple[int, str, str]
"""(severity, code, text); severity 0 is a note, 1 a problem, 2 what a repair has changed."""

Ask = Callable[[bool, str], bool]
"""(something will be lost, question) -> whether to do it."""

Progress = Callable[[str, int, int], object]
"""(what is being done, how far, of how much)."""

_SEVERITIES = ("note", "problem", "repair")


def _parser() -> Parser:
    parser = Parser(
        usage_code=USAGE,
        prog="fsck.belugafs",
        description="Check a belugafs pool, and repair it. It must not be mounted.\n\n"
        "Without -n, -y or -p each step of a repair is asked about, on a terminal.",
        epilog="exit status: 0 clean, 1 problems repaired, 4 problems left, 8 could not be checked "
        "or repaired,\n16 usage, 32 interrupted\n\n"
        "A repair drops what cannot be proved: files whose record or content is damaged, names\n"
        "that lead nowhere. What has lost its name and is whole goes to /lost+found. It may be\n"
        "killed at any time: the pool is as it was, or repaired.\n\n"
        "examples:\n"
        "  fsck.belugafs -n /dev/dax0.0         look only\n"
        "  fsck.belugafs -y --data pool.img     repair all, with every block's content checked",
    )
    parser.add_argument("pool", help="a file or /dev/daxX.Y")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("-n", dest="no", action="store_true", help="check only, write nothing")
    mode.add_argument("-y", dest="yes", action="store_true", help="repair, whatever that drops")
    mode.add_argument(
        "-p",
        "-a",
        dest="auto",
        action="store_true",
        help="repair what loses nothing, for boot scripts",
    )
    parser.add_argument(
        "-f", dest="force", action="store_true", help="no effect: always checks all"
    )
    parser.add_argument(
        "--data", action="store_true", help="read all blocks, check their checksums"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument(
        "--gone",
        metavar="SLOT",
        type=int,
        action="append",
        default=[],
        help="the host that holds this slot of the pool will never come back (may be given again)",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    ask = _answer(parser, arguments)
    findings: list[Finding] = []
    with _progress(shown=not arguments.json) as (progress, paused):

        def found(severity: int, code: str, text: str) -> None:
            findings.append((severity, code, text))
            if not arguments.json:
                with paused():
                    line = f"{_SEVERITIES[severity]}: {code}: {text}\n"
                    sys.stdout.buffer.write(os.fsencode(line))
                    sys.stdout.buffer.flush()

        def asked(loses: bool, question: str) -> bool:
            with paused():
                return ask is None or ask(loses, question)

        try:
            counts = check(
                arguments.pool,
                arguments.data,
                found,
                repair=not arguments.no,
                gone=arguments.gone,
                ask=asked,
                progress=progress,
            )
        except PoolError as error:
            return _failed(arguments.pool, str(error), error.exit_code, findings, arguments.json)
        except KeyboardInterrupt:
            print("fsck.belugafs: interrupted", file=sys.stderr)
            return CANCELLED
    code = PROBLEMS if counts["left"] else CLEAN
    if counts["changed"]:
        code |= REPAIRED
    if arguments.json:
        print(json.dumps(_result(arguments.pool, code, counts, findings)))
    else:
        _summary(arguments.pool, counts)
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    return code


def check(
    pool: str,
    data: bool,
    found: Callable[[int, str, str], object],
    *,
    repair: bool = False,
    gone: Sequence[int] = (),
    ask: Ask | None = None,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Check a pool, and repair it if asked to; the counts of the core come back.

    ``found`` is called for each finding, ``ask`` before each step of a repair (None: all are
    done). ``gone`` are host slots whose hosts will never come back. Of the counts, ``problems``
    are those found first, ``left`` those that are still there.

    Raises PoolError where it cannot be done: no pool, mounted here or attached by another host,
    unreadable, both superblocks damaged, a newer format, no room for a repair.
    """
    with open_when_free(pool, readonly=not repair, lock="exclusive") as opened:
        require_pool(opened.fd, opened.info)
        if repair and has_readers(opened.fd):
            raise PoolError(
                f"{pool} isn't mounted, but processes still read it in place: end them first "
                f"(fuser {pool})",
                Exit.IN_USE,
            )
        try:
            return _native.fsck(
                opened.fd,
                opened.info.size_bytes,
                data,
                found,
                repair=repair,
                host_uuid=hostid.host_uuid(),
                boot_id=hostid.boot_id(),
                gone=sum(1 << slot for slot in set(gone)),
                ask=ask,
                progress=progress,
                data_fd=opened.data_fd,
            )
        except _native.CoreError as error:
            code = Exit.IN_USE if error.errno == errno.EBUSY else Exit.IO_ERROR
            raise PoolError(f"{pool}: {error.strerror}", code) from error


def _answer(parser: Parser, arguments: argparse.Namespace) -> Ask | None:
    """Who answers the questions of a repair. Ends the program where nobody can."""
    if any(not 0 <= slot < 16 for slot in arguments.gone):
        parser.error("--gone: host slots are 0 to 15")
    if arguments.no or arguments.yes:
        return None
    if arguments.auto:
        return lambda loses, question: not loses
    if arguments.json or not sys.stdin.isatty():
        parser.error("standard input is no terminal, nobody can be asked: say -n, -y or -p")
    return _ask_on_terminal


def _ask_on_terminal(loses: bool, question: str) -> bool:
    import click

    try:
        return click.confirm(question + "?", default=False)
    except click.Abort:
        raise KeyboardInterrupt from None


@contextlib.contextmanager
def _progress(shown: bool) -> Iterator[tuple[Progress | None, Callable[[], Any]]]:
    """(progress, context in which something is printed): with a bar on standard error, if that
    is a terminal."""
    if not shown or not sys.stderr.isatty():
        yield None, contextlib.nullcontext
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    with Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("checking", total=None)

        def advance(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=max(total, 1))

        @contextlib.contextmanager
        def paused() -> Iterator[None]:
            bar.stop()
            try:
                yield
            finally:
                bar.start()

        yield advance, paused


def _result(
    pool: str, code: int, counts: dict[str, int] | None, findings: Sequence[Finding]
) -> dict[str, Any]:
    return {
        "ok": counts is not None and counts["left"] == 0,
        "pool": pool,
        "exit": code,
        "counts": counts,
        "findings": [
            {"severity": _SEVERITIES[severity], "code": name, "text": text}
            for severity, name, text in findings
        ],
    }


def _failed(pool: str, text: str, code: Exit, findings: Sequence[Finding], as_json: bool) -> int:
    print(f"fsck.belugafs: {text}", file=sys.stderr)
    if as_json:
        result = {**_result(pool, FAILED, None, findings), "error": text, "code": code.name}
        print(json.dumps(result))
    return FAILED


def _summary(pool: str, counts: dict[str, int]) -> None:
    problems, left = counts["problems"], counts["left"]
    verdict = "clean" if problems == 0 else f"{problems} problem{'s' if problems > 1 else ''}"
    if problems and left == 0:
        verdict += ", all repaired"
    elif left != problems:
        verdict += f", {left} of them left"
    line = (
        f"{pool}: {verdict}, {counts['objects']} objects, {counts['entries']} names, "
        f"{counts['blocks']} blocks, {counts['pages']} metadata pages"
    )
    if counts["dropped"]:
        line += f"; {counts['dropped']} dropped"
    if counts["put_back"]:
        line += f"; {counts['put_back']} put into /lost+found"
    if counts["bytes_checked"]:
        line += f"; {format_size(counts['bytes_checked'])} of data checked"
    sys.stdout.buffer.write(os.fsencode(line) + b"\n")


if __name__ == "__main__":
    sys.exit(main())

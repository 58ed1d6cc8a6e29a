"""``fsck.belugafs [-n] [--data] [--json] POOL``: check a pool that is not mounted.

Checks and says; nothing is written. Repairing (``-y``) comes with a later version, and until
then asking for it is a usage error rather than a check that looks like a repair.

Exit codes are fsck(8)'s: 0 clean, 4 problems found, 8 could not be checked, 16 usage,
32 interrupted.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence

from belugafs import _native
from belugafs.attach import open_when_free
from belugafs.cmdline import Parser
from belugafs.exits import Exit
from belugafs.pool import PoolError, require_pool
from belugafs.units import format_size

CLEAN = 0
PROBLEMS = 4
FAILED = 8
USAGE = 16
CANCELLED = 32

Finding = tuple[int, str, str]
"""(severity, code, text); severity 0 is a note, 1 a problem."""


def _parser() -> Parser:
    parser = Parser(
        usage_code=USAGE,
        prog="fsck.belugafs",
        description="Check a belugafs pool. It must not be mounted; nothing is written to it.",
        epilog="exit status: 0 clean, 4 problems found, 8 could not be checked, 16 usage, "
        "32 interrupted",
    )
    parser.add_argument("pool", help="a file or /dev/daxX.Y")
    parser.add_argument("-n", dest="no", action="store_true", help="check only (always so)")
    parser.add_argument("-y", dest="yes", action="store_true", help="repair: not in this version")
    parser.add_argument(
        "-p", "-a", dest="auto", action="store_true", help="as -n, for boot scripts"
    )
    parser.add_argument(
        "-f", dest="force", action="store_true", help="no effect: always checks all"
    )
    parser.add_argument(
        "--data", action="store_true", help="read all blocks, check their checksums"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().parse_args(argv)
    if arguments.yes:
        print(
            "fsck.belugafs: -y: this version finds problems, and cannot repair them yet; "
            "check with -n. A pool with problems can still be mounted with -o ro to save what "
            "is readable",
            file=sys.stderr,
        )
        return USAGE
    findings: list[Finding] = []

    def found(severity: int, code: str, text: str) -> None:
        findings.append((severity, code, text))
        if not arguments.json:
            print(f"{'problem' if severity else 'note'}: {code}: {text}")

    try:
        counts = check(arguments.pool, arguments.data, found)
    except PoolError as error:
        return _failed(str(error), error.exit_code, arguments.json)
    except KeyboardInterrupt:
        return CANCELLED
    if arguments.json:
        keys = ("severity", "code", "text")
        print(
            json.dumps(
                {
                    "ok": counts["problems"] == 0,
                    "pool": arguments.pool,
                    "counts": counts,
                    "findings": [dict(zip(keys, finding, strict=True)) for finding in findings],
                }
            )
        )
    else:
        _summary(arguments.pool, counts)
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    return CLEAN if counts["problems"] == 0 else PROBLEMS


def check(pool: str, data: bool, found: Callable[[int, str, str], object]) -> dict[str, int]:
    """Check a pool and call ``found`` for each finding; the counts of the core come back.

    Raises PoolError where there is nothing to check: no pool, mounted, unreadable.
    """
    with open_when_free(pool, readonly=True, lock="exclusive") as opened:
        require_pool(opened.fd, opened.info)
        try:
            return _native.fsck(opened.fd, opened.info.size_bytes, data, found)
        except _native.CoreError as error:
            raise PoolError(f"{pool}: {error.strerror}", Exit.IO_ERROR) from error


def _failed(text: str, code: Exit, as_json: bool) -> int:
    print(f"fsck.belugafs: {text}", file=sys.stderr)
    if as_json:
        print(json.dumps({"ok": False, "error": text, "code": code.name}))
    return FAILED


def _summary(pool: str, counts: dict[str, int]) -> None:
    problems = counts["problems"]
    verdict = "clean" if problems == 0 else f"{problems} problem{'s' if problems > 1 else ''}"
    line = (
        f"{pool}: {verdict}, {counts['objects']} objects, {counts['entries']} names, "
        f"{counts['blocks']} blocks, {counts['pages']} metadata pages"
    )
    if counts["bytes_checked"]:
        line += f", {format_size(counts['bytes_checked'])} of data checked"
    sys.stdout.buffer.write(os.fsencode(line) + b"\n")


if __name__ == "__main__":
    sys.exit(main())

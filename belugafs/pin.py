"""``belugafs pin`` and ``belugafs unpin``: which files of a mount eviction has to leave alone.

A pin is the extended attribute ``user.beluga.pin`` of a file or directory, ``hard`` or ``soft``,
and lives in the pool, so it outlasts the mount. What it does is the core's business.
"""

import errno
import json
import os
from collections.abc import Callable, Sequence

import click

from belugafs import mounts
from belugafs.command import Command, json_option, say
from belugafs.exits import Exit

ATTRIBUTE = "user.beluga.pin"
_EXITS = (
    Exit.OK,
    Exit.USAGE,
    Exit.NOT_FOUND,
    Exit.PERMISSION,
    Exit.NO_SPACE,
    Exit.IO_ERROR,
    Exit.UNSUPPORTED,
)

_paths = click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path())


@click.command(
    "pin",
    cls=Command,
    short_help="Keep files of a mount from being evicted.",
    examples=[
        ("belugafs pin /mnt/beluga/system-prompts", "all that is in there never goes"),
        ("belugafs pin --soft /mnt/beluga/tenant-a", "goes last, when nothing else is left"),
        ("getfattr -n user.beluga.pin FILE", "is it pinned, and how"),
    ],
    exits=_EXITS,
)
@click.option("--hard", "how", flag_value="hard", default=True, help="Never evict. [default]")
@click.option("--soft", "how", flag_value="soft", help="Evict only when nothing else is left.")
@json_option
@_paths
def pin_command(how: str, as_json: bool, paths: Sequence[str]) -> int:
    """Pin each PATH in a mount: a file, or a directory with all that is and will be in it.

    Pins stay over an unmount; unpin takes them away. They keep nothing from being removed or
    replaced.
    """

    def pin(path: str) -> None:
        os.setxattr(path, ATTRIBUTE, how.encode())

    return _each(paths, pin, how, as_json)


@click.command(
    "unpin",
    cls=Command,
    short_help="Let files of a mount be evicted again.",
    examples=[("belugafs unpin /mnt/beluga/system-prompts", "undo what pin has done")],
    exits=_EXITS,
)
@json_option
@_paths
def unpin_command(as_json: bool, paths: Sequence[str]) -> int:
    """Take the pin of each PATH away. One that is not pinned is fine, too."""

    def unpin(path: str) -> None:
        try:
            os.removexattr(path, ATTRIBUTE)
        except OSError as error:
            if error.errno != errno.ENODATA:
                raise

    return _each(paths, unpin, None, as_json)


def _each(
    paths: Sequence[str], change: Callable[[str], None], state: str | None, as_json: bool
) -> int:
    """Do all that can be done; the exit code is that of the first failure."""
    code = Exit.OK
    results = []
    for path in paths:
        text = None
        try:
            os.lstat(path)
            if mounts.mount_holding(path) is None:
                raise OSError(errno.ENOTSUP, "not on a belugafs mount")
            change(path)
        except OSError as error:
            text = error.strerror or str(error)
            code = code or _exit_of(error.errno)
            click.echo(os.fsencode(f"belugafs: {path}: {text}"), err=True)
        results.append({"path": path, "pin": None if text else state, "error": text})
    if as_json:
        say(json.dumps({"ok": code == Exit.OK, "exit_code": code, "paths": results}))
    return code


def _exit_of(number: int | None) -> Exit:
    if number in (errno.ENOENT, errno.ENOTDIR):
        return Exit.NOT_FOUND
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Exit.PERMISSION
    if number in (errno.EDQUOT, errno.ENOSPC):
        return Exit.NO_SPACE
    return Exit.UNSUPPORTED if number in (errno.ENOTSUP, errno.EINVAL) else Exit.IO_ERROR

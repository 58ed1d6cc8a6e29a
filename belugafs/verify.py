"""``belugafs verify``: compare every file with its checksums, in place.

Of a mount, the daemon does it (:mod:`belugafs.control_commands`): nothing is copied through the
kernel, and no block counts as used because of it. A pool that isn't mounted, or is mounted
read-only, is attached and checked here.
"""

import contextlib
import errno
import json
import os
import stat
import time
from collections.abc import Iterator
from typing import Any, Protocol

import click

from belugafs import _native, attach, mounts, poolwalk, status
from belugafs.command import Command, bytes_bar, json_option, say
from belugafs.control_client import Daemon
from belugafs.exits import Exit
from belugafs.listing import split_pool_path
from belugafs.options import MountOptions
from belugafs.pool import PoolError, Progress
from belugafs.poolwalk import GONE, File
from belugafs.units import format_size

_SLICE_BYTES = 32 << 20  # checked between two steps of the bar
_BATCH_FILES = 128  # asked of a daemon at once

Report = dict[str, Any]
"""``pool``, ``mount_point``, ``files`` (looked at), ``checked_bytes``, ``unchecked_bytes`` (being
written, or without checksums), ``elapsed_s``, and ``damaged``: a list of ``path``, ``offset`` and
``size_bytes`` of the first piece that is wrong, ``pieces`` (how many are), ``dropped``."""


Found = dict[str, int]
"""What ``Pool.verify`` says, or ``error``: an errno."""


class Source(Protocol):
    """Where files are found, checked and dropped."""

    def files(self, path: str) -> Iterator[File]: ...
    def check(self, files: list[tuple[File, int]]) -> list[Found]:
        """Compare files, from offsets on; results for as many of them as were begun."""
        ...

    def drop(self, file: File) -> None:
        """Remove a file, unless another one has its name by now."""
        ...


@click.command(
    "verify",
    cls=Command,
    short_help="Compare all files, or some, with their checksums.",
    examples=[
        ("belugafs verify /mnt/beluga", "all of a mount"),
        ("belugafs verify /mnt/beluga/vllm/ab", "what is below a directory, or one file"),
        ("belugafs verify /dev/shm/beluga.pool", "a pool that is not mounted"),
        ("belugafs verify --repair-drop /mnt/beluga", "remove what is damaged; it is a cache"),
    ],
    exits=(
        Exit.OK,
        Exit.USAGE,
        Exit.NOT_FOUND,
        Exit.PERMISSION,
        Exit.IN_USE,
        Exit.FOREIGN,
        Exit.EMPTY,
        Exit.IO_ERROR,
        Exit.DAMAGED,
    ),
)
@click.option("--repair-drop", is_flag=True, help="Remove each damaged file.")
@json_option
@click.argument("where", required=False, metavar="[PATH|MOUNT|POOL]", type=click.Path())
def verify_command(repair_drop: bool, as_json: bool, where: str | None) -> int:
    """Read all data of a mount, of what is below PATH, or of a pool, and compare it with its
    checksums. POOL:PATH is a path in a pool that is not mounted.

    Done by the daemon, in the pool's memory, at root's wish and that of the user who mounted it.
    Names and other metadata are checked by fsck.belugafs. Damaged files can't be read; an engine
    computes them again once they are gone.

    Exit status 25 if damaged files are left.
    """
    place = where if where is not None else mounts.only_mount().mount_point
    with bytes_bar("checking", shown=not as_json) as progress:
        report = verify(place, drop=repair_drop, progress=progress)
    left = [item for item in report["damaged"] if not item["dropped"]]
    code = Exit.DAMAGED if left else Exit.OK
    if as_json:
        say(json.dumps({"ok": not left, "exit_code": code, **report}))
    else:
        for line in _lines(report):
            say(line)
    return code


def _lines(report: Report) -> Iterator[str]:
    for item in report["damaged"]:
        where = f"bytes {item['offset']} to {item['offset'] + item['size_bytes'] - 1}"
        if item["pieces"] > 1:
            where += f" and {item['pieces'] - 1} more pieces"
        yield f"damaged: {item['path']}: {where}{'; removed' if item['dropped'] else ''}"
    checked, elapsed_s = report["checked_bytes"], report["elapsed_s"]
    line = f"{report['files']} files, {format_size(checked)} checked in {elapsed_s:.1f} s"
    line += f" ({format_size(int(checked / max(elapsed_s, 1e-3)))}/s)"
    if report["unchecked_bytes"]:
        line += f", {format_size(report['unchecked_bytes'])} without checksums (being written)"
    damaged = len(report["damaged"])
    yield line + (f": {damaged} damaged" if damaged else ": all is well")


def verify(where: str, *, drop: bool, progress: Progress) -> Report:
    """Check a path of a mount, a mount, POOL or POOL:PATH; with ``drop``, remove what is
    damaged. Raises PoolError."""
    pool_path, inside = where, ""
    mount = mounts.mount_holding(where)
    if mount is None:
        pool_path, inside = split_pool_path(where)
        of_pool = mounts.mounts_of_pool(pool_path)
        mount = of_pool[0] if of_pool else None
        if mount is not None:
            where = os.path.join(mount.mount_point, inside.strip("/"))
        else:
            mounts.refuse_plain_directory(pool_path, where)
    if mount is not None:
        pool_path = mount.source
        if status.report(mount.mount_point)["config"].get("readonly") != "yes":
            total = _used_bytes(status.report(where)) if _is_top(mount, where) else 0
            with Daemon(mount) as daemon:
                report = _run(_Mounted(daemon), where, drop, progress, total)
            return {"pool": pool_path, "mount_point": mount.mount_point, **report}
        inside = os.path.relpath(mounts.real_place(where), mount.mount_point)
    top = "/" + ("" if inside == "." else inside.strip("/"))
    with _attached(pool_path, writable=drop) as pool:
        total = pool.statfs()["used_granules"] * _native.GRANULE_BYTES if top == "/" else 0
        report = _run(_Pool(pool), top, drop, progress, total)
    return {
        "pool": os.path.realpath(pool_path),
        "mount_point": mount.mount_point if mount is not None else None,
        **report,
    }


def _is_top(mount: Any, where: str) -> bool:
    return bool(mounts.real_place(where) == mount.mount_point)


def _used_bytes(report: Report) -> int:
    return int(report["stats"]["used_granules"]) * _native.GRANULE_BYTES


@contextlib.contextmanager
def _attached(path: str, *, writable: bool) -> Iterator[_native.Pool]:
    if not writable:
        with attach.attached_readonly(path) as (pool, _):
            yield pool
        return
    opened, _ = attach.open_checked(path, readonly=False, lock="exclusive")
    with opened, attach.attach(opened, MountOptions(), wait_s=attach.LOCK_WAIT_S) as pool:
        yield pool


def _run(source: Source, top: str, drop: bool, progress: Progress, total_bytes: int) -> Report:
    started = time.monotonic()
    report: Report = {"files": 0, "checked_bytes": 0, "unchecked_bytes": 0, "damaged": []}
    damaged: dict[File, dict[str, Any]] = {}
    files = source.files(top)
    waiting: list[tuple[File, int]] = []
    while True:
        while len(waiting) < _BATCH_FILES and (file := next(files, None)) is not None:
            waiting.append((file, 0))
        if not waiting:
            break
        results = source.check(waiting)
        again = []
        for (checked, _), found in zip(waiting, results, strict=False):
            error = found.get("error", 0)
            if error in GONE:
                continue
            if error not in (0, errno.EIO):
                raise PoolError(f"{checked.path}: {os.strerror(error)}", Exit.IO_ERROR)
            if error or found["bad_chunks"]:
                item = damaged.setdefault(
                    checked,
                    {
                        "path": checked.path,
                        "offset": found.get("bad_off", 0),
                        "size_bytes": found.get("bad_bytes", 0),
                        "pieces": 0,
                        "dropped": False,
                    },
                )
                item["pieces"] += found.get("bad_chunks", 1)
            report["checked_bytes"] += found.get("checked_bytes", 0)
            report["unchecked_bytes"] += found.get("unchecked_bytes", 0)
            if error or found["done"]:
                report["files"] += 1
            else:
                again.append((checked, found["next"]))
        waiting = again + waiting[len(results) :]
        progress(report["checked_bytes"] + report["unchecked_bytes"], total_bytes)
    if drop:
        for file, item in damaged.items():
            source.drop(file)
            item["dropped"] = True
    report["damaged"] = list(damaged.values())
    report["elapsed_s"] = round(time.monotonic() - started, 3)
    return report


class _Mounted:
    """Files of a mount: found like by any program, checked by the daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def files(self, path: str) -> Iterator[File]:
        linked: set[int] = set()
        try:
            top = os.lstat(path)
        except OSError as error:
            code = Exit.NOT_FOUND if error.errno in GONE else Exit.PERMISSION
            raise PoolError(f"{path}: {error.strerror}", code) from error
        if stat.S_ISREG(top.st_mode):
            yield File(path, top.st_ino)
        pending = [path] if stat.S_ISDIR(top.st_mode) else []
        while pending:
            try:
                entries = os.scandir(pending.pop())
            except OSError as error:
                if error.errno in GONE:
                    continue
                raise PoolError(f"{error.filename}: {error.strerror}", Exit.PERMISSION) from error
            with entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif entry.is_file(follow_symlinks=False) and entry.inode() not in linked:
                        linked.add(entry.inode())
                        yield File(entry.path, entry.inode())

    def check(self, files: list[tuple[File, int]]) -> list[Found]:
        words = [word for file, offset in files for word in (file.ino, offset)]
        answer = self._daemon.ask("verify", _SLICE_BYTES, *words)
        found: list[Found] = answer["files"]
        return found

    def drop(self, file: File) -> None:
        try:
            if os.lstat(file.path).st_ino == file.ino:
                os.unlink(file.path)
        except OSError as error:
            if error.errno not in GONE:
                raise PoolError(f"{file.path}: {error.strerror}", Exit.PERMISSION) from error


class _Pool:
    """Files of a pool that is attached here."""

    def __init__(self, pool: _native.Pool) -> None:
        self._pool = pool

    def _at(self, path: str) -> tuple[int, str, _native.Attr]:
        """(inode of the directory, name in it, attributes) of a path."""
        parent, last, attr = _native.ROOT_INO, "", self._pool.getattr(_native.ROOT_INO)
        for name in filter(None, path.split("/")):
            parent, last = attr.ino, name
            try:
                attr = self._pool.lookup(parent, name)
            except _native.CoreError as error:
                raise PoolError(f"{path} does not exist", Exit.NOT_FOUND) from error
        return parent, last, attr

    def files(self, path: str) -> Iterator[File]:
        return poolwalk.files(self._pool, path, self._at(path)[2])

    def check(self, files: list[tuple[File, int]]) -> list[Found]:
        found: list[Found] = []
        left = _SLICE_BYTES
        for file, offset in files:
            if found and left <= 0:
                break
            try:
                result = self._pool.verify(file.ino, offset, left)
                left -= result["checked_bytes"] + result["unchecked_bytes"]
            except _native.CoreError as error:
                result = {"error": error.errno or 0}
            found.append(result)
        return found

    def drop(self, file: File) -> None:
        parent, name, _ = self._at(file.path)
        self._pool.unlink(parent, name)

"""What ``belugafs ls`` prints: files of a mount by ordinary calls, of a pool by the core."""

import json
import os
import stat
import time
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from belugafs import _native, attach, mounts
from belugafs.exits import Exit
from belugafs.pool import PoolError

_BATCH = 256


class Item(NamedTuple):
    """One file. cls, state and pin are ``user.beluga.class``, ``.state`` and ``.pin``; empty
    where there is none."""

    path: str
    mode: int
    nlink: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    cls: str
    state: str
    target: str = ""
    pin: str = ""


class _Source(Protocol):
    def item(self, path: str) -> Item: ...
    def names(self, path: str) -> Iterator[str]: ...


def lines(where: str, *, long: bool, recursive: bool, as_json: bool) -> Iterator[str]:
    """The lines for a path in a mount, POOL, or POOL:PATH. Raises PoolError."""
    if mounts.mount_holding(where) is not None:
        yield from _lines(_Mounted(), where, long, recursive, as_json)
        return
    pool_path, inside = split_pool_path(where)
    places = mounts.mounts_of_pool(pool_path)
    if places:
        path = os.path.join(places[0].mount_point, inside.lstrip("/"))
        yield from _lines(_Mounted(), path, long, recursive, as_json)
        return
    with attach.attached_readonly(pool_path) as (pool, _):
        yield from _lines(_Pool(pool), "/" + inside.strip("/"), long, recursive, as_json)


def split_pool_path(where: str) -> tuple[str, str]:
    """POOL:PATH at the last colon that leaves the name of something that exists."""
    at = len(where)
    while at > 0:
        if os.path.exists(where[:at]):
            return where[:at], where[at + 1 :]
        at = where.rfind(":", 0, at)
    return where, ""


def _lines(source: _Source, path: str, long: bool, recursive: bool, as_json: bool) -> Iterator[str]:
    try:
        top = source.item(path)
    except FileNotFoundError:
        raise PoolError(f"{path} does not exist", Exit.NOT_FOUND) from None
    if not stat.S_ISDIR(top.mode):
        yield _line(top, path, long, as_json)
        return
    pending = [path]
    first = True
    while pending:
        directory = pending.pop(0)
        if recursive and not as_json:
            yield ("" if first else "\n") + f"{directory}:"
        first = False
        below = []
        for name in sorted(source.names(directory)):
            inner = os.path.join(directory, name)
            try:
                item = source.item(inner)
            except FileNotFoundError:
                continue  # evicted or removed meanwhile
            yield _line(item, inner if as_json else name, long, as_json)
            if recursive and stat.S_ISDIR(item.mode):
                below.append(inner)
        pending[:0] = below


def _line(item: Item, shown: str, long: bool, as_json: bool) -> str:
    if as_json:
        return json.dumps(item._asdict())
    name = shown if shown.isprintable() else shown.encode("unicode_escape").decode("ascii")
    if not long:
        return name + ("/" if stat.S_ISDIR(item.mode) else "")
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(item.mtime_ns / 1e9))
    arrow = f" -> {item.target}" if item.target else ""
    return (
        f"{stat.filemode(item.mode)} {item.nlink:>3} {item.uid:>5} {item.gid:>5} "
        f"{item.size:>12} {when} {item.cls:<8} {item.state:<9} {item.pin or '-':<4} {name}{arrow}"
    )


def _mounted_fact(path: str, word: str) -> str:
    try:
        return os.getxattr(path, f"user.beluga.{word}").decode()
    except OSError:
        return ""


class _Mounted:
    """Files of a mount, as any program sees them."""

    def item(self, path: str) -> Item:
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise PoolError(f"{path}: {error.strerror}", Exit.IO_ERROR) from error
        is_file = stat.S_ISREG(found.st_mode)
        return Item(
            path,
            found.st_mode,
            found.st_nlink,
            found.st_uid,
            found.st_gid,
            found.st_size,
            found.st_mtime_ns,
            _mounted_fact(path, "class") if is_file else "",
            _mounted_fact(path, "state") if is_file else "",
            os.readlink(path) if stat.S_ISLNK(found.st_mode) else "",
            _mounted_fact(path, "pin") if is_file or stat.S_ISDIR(found.st_mode) else "",
        )

    def names(self, path: str) -> Iterator[str]:
        try:
            yield from os.listdir(path)
        except OSError as error:
            raise PoolError(f"{path}: {error.strerror}", Exit.PERMISSION) from error


class _Pool:
    """Files of a pool that is attached read-only."""

    def __init__(self, pool: _native.Pool) -> None:
        self._pool = pool

    def _find(self, path: str) -> _native.Attr:
        attr = self._pool.getattr(_native.ROOT_INO)
        for name in path.split("/"):
            if name:
                try:
                    attr = self._pool.lookup(attr.ino, name)
                except _native.CoreError as error:
                    raise FileNotFoundError(error.errno, error.strerror, path) from error
        return attr

    def _pin(self, ino: int) -> str:
        try:
            return self._fact(ino, "pin")
        except _native.CoreError:
            return ""

    def _fact(self, ino: int, word: str) -> str:
        return self._pool.getxattr(ino, f"user.beluga.{word}").decode()

    def item(self, path: str) -> Item:
        attr = self._find(path)
        is_file = stat.S_ISREG(attr.mode)
        target = self._pool.readlink(attr.ino) if stat.S_ISLNK(attr.mode) else b""
        return Item(
            path,
            attr.mode,
            attr.nlink,
            attr.uid,
            attr.gid,
            attr.size,
            attr.mtime_ns,
            self._fact(attr.ino, "class") if is_file else "",
            self._fact(attr.ino, "state") if is_file else "",
            os.fsdecode(target),
            self._pin(attr.ino),
        )

    def names(self, path: str) -> Iterator[str]:
        ino = self._find(path).ino
        after = 0
        while entries := self._pool.readdir(ino, after, _BATCH):
            for name, cookie, _, _ in entries:
                yield os.fsdecode(name)
                after = cookie

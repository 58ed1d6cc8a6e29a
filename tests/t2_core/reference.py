"""A filesystem in thirty dicts: what the core has to agree with.

Only what a caller can see is modelled: the tree, bytes, links, attributes, errno. Space and
time are not. One instance belongs to one thread.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field

# linux/falloc.h; Python's os knows none of them
KEEP_SIZE = 0x01
PUNCH_HOLE = 0x02
ZERO_RANGE = 0x10


class Refused(Exception):
    """The operation fails with this errno and changes nothing."""

    def __init__(self, code: int) -> None:
        super().__init__(errno.errorcode[code])
        self.errno = code


@dataclass
class Node:
    kind: str  # "dir", "file", "link"
    nlink: int = 1
    data: bytearray = field(default_factory=bytearray)
    names: dict[bytes, Node] = field(default_factory=dict)
    target: bytes = b""
    xattrs: dict[bytes, bytes] = field(default_factory=dict)
    parent: Node | None = None


def check_name(name: bytes) -> None:
    if len(name) > 255:
        raise Refused(errno.ENAMETOOLONG)
    if name in (b"", b".", b"..") or b"/" in name or b"\0" in name:
        raise Refused(errno.EINVAL)


class Reference:
    """The model. Directories are addressed by the Node itself, as the core does by inode."""

    def __init__(self) -> None:
        self.root = Node("dir", nlink=2)

    def lookup(self, where: Node, name: bytes) -> Node:
        check_name(name) if name not in (b".", b"..") else None
        if name not in where.names:
            raise Refused(errno.ENOENT)
        return where.names[name]

    def _free(self, where: Node, name: bytes) -> None:
        check_name(name)
        if name in where.names:
            raise Refused(errno.EEXIST)

    def mkdir(self, where: Node, name: bytes) -> Node:
        self._free(where, name)
        node = Node("dir", nlink=2, parent=where)
        where.names[name] = node
        where.nlink += 1
        return node

    def create(self, where: Node, name: bytes) -> Node:
        self._free(where, name)
        node = Node("file")
        where.names[name] = node
        return node

    def symlink(self, where: Node, name: bytes, target: bytes) -> Node:
        self._free(where, name)
        node = Node("link", target=target)
        where.names[name] = node
        return node

    def link(self, node: Node, where: Node, name: bytes) -> None:
        self._free(where, name)
        if node.kind == "dir":
            raise Refused(errno.EPERM)
        where.names[name] = node
        node.nlink += 1

    def unlink(self, where: Node, name: bytes) -> None:
        node = self.lookup(where, name)
        if node.kind == "dir":
            raise Refused(errno.EISDIR)
        del where.names[name]
        node.nlink -= 1

    def rmdir(self, where: Node, name: bytes) -> None:
        node = self.lookup(where, name)
        if node.kind != "dir":
            raise Refused(errno.ENOTDIR)
        if node.names:
            raise Refused(errno.ENOTEMPTY)
        del where.names[name]
        where.nlink -= 1
        node.nlink = 0

    def rename(self, where: Node, name: bytes, to: Node, name2: bytes) -> None:
        node = self.lookup(where, name)
        check_name(name2)
        old = to.names.get(name2)
        if old is node:
            return
        if node.kind == "dir":
            above: Node | None = to
            while above is not None:
                if above is node:
                    raise Refused(errno.EINVAL)
                above = above.parent
        if old is not None:
            if node.kind == "dir" and old.kind != "dir":
                raise Refused(errno.ENOTDIR)
            if node.kind != "dir" and old.kind == "dir":
                raise Refused(errno.EISDIR)
            if old.kind == "dir" and old.names:
                raise Refused(errno.ENOTEMPTY)
            if old.kind == "dir":
                to.nlink -= 1
                old.nlink = 0
            else:
                old.nlink -= 1
        del where.names[name]
        to.names[name2] = node
        if node.kind == "dir":
            where.nlink -= 1
            to.nlink += 1
            node.parent = to

    def write(self, node: Node, off: int, data: bytes) -> None:
        if not data:
            return  # POSIX: nothing happens, also beyond the end
        if len(node.data) < off:
            node.data.extend(bytes(off - len(node.data)))
        node.data[off : off + len(data)] = data

    def truncate(self, node: Node, size: int) -> None:
        if size < len(node.data):
            del node.data[size:]
        else:
            node.data.extend(bytes(size - len(node.data)))

    def tmpfile(self) -> Node:
        return Node("file", nlink=0)

    def fallocate(self, node: Node, mode: int, off: int, length: int) -> None:
        """mode as of fallocate(2). Of space there is enough, and nobody sees it."""
        end, size = off + length, len(node.data)
        if mode & (PUNCH_HOLE | ZERO_RANGE):
            node.data[off:end] = bytes(max(0, min(end, size) - off))
        if not mode & KEEP_SIZE and end > size:
            node.data.extend(bytes(end - size))

    def set_xattr(self, node: Node, name: bytes, value: bytes) -> None:
        node.xattrs[name] = value

    def walk(self, node: Node | None = None, path: bytes = b"") -> dict[bytes, Node]:
        found = {}
        for name, child in (node or self.root).names.items():
            found[path + os.sep.encode() + name] = child
            if child.kind == "dir":
                found.update(self.walk(child, path + os.sep.encode() + name))
        return found

"""The FUSE adapter without a kernel: its handlers against the reference model of the core."""

from __future__ import annotations

import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyfuse3
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

sys.path.insert(0, str(Path(__file__).parents[1] / "t2_core"))
from test_core_model import CoreAgainstModel, Twin

from belugafs import _native
from belugafs.control import ControlDirectory
from belugafs.transport.operations import Operations

_LISTED_AT_ONCE = 7


class Listed(Operations):
    """Readdir replies into a list: pyfuse3's own can only be made by a request."""

    @staticmethod
    def _list(token: Any, name: bytes, entry: pyfuse3.EntryAttributes, next_id: int) -> bool:
        if len(token) == _LISTED_AT_ONCE:
            return False
        token.append((name, next_id, entry.st_ino, entry.st_mode >> 12))
        return True


class Requests:
    """The calls of ``_native.Pool`` that the model makes, each by the request that it would be."""

    def __init__(self, pool: Any) -> None:
        self.operations = Listed(pool, ControlDirectory(pool, {}))
        # pyfuse3 has no requests for these; between those that it has, they are the core's calls
        self.fallocate, self.seek, self.tmpfile = pool.fallocate, pool.seek, pool.tmpfile
        self.user: Any = SimpleNamespace(uid=os.geteuid(), gid=os.getegid(), pid=os.getpid())

    def ask(self, handler: Coroutine[Any, Any, Any]) -> Any:
        """The reply. No handler waits for anything, so it is there at once."""
        try:
            handler.send(None)
        except StopIteration as reply:
            return reply.value
        except pyfuse3.FUSEError as error:
            raise OSError(error.errno, os.strerror(error.errno)) from None
        raise AssertionError("a handler waits")

    @staticmethod
    def attributes(entry: pyfuse3.EntryAttributes) -> SimpleNamespace:
        assert entry.generation == entry.st_ino >> 32
        return SimpleNamespace(
            ino=entry.st_ino, mode=entry.st_mode, nlink=entry.st_nlink, size=entry.st_size
        )

    def lookup(self, directory: int, name: bytes) -> SimpleNamespace:
        return self.attributes(self.ask(self.operations.lookup(directory, name, self.user)))

    def getattr(self, ino: int) -> SimpleNamespace:
        return self.attributes(self.ask(self.operations.getattr(ino, self.user)))

    def setattr(self, ino: int, *, size: int) -> SimpleNamespace:
        names = ("mode", "uid", "gid", "size", "atime", "mtime", "ctime")
        fields: Any = SimpleNamespace(**{f"update_{name}": name == "size" for name in names})
        wanted = pyfuse3.EntryAttributes()
        wanted.st_size = size
        reply = self.ask(self.operations.setattr(ino, wanted, fields, None, self.user))
        return self.attributes(reply)

    def mkdir(self, directory: int, name: bytes) -> SimpleNamespace:
        return self.attributes(self.ask(self.operations.mkdir(directory, name, 0o755, self.user)))

    def symlink(self, directory: int, name: bytes, target: bytes) -> SimpleNamespace:
        reply = self.ask(self.operations.symlink(directory, name, target, self.user))
        return self.attributes(reply)

    def readlink(self, ino: int) -> bytes:
        target: bytes = self.ask(self.operations.readlink(ino, self.user))
        return target

    def unlink(self, directory: int, name: bytes) -> None:
        self.ask(self.operations.unlink(directory, name, self.user))

    def rmdir(self, directory: int, name: bytes) -> None:
        self.ask(self.operations.rmdir(directory, name, self.user))

    def rename(self, directory: int, name: bytes, to: int, name2: bytes) -> None:
        self.ask(self.operations.rename(directory, name, to, name2, 0, self.user))

    def link(self, ino: int, directory: int, name: bytes) -> SimpleNamespace:
        return self.attributes(self.ask(self.operations.link(ino, directory, name, self.user)))

    def readdir(self, ino: int, after: int, _: int) -> list[tuple[bytes, int, int, int]]:
        handle = self.ask(self.operations.opendir(ino, self.user))
        listed: Any = []
        while True:
            self.ask(self.operations.readdir(handle, after, listed))
            shown = [entry for entry in listed if entry[0] not in (b".", b"..")]
            if shown or not listed:
                break
            after = listed[-1][1]
            listed = []
        self.ask(self.operations.releasedir(handle))
        return shown

    def setxattr(self, ino: int, name: bytes, value: bytes) -> None:
        self.ask(self.operations.setxattr(ino, name, value, self.user))

    def getxattr(self, ino: int, name: bytes) -> bytes:
        value: bytes = self.ask(self.operations.getxattr(ino, name, self.user))
        return value

    def create(self, directory: int, name: bytes, flags: int) -> tuple[SimpleNamespace, int]:
        made = self.operations.create(directory, name, 0o644, flags | os.O_CREAT, self.user)
        info, entry = self.ask(made)
        return self.attributes(entry), info.fh

    def open(self, ino: int, flags: int) -> int:
        fh: int = self.ask(self.operations.open(ino, flags, self.user)).fh
        return fh

    def read(self, fh: int, offset: int, length: int) -> bytes:
        return bytes(self.ask(self.operations.read(fh, offset, length)))

    def write(self, fh: int, offset: int, data: bytes) -> int:
        written: int = self.ask(self.operations.write(fh, offset, data))
        return written

    def fsync(self, fh: int) -> None:
        self.ask(self.operations.fsync(fh, False))

    def flush(self, fh: int) -> None:
        self.ask(self.operations.flush(fh))

    def release(self, fh: int) -> None:
        self.ask(self.operations.release(fh))


class OperationsAgainstModel(CoreAgainstModel):
    """The rules of the core's test, through the adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.twin = Twin(Requests(self.memory.pool), _native.ROOT_INO)

    @rule(clean=st.booleans())
    def rejoin(self, clean: bool) -> None:
        self.memory.rejoin(clean)
        self.twin.pool = Requests(self.memory.pool)
        self.twin.compare()

    @invariant()
    def statfs_counts_every_object(self) -> None:
        found = self.twin.pool.ask(self.twin.pool.operations.statfs(self.twin.pool.user))
        alive = {id(node) for node in self.twin.model.walk().values()}
        assert found.f_files - found.f_ffree == 1 + len(alive)


OperationsAgainstModel.TestCase.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
test_operations_against_model = OperationsAgainstModel.TestCase

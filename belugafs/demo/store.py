"""Blocks as files in a directory, the way engines keep them: one immutable file per block.

Works on any directory. A block's file is raw page bytes, written whole under a temporary name
and renamed, so a name is either absent or complete. Every failure to read is a miss; every
failure to write is counted and forgotten: a cache must never stop its engine.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from belugafs.demo.keys import Identity
from belugafs.demo.paged import Page, PageGeometry

ReadMode = Literal["mmap", "readinto"]


@dataclass
class StoreCounts:
    """What happened so far, in blocks."""

    loaded: int = 0
    stored: int = 0
    present: int = 0  # not stored, since somebody else had
    failed_loads: int = 0
    failed_stores: int = 0


class BlockStore:
    """The blocks of one model identity below ``root``.

    ``<root>/<identity>/<hh>/<hh>/<64 hex digits>.kv``, where the two levels are the key's first
    two bytes.
    """

    def __init__(
        self, root: Path, identity: Identity, geometry: PageGeometry, read: ReadMode = "mmap"
    ) -> None:
        self.base = root / identity.directory
        self.geometry = geometry
        self.read = read
        self.counts = StoreCounts()
        self.last_error: str | None = None

    def path(self, key: bytes) -> Path:
        """Where a block with this key (32 bytes) is or would be."""
        name = key.hex()
        return self.base / name[:2] / name[2:4] / f"{name}.kv"

    def match(self, keys: Sequence[bytes]) -> int:
        """How many of ``keys``, counted from the first, are present without a gap."""
        for index, key in enumerate(keys):
            if not os.access(self.path(key), os.F_OK):
                return index
        return len(keys)

    def load_prefix(self, keys: Sequence[bytes]) -> list[Page]:
        """The pages of the longest readable prefix of ``keys``.

        A block can vanish or turn out damaged between ``match`` and here; the prefix ends
        before it.
        """
        pages: list[Page] = []
        for key in keys[: self.match(keys)]:
            try:
                pages.append(self._load(self.path(key)))
            except OSError as error:
                self.counts.failed_loads += 1
                self.last_error = str(error)
                break
        self.counts.loaded += len(pages)
        return pages

    def save(self, key: bytes, page: Page) -> bool:
        """Store a page unless the block is there; False if that failed (no space, say)."""
        path = self.path(key)
        if os.access(path, os.F_OK):
            self.counts.present += 1
            return True
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write(temporary, page.data.cast("B"))
            os.rename(temporary, path)
        except OSError as error:
            self.counts.failed_stores += 1
            self.last_error = str(error)
            with contextlib.suppress(OSError):
                temporary.unlink()
            return False
        self.counts.stored += 1
        return True

    @staticmethod
    def _write(path: Path, data: memoryview) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            written = os.write(fd, data)
            if written != len(data):
                raise OSError(f"{path}: wrote {written} of {len(data)} bytes")
        finally:
            os.close(fd)

    def _load(self, path: Path) -> Page:
        nbytes = self.geometry.nbytes
        fd = os.open(path, os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            if size != nbytes:
                raise OSError(f"{path}: {size} bytes, a block has {nbytes}")
            if self.read == "mmap":
                # The mapping keeps the file's pages alive after close and after eviction, and
                # attention reads them where they are.
                flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
                mapping = mmap.mmap(fd, nbytes, flags=flags, prot=mmap.PROT_READ)
                return self.geometry.page_on(memoryview(mapping))
            buffer = bytearray(nbytes)
            got = os.readv(fd, [buffer])
            if got != nbytes:
                raise OSError(f"{path}: read {got} of {nbytes} bytes")
            return self.geometry.page_on(buffer)
        finally:
            os.close(fd)

"""A pool in a memfd for tests of the core, joined and left as the test wants."""

from __future__ import annotations

import os
from typing import Any

import pytest

native = pytest.importorskip("belugafs._native", reason="the C core isn't built (make build)")

SIZE_BYTES = 24 << 20


class Memory:
    """``pool`` is the attached pool. ``inodes`` and other arguments are mkfs's; ``attach``
    holds the arguments of every attachment."""

    def __init__(
        self,
        *,
        size_bytes: int = SIZE_BYTES,
        inodes: int = 2048,
        attach: dict[str, Any] | None = None,
        **mkfs: Any,
    ) -> None:
        self.size_bytes = size_bytes
        self.attach = attach or {}
        self.fd = os.memfd_create("belugafs-test")
        os.ftruncate(self.fd, size_bytes)
        native.mkfs(self.fd, size_bytes, uuid=bytes(16), inodes=inodes, hosts=2, **mkfs)
        self.pool = self.join()

    def join(self) -> Any:
        return native.Pool(
            self.fd, self.size_bytes, host_uuid=b"h" * 16, boot_id=b"b" * 16, **self.attach
        )

    def rejoin(self, clean: bool = True) -> None:
        self.pool.close(clean=clean)
        self.fsck()
        self.pool = self.join()

    def fsck(self) -> dict[str, int]:
        """What fsck counts. Fails if it finds anything."""
        found: list[str] = []
        result: dict[str, int] = native.fsck(
            self.fd,
            self.size_bytes,
            True,
            lambda level, code, text: found.append(f"{code}: {text}") if level else None,
        )
        assert not found and not result["problems"], found
        return result

    def close(self) -> None:
        """Detach; fsck finds nothing."""
        if not self.pool.closed:
            self.pool.close()
        self.fsck()
        os.close(self.fd)

    # ---- short cuts ---------------------------------------------------------------------

    def put(self, where: int, name: str, size_bytes: int = 1, *, killed: bool = False) -> int:
        """A file written at once and closed: its inode number."""
        attr, fh = self.pool.create(where, name, flags=os.O_RDWR | os.O_EXCL)
        try:
            assert self.pool.write(fh, 0, bytes(size_bytes)) == size_bytes
            self.pool.flush(fh, killed=killed)
        finally:
            self.pool.release(fh)
        return int(attr.ino)

    def read(self, ino: int) -> None:
        """As somebody who uses the file does."""
        fh = self.pool.open(ino, os.O_RDONLY)
        self.pool.read(fh, 0, 1)
        self.pool.release(fh)

    def names(self, where: int) -> set[str]:
        """What is in a directory."""
        found, after = set(), 0
        while entries := self.pool.readdir(where, after):
            found.update(name.decode() for name, *_ in entries)
            after = entries[-1][1]
        return found

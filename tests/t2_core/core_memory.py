"""A pool for tests of the core, joined and left as the test wants: a flat one in a memfd, or a
directory pool in a tmpfs of its own."""

from __future__ import annotations

import mmap
import os
import subprocess
import tempfile
from typing import Any

import pytest

native = pytest.importorskip("belugafs._native", reason="the C core isn't built (make build)")

ROOT = native.ROOT_INO
MIB = 1 << 20
SIZE_BYTES = 24 << 20


KINDS = ["flat", "directory"]


def directory_pool(size_bytes: int, **mkfs: Any) -> tuple[int, int, int]:
    """An empty directory pool in a tmpfs that has no name: descriptors of its metadata and of its
    backing files, and how long the metadata is. It goes with the last descriptor."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount the tmpfs of a directory pool")
    meta_bytes = native.directory_bytes(size_bytes, inodes=mkfs.get("inodes", 0))
    with tempfile.TemporaryDirectory(prefix="belugafs-test-") as path:
        options = f"size={size_bytes},huge=within_size,nr_inodes=0,mode=0700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "belugafs-test", path], check=True)
        try:
            os.mkdir(f"{path}/data", 0o700)
            fd = os.open(f"{path}/meta", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            data_fd = os.open(f"{path}/data", os.O_RDONLY | os.O_DIRECTORY)
        finally:
            subprocess.run(["umount", "-l", path], check=True)
    os.posix_fallocate(fd, 0, meta_bytes)
    native.mkfs(fd, meta_bytes, uuid=bytes(16), hosts=1, directory_bytes=size_bytes, **mkfs)
    return fd, data_fd, meta_bytes


class Memory:
    """``pool`` is the attached pool. ``inodes`` and other arguments are mkfs's; ``attach``
    holds the arguments of every attachment."""

    def __init__(
        self,
        *,
        size_bytes: int = SIZE_BYTES,
        inodes: int = 2048,
        attach: dict[str, Any] | None = None,
        kind: str = "flat",
        **mkfs: Any,
    ) -> None:
        self.kind = kind
        self.attach = attach or {}
        self.data_fd = -1
        self.size_bytes = size_bytes
        """Of the mapping: of a directory pool the metadata."""
        if kind == "directory":
            self.fd, self.data_fd, self.size_bytes = directory_pool(
                size_bytes, inodes=inodes, **mkfs
            )
        else:
            self.fd = os.memfd_create("belugafs-test")
            os.ftruncate(self.fd, size_bytes)
            native.mkfs(self.fd, size_bytes, uuid=bytes(16), inodes=inodes, hosts=2, **mkfs)
        self.pool = self.join()
        self.taken: list[int] = []
        """Handles of a test's own, to be released before the pool is closed."""

    def join(self) -> Any:
        return native.Pool(
            self.fd,
            self.size_bytes,
            host_uuid=b"h" * 16,
            boot_id=b"b" * 16,
            data_fd=self.data_fd,
            **self.attach,
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
            data_fd=self.data_fd,
        )
        assert not found and not result["problems"], found
        return result

    def close(self) -> None:
        """Detach; fsck finds nothing."""
        if not self.pool.closed:
            self.pool.close()
        self.fsck()
        os.close(self.fd)
        if self.data_fd >= 0:
            os.close(self.data_fd)

    def backing(self, ino: int) -> str:
        """Where the backing file of an object lies, for damage behind the core's back."""
        slot, generation = ino & 0xFFFFFFFF, ino >> 32
        return f"/proc/self/fd/{self.data_fd}/{slot % 256:02x}/{slot:08x}.{generation:08x}"

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


class Writer:
    """Somebody who stores into a file without the core: as a process does that has it open, or
    mapped, through the kernel's passthrough."""

    def __init__(self, memory: Memory, ino: int = 0, name: str = "f", where: int = ROOT) -> None:
        self.pool = memory.pool
        if ino:
            self.ino, self.fh = ino, self.pool.open(ino, os.O_RDWR)
        else:
            attr, self.fh = self.pool.create(where, name, flags=os.O_RDWR)
            self.ino = attr.ino
        fd = self.pool.backing_fd(self.fh, True)
        self.fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)

    def write(self, off: int, data: bytes) -> None:
        assert os.pwrite(self.fd, data, off) == len(data)

    def map(self) -> mmap.mmap:
        return mmap.mmap(self.fd, os.fstat(self.fd).st_size)

    def close(self, *, killed: bool = False) -> None:
        """As the kernel does it: FLUSH while the file is open, RELEASE when it is not."""
        self.pool.flush(self.fh, killed=killed)
        os.close(self.fd)
        self.pool.release(self.fh)


def content(memory: Memory, ino: int) -> bytes:
    fh = memory.pool.open(ino, os.O_RDONLY)
    try:
        return bytes(memory.pool.read(fh, 0, 64 * MIB))
    finally:
        memory.pool.release(fh)

"""The places: a pool that this process attaches, a dict, and a mount through FUSE."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from belugafs import _native, build_flags, client
from belugafs.attach import attach, open_checked
from belugafs.bench.place import Place
from belugafs.exits import Exit
from belugafs.options import MountOptions
from belugafs.pool import PoolError

NAMESPACE = "bench"
KEY_BYTES = 32
_BATCH = 256
_TICK_S = 0.1
_BYTES_PER_BLOCK = 1200
"""Of metadata, more than it takes: pages of small pools are less full."""


class Store(Protocol):
    """Blocks by key, the way a program would keep them there. Keys of KEY_BYTES bytes."""

    name: str

    def fill(self, keys: Sequence[bytes], data: bytes) -> None:
        """Store a block under each."""

    def match(self, keys: Sequence[bytes]) -> int:
        """How many of the first are there without a gap."""

    def exists(self, keys: Sequence[bytes]) -> int:
        """How many of them are there."""

    def hold(self, keys: Sequence[bytes]) -> Any:
        """Views of all, that stay as they are."""

    def let_go(self, held: Any) -> None:
        """Give them back."""

    def read(self, key: bytes, into: memoryview) -> None:
        """Copy one."""

    def put(self, key: bytes, data: bytes) -> None:
        """Store one anew."""

    def remove(self, key: bytes) -> None:
        """Make room again."""

    def cpu_s(self) -> float:
        """Processor time of other processes that work for it, so far."""


class LibraryStore:
    """A pool in a file of its own, attached by this process as by a mount, and a connection."""

    name = "library"

    def __init__(
        self,
        path: str,
        data_bytes: int,
        blocks: int,
        *,
        verify: Literal["first", "always", "off"] = "first",
        region_granules: int = 0,
        populated: bool = True,
    ) -> None:
        self.path = path
        inodes = blocks + blocks // 50 + 256
        size_bytes = (data_bytes + inodes * _BYTES_PER_BLOCK + (48 << 20)) // 4096 * 4096
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.ftruncate(fd, size_bytes)
            identity = uuid.uuid4().bytes
            _native.mkfs(
                fd, size_bytes, uuid=identity, inodes=inodes, region_granules=region_granules
            )
        finally:
            os.close(fd)
        self._opened, _ = open_checked(path, readonly=False, lock="exclusive")
        self.core = attach(self._opened, MountOptions(verify=verify))
        if populated:  # as mkfs.belugafs and a mount do
            self.core.prefault(0, size_bytes)
        self._rings = _native.RingServer(self.core)
        self._stop = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="belugafs bench tick", daemon=True)
        self._ticker.start()
        self.number = self.core.ns_create(NAMESPACE)
        self.pool = self.connect()
        self.namespace = self.pool.namespace(NAMESPACE)

    def _tick(self) -> None:
        while not self._stop.wait(_TICK_S):
            with contextlib.suppress(OSError):
                self.core.tick()

    def cpu_s(self) -> float:
        return 0.0

    def connect(self) -> client.Pool:
        """Another reader, which has verified nothing yet."""
        made = _native.Client.open(*self.core.client_new(os.getpid(), os.geteuid()))
        made.serve_by(self._rings)
        return client.Pool(made, self.path)

    def close(self) -> None:
        self.pool.close()
        self._stop.set()
        self._ticker.join()
        self._rings.stop()
        self.core.close()
        self._opened.close()
        os.unlink(self.path)

    def fill(self, keys: Sequence[bytes], data: bytes) -> None:
        self.fill_from(iter(keys), data)

    def fill_from(self, keys: Iterator[bytes], data: bytes) -> None:
        """Many in each transaction, but no more than fit into one."""
        at_a_time = max(1, min(_BATCH, (16 << 20) // max(1, len(data))))
        done = False
        while not done:
            self.core.batch_begin()
            try:
                for _ in range(at_a_time):
                    key = next(keys, None)
                    if key is None:
                        done = True
                        break
                    self.core.block_put(self.number, key, data)
            except BaseException:
                self.core.batch_abort()
                raise
            self.core.batch_commit()

    def match(self, keys: Sequence[bytes]) -> int:
        return self.namespace.match(keys)

    def exists(self, keys: Sequence[bytes]) -> int:
        return int(self.namespace.exists(keys).sum())

    def hold(self, keys: Sequence[bytes]) -> tuple[client.Blocks, list[memoryview]]:
        blocks = self.namespace.read(keys)
        return blocks, [block.view for block in blocks]

    def let_go(self, held: tuple[client.Blocks, list[memoryview]]) -> None:
        held[0].close()

    def read(self, key: bytes, into: memoryview) -> None:
        from belugafs.kernels import _copy

        with self.namespace.read([key]) as blocks:
            _copy.copy(into, blocks[0].view, threads=1)

    def put(self, key: bytes, data: bytes) -> None:
        self.namespace.put(key, data)

    def remove(self, key: bytes) -> None:
        self.remove_all([key])

    def remove_all(self, keys: Sequence[bytes]) -> None:
        """And see to it that their room is free again."""
        self.namespace.delete(keys)
        self.core.tick()

    def store(self, keys: Sequence[bytes], data: bytes) -> float:
        """Reserve, copy, commit. How long all of it took but for the copies, in seconds."""
        start = time.perf_counter()
        new = self.namespace.reserve(keys, len(data))
        reserved = time.perf_counter()
        for block in new:
            block.view[:] = data
        filled = time.perf_counter()
        new.commit()
        new.drop()
        return time.perf_counter() - filled + reserved - start


class CLibrary:
    """libbelugafs as a C program has it, called with tables that are there already."""

    def __init__(self, store: LibraryStore) -> None:
        # With a connection of its own: this library is another one than the extension module's.
        path = os.path.join(os.path.dirname(build_flags.__file__), "libbelugafs.so")
        self._lib = ctypes.CDLL(path)
        self._pool = ctypes.c_void_p()
        descriptors = store.core.client_new(os.getpid(), os.geteuid())
        self._check(self._lib.bfc_open(*descriptors, ctypes.byref(self._pool)))
        self._number = ctypes.c_uint64()
        name = NAMESPACE.encode()
        self._check(self._lib.bfc_namespace(self._pool, name, ctypes.byref(self._number)))
        self._present = ctypes.create_string_buffer(1)

    def _check(self, code: int) -> int:
        if code < 0:
            raise OSError(-code, os.strerror(-code))
        return code

    def exists(self, keys: bytes) -> int:
        """How many of the keys, one after the other, are there."""
        count = len(keys) // KEY_BYTES
        if len(self._present) < count:
            self._present = ctypes.create_string_buffer(count)
        return self._check(
            self._lib.bfc_exists(self._pool, self._number, keys, KEY_BYTES, count, self._present)
        )

    def close(self) -> None:
        self._lib.bfc_close(self._pool)


class DictStore:
    """A Python dict of bytes: what a program has that shares with nobody."""

    name = "dict"

    def __init__(self) -> None:
        self.blocks: dict[bytes, bytes] = {}

    def cpu_s(self) -> float:
        return 0.0

    def fill(self, keys: Sequence[bytes], data: bytes) -> None:
        for key in keys:
            self.put(key, data)

    def match(self, keys: Sequence[bytes]) -> int:
        found, blocks = 0, self.blocks
        for key in keys:
            if key not in blocks:
                break
            found += 1
        return found

    def exists(self, keys: Sequence[bytes]) -> int:
        blocks = self.blocks
        return sum([key in blocks for key in keys])

    def hold(self, keys: Sequence[bytes]) -> list[memoryview]:
        blocks = self.blocks
        return [memoryview(blocks[key]) for key in keys]

    def let_go(self, held: list[memoryview]) -> None:
        for view in held:
            view.release()

    def read(self, key: bytes, into: memoryview) -> None:
        into[:] = self.blocks[key]

    def put(self, key: bytes, data: bytes) -> None:
        self.blocks[key] = bytes(memoryview(data))  # a copy of its own

    def remove(self, key: bytes) -> None:
        del self.blocks[key]


class FuseStore:
    """Files of a mount, one for each block. The kernel has the names for a second."""

    name = "FUSE"

    def __init__(self, place: Place) -> None:
        self._place = place
        self._directory = os.path.join(place.mount_point, NAMESPACE)
        os.mkdir(self._directory)

    def cpu_s(self) -> float:
        return self._place.daemon_cpu_s() or 0.0

    def _path(self, key: bytes) -> str:
        return f"{self._directory}/{key.hex()}"

    def fill(self, keys: Sequence[bytes], data: bytes) -> None:
        for key in keys:
            self.put(key, data)

    def match(self, keys: Sequence[bytes]) -> int:
        found = 0
        for key in keys:
            if not os.access(self._path(key), os.F_OK):
                break
            found += 1
        return found

    def exists(self, keys: Sequence[bytes]) -> int:
        return sum([os.access(self._path(key), os.F_OK) for key in keys])

    def hold(self, keys: Sequence[bytes]) -> list[mmap.mmap]:
        held = []
        for key in keys:
            fd = os.open(self._path(key), os.O_RDONLY)
            try:
                held.append(mmap.mmap(fd, 0, prot=mmap.PROT_READ))
            finally:
                os.close(fd)
        return held

    def let_go(self, held: list[mmap.mmap]) -> None:
        for mapping in held:
            mapping.close()

    def read(self, key: bytes, into: memoryview) -> None:
        fd = os.open(self._path(key), os.O_RDONLY)
        try:
            done = 0
            while done < len(into):
                got = os.preadv(fd, [into[done:]], done)
                if got == 0:
                    raise PoolError(f"{self._path(key)} is too short", Exit.IO_ERROR)
                done += got
        finally:
            os.close(fd)

    def put(self, key: bytes, data: bytes) -> None:
        path = self._path(key)
        with open(path + ".tmp", "xb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
        os.rename(path + ".tmp", path)

    def remove(self, key: bytes) -> None:
        os.unlink(self._path(key))


def free_bytes(directory: str) -> int:
    """What may be taken there without running the machine out of memory: half of what is free."""
    place = os.statvfs(directory)
    memory = Path("/proc/meminfo").read_text()
    available = int(memory.partition("MemAvailable:")[2].split()[0]) << 10
    return min(place.f_bavail * place.f_frsize, available) // 2


def blocks_that_fit(directory: str, wanted: int) -> int:
    """Blocks without data, and keys in a dict: at most ``wanted``, or what memory allows."""
    return min(wanted, free_bytes(directory) // (_BYTES_PER_BLOCK + 200))

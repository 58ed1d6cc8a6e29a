"""Others to compare with, where they are installed: LMDB on tmpfs, Mooncake's shared memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any

from belugafs.bench.library.stores import Store
from belugafs.bench.place import process_cpu_s
from belugafs.exits import Exit
from belugafs.pool import PoolError

_START_LIMIT_S = 20.0
_END_LIMIT_S = 10.0
_ROOM_BYTES = 4 << 20
"""Memory shared with Mooncake's client, for one block."""


class PeerMissing(Exception):
    """It isn't installed, or doesn't start: what to do."""


class LmdbStore:
    """LMDB in a file on tmpfs. What holds views is a read transaction."""

    name = "LMDB"

    def __init__(self, path: str, size_bytes: int) -> None:
        try:
            import lmdb
        except ImportError:
            raise PeerMissing("pip install lmdb") from None
        self._env = lmdb.open(
            path,
            map_size=size_bytes,
            subdir=False,
            sync=False,
            metasync=False,
            readahead=False,
            lock=True,
        )
        self._held: list[Any] = []

    def cpu_s(self) -> float:
        return 0.0

    def close(self) -> None:
        self._env.close()

    def fill(self, keys: Sequence[bytes], data: bytes) -> None:
        with self._env.begin(write=True) as transaction:
            for key in keys:
                transaction.put(key, data)

    def match(self, keys: Sequence[bytes]) -> int:
        found = 0
        with self._env.begin(buffers=True) as transaction:
            for key in keys:
                if transaction.get(key) is None:
                    break
                found += 1
        return found

    def exists(self, keys: Sequence[bytes]) -> int:
        with self._env.begin(buffers=True) as transaction:
            return sum([transaction.get(key) is not None for key in keys])

    def hold(self, keys: Sequence[bytes]) -> Any:
        transaction = self._env.begin(buffers=True)
        return transaction, [transaction.get(key) for key in keys]

    def let_go(self, held: Any) -> None:
        transaction, views = held
        for view in views:
            view.release()
        transaction.abort()

    def read(self, key: bytes, into: memoryview) -> None:
        with self._env.begin(buffers=True) as transaction:
            value: Any = transaction.get(key)
            into[:] = value

    def put(self, key: bytes, data: bytes) -> None:
        with self._env.begin(write=True) as transaction:
            transaction.put(key, data)

    def remove(self, key: bytes) -> None:
        with self._env.begin(write=True) as transaction:
            transaction.delete(key)


class MooncakeStore:
    """Mooncake's store with a client that shares memory with the machine's real client: a master
    and that client run as processes of this run."""

    name = "Mooncake"

    def __init__(self, directory: str, size_bytes: int) -> None:
        try:
            import mooncake
            from mooncake.store import MooncakeDistributedStore
        except ImportError as error:
            if "mooncake" in str(error):
                raise PeerMissing("pip install mooncake-transfer-engine-non-cuda") from None
            raise PeerMissing(
                f"{error}: apt install libibverbs1 librdmacm1 libnuma1 liburing2"
            ) from None
        place = os.path.dirname(mooncake.__file__)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._store: Any = None
        self._log = os.path.join(directory, "mooncake.log")
        rpc, metrics, client = (_free_port() for _ in range(3))
        try:
            self._start(place, "mooncake_master", f"-rpc_port={rpc}", f"-metrics_port={metrics}")
            _await_port(rpc, self._processes[-1])
            self._start(
                place,
                "mooncake_client",
                "-host=127.0.0.1",
                f"-port={client}",
                f"-master_server_address=127.0.0.1:{rpc}",
                "-metadata_server=P2PHANDSHAKE",
                f"-global_segment_size={-(-size_bytes // (1 << 20))} MB",
                "-protocol=tcp",
            )
            _await_port(client, self._processes[-1])
            with _errors_to(self._log):
                store = MooncakeDistributedStore()
                code = store.setup_dummy(size_bytes, size_bytes, f"127.0.0.1:{client}")
                if code:
                    raise PeerMissing(f"its client doesn't answer: {code}")
                self._store = store
                self._room = store.alloc_from_mem_pool(_ROOM_BYTES)
                store.register_buffer(self._room, _ROOM_BYTES)
        except BaseException:
            self.close()
            raise

    def _start(self, place: str, name: str, *arguments: str) -> None:
        path = os.path.join(place, name)
        if not os.access(path, os.X_OK):
            raise PeerMissing(f"chmod +x {path}")
        with open(self._log, "ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [path, *arguments, "-logtostderr"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=os.path.dirname(self._log),
                    start_new_session=True,
                )
            )

    def close(self) -> None:
        if self._store is not None:
            with _errors_to(self._log):
                self._store.close()
                self._store = None  # and its destructor
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(_END_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def cpu_s(self) -> float:
        return sum(process_cpu_s(process.pid) for process in self._processes)

    def fill(self, keys: Sequence[bytes], data: bytes) -> None:
        for key in keys:
            self.put(key, data)

    def exists(self, keys: Sequence[bytes]) -> int:
        found: list[int] = self._store.batch_is_exist([key.hex() for key in keys])
        return sum(value == 1 for value in found)

    def match(self, keys: Sequence[bytes]) -> int:
        found: list[int] = self._store.batch_is_exist([key.hex() for key in keys])
        return next((at for at, value in enumerate(found) if value != 1), len(found))

    def hold(self, keys: Sequence[bytes]) -> list[Any]:
        held = self._store.batch_get_buffer([key.hex() for key in keys])
        if any(buffer is None for buffer in held):
            raise PoolError("Mooncake gives no buffers: they don't fit", Exit.NO_SPACE)
        return [memoryview(buffer) for buffer in held]

    def let_go(self, held: list[memoryview]) -> None:
        for view in held:
            view.release()
        held.clear()

    def read(self, key: bytes, into: memoryview) -> None:
        got = self._store.get_into(key.hex(), self._room, len(into))
        if got != len(into):
            raise PoolError(f"Mooncake's get_into: {got}", Exit.IO_ERROR)
        ctypes.memmove(ctypes.addressof(ctypes.c_char.from_buffer(into)), self._room, got)

    def put(self, key: bytes, data: bytes) -> None:
        code = self._store.put(key.hex(), data)
        if code:
            raise PoolError(f"Mooncake's put: {code}", Exit.IO_ERROR)

    def remove(self, key: bytes) -> None:
        # It refuses for some seconds after a read, which leases; puts aren't read here.
        self._store.remove(key.hex())


@contextlib.contextmanager
def _errors_to(path: str) -> Iterator[None]:
    """Mooncake's libraries write to standard error, whatever they are told."""
    kept = os.dup(2)
    try:
        with open(path, "ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise PeerMissing(f"{process.args!r} ended with {process.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise PeerMissing(f"nothing listens on port {port}")


def peers(
    directory: str, size_bytes: int, stack: contextlib.ExitStack, missing: dict[str, str]
) -> Iterator[Store]:
    """Those that are here, each with room for ``size_bytes`` of blocks; the others go to
    ``missing``, with the reason."""
    lmdb_path = os.path.join(directory, "lmdb")
    for name, make in (
        ("LMDB", lambda: LmdbStore(lmdb_path, 4 * size_bytes + (64 << 20))),
        ("Mooncake", lambda: MooncakeStore(directory, 2 * size_bytes + (64 << 20))),
    ):
        try:
            store = make()
        except PeerMissing as reason:
            missing[name] = str(reason)
            continue
        stack.callback(store.close)
        yield store

"""Blocks read in place by ``belugafs.connect``: no copy, and never another block's bytes."""

from __future__ import annotations

import errno
import gc
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import belugafs

pytestmark = pytest.mark.flat_pool

KEY_BYTES = 32
BLOCK_BYTES = 300 << 10
"""Two chunks, of which the second isn't whole."""


def key(number: int) -> bytes:
    return number.to_bytes(8, "big") * (KEY_BYTES // 8)


def content(number: int, size_bytes: int = BLOCK_BYTES) -> bytes:
    words = np.arange(size_bytes // 8, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (words ^ np.uint64(number * 0xD1B54A32D192ED03 % 2**64)).tobytes()


def store(pool: Any, numbers: range | list[int], name: str = "llama") -> int:
    """Blocks by the core, in a process that has the pool attached."""
    ns: int = pool.ns_create(name)
    for number in numbers:
        pool.block_put(ns, key(number), content(number))
    return ns


@pytest.fixture
def pool(pool_file: Path) -> Iterator[belugafs.Pool]:
    """A pool that isn't mounted, with ten blocks, attached by this process."""
    with belugafs.connect(pool_file) as pool:
        store(pool._host.pool, range(10))  # type: ignore[union-attr]
        yield pool


@pytest.fixture
def mounted(unmounted_pool: Any, attach: Any) -> Any:
    """The same blocks in a pool that is mounted."""
    core = attach(unmounted_pool.pool_path)
    store(core, range(10))
    core.close()
    unmounted_pool.mount()
    return unmounted_pool


def address_of(buffer: Any) -> int:
    return int(np.frombuffer(buffer, np.uint8).__array_interface__["data"][0])


# ---- look-ups ------------------------------------------------------------------------------------


def test_lookups(pool: belugafs.Pool) -> None:
    ns = pool.namespace("llama")
    keys = [key(i) for i in range(12)]
    assert ns.match(keys) == 10
    assert ns.match(keys[3:5]) == 2
    assert ns.match(keys[10:]) == 0
    assert ns.match([]) == 0
    assert ns.exists(keys).tolist() == [True] * 10 + [False] * 2
    assert ns.exists([]).tolist() == []
    array = np.frombuffer(b"".join(keys), np.uint8).reshape(12, KEY_BYTES)
    assert ns.match(array) == 10
    assert ns.exists(array[::2]).tolist() == [True] * 5 + [False]
    assert ns.get(key(3)) == content(3)
    room = bytearray(b"\xff" * (len(content(3)) + 5))
    assert ns.get_into(key(3), room) == len(content(3))
    assert room == content(3) + b"\xff" * 5
    with pytest.raises(belugafs.BlockMissing):
        ns.get_into(key(99), room)
    for short in (bytearray(len(content(3)) - 1), bytearray()):
        with pytest.raises(ValueError, match=f"block of {len(content(3))} bytes"):
            ns.get_into(key(3), short)
    with pytest.raises(TypeError):
        ns.get_into(key(3), b"not writable")  # type: ignore[arg-type]
    with pytest.raises(belugafs.BlockMissing, match="isn't in the pool"):
        ns.get(key(99))
    with pytest.raises(ValueError, match="one length"):
        ns.match([key(1), key(1)[:16]])
    with pytest.raises(ValueError, match="uint8"):
        ns.match(np.zeros((2, 32), np.int8))  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="no namespace gemma"):
        pool.namespace("gemma")
    pool.namespace("gemma", create=True)


def test_identity(pool: belugafs.Pool) -> None:
    identity = {"dtype": "bf16", "block_tokens": 16}
    pool.namespace("llama", identity=identity)
    pool.namespace("llama", identity=dict(reversed(identity.items())))
    with pytest.raises(belugafs.IdentityMismatch, match="bf16"):
        pool.namespace("llama", identity={**identity, "dtype": "fp8"})


def test_identity_through_a_mount(mounted: Any) -> None:
    with belugafs.connect(mounted.path) as pool:
        pool.namespace("llama", identity={"dtype": "bf16"})
        found = os.getxattr(mounted.path / "llama", "user.beluga.identity")
        assert found == b'{"dtype":"bf16"}'
        with pytest.raises(belugafs.IdentityMismatch):
            pool.namespace("llama", identity={"dtype": "fp8"})
        # It is a directory's, and the other attributes there stay what they were.
        (mounted.path / "file").write_bytes(b"x")
        for path, name in ((mounted.path / "file", "identity"), (mounted.path / "llama", "owner")):
            with pytest.raises(PermissionError):
                os.setxattr(path, f"user.beluga.{name}", b"x")


# ---- no copy -------------------------------------------------------------------------------------


def test_views_are_the_pools_memory(pool: belugafs.Pool) -> None:
    ns = pool.namespace("llama")
    start, size = pool._client.span
    with ns.read([key(i) for i in range(12)]) as blocks:
        assert len(blocks) == 12
        assert blocks.present == [True] * 10 + [False] * 2
        for number, block in enumerate(blocks[:10]):
            assert block.view == content(number)
            assert block.view.readonly
            assert block.verified
            assert block.size_bytes == len(block) == BLOCK_BYTES
            assert start <= block.address < start + size
            assert block.address % 4096 == 0
            assert address_of(block.view) == block.address
            words = block.numpy(np.uint64, (BLOCK_BYTES // 16, 2))
            assert words.__array_interface__["data"] == (block.address, True)
            assert words.tobytes() == content(number)
            del words
        with pytest.raises(belugafs.BlockMissing, match="isn't in the pool"):
            _ = blocks[11].view
    # And it is what everybody else sees: a store by the host shows.
    core = pool._host.pool  # type: ignore[union-attr]
    with ns.read([key(4)]) as blocks:
        extent = core.extents(blocks[0]._lease.inode)[0]
        granule = (extent[1] - 1) * 4096
        assert bytes(core.buffer[granule : granule + BLOCK_BYTES]) == blocks[0].view


def test_dlpack(pool: belugafs.Pool) -> None:
    with pool.namespace("llama").read([key(1)]) as blocks:
        array = np.from_dlpack(blocks[0])
        assert array.__array_interface__["data"][0] == blocks[0].address
        assert np.asarray(blocks[0]).tobytes() == content(1)
        del array


def test_torch(pool: belugafs.Pool) -> None:
    torch = pytest.importorskip("torch", reason="torch isn't installed")
    shape = (BLOCK_BYTES // 64, 32)
    with pool.namespace("llama").read([key(1)]) as blocks:
        tensor = blocks[0].tensor(torch.bfloat16, shape)
        assert tensor.data_ptr() == blocks[0].address
        assert tuple(tensor.shape) == shape
        assert tensor.view(torch.uint8).numpy().tobytes() == content(1)
        with pytest.raises(ValueError, match="takes"):
            blocks[0].tensor(torch.float32, (3, 5))
    # The tensor has outlived the lease's end: it keeps its block.
    assert pool._client.leases == 1
    del tensor
    gc.collect()
    assert pool._client.leases == 0


def test_wrong_types_and_shapes(pool: belugafs.Pool) -> None:
    with pool.namespace("llama").read([key(1)]) as blocks:
        block = blocks[0]
        with pytest.raises(ValueError, match=f"has {BLOCK_BYTES} bytes; float32 in shape"):
            block.numpy(np.float32, (7, 7))
        with pytest.raises(ValueError, match="no whole number"):
            block.numpy(np.dtype("V7"))
        with pytest.raises(ValueError, match="negative"):
            block.numpy(np.uint8, (-1, 4))
        with pytest.raises(ValueError, match="Python objects"):
            block.numpy(object)
        with pytest.raises(ValueError, match="use numpy"):
            np.asarray(block, dtype=np.float32)
        assert block.numpy(np.float16).shape == (BLOCK_BYTES // 2,)
        with pytest.raises(ValueError, match="read-only"):
            block.numpy()[0] = 1


# ---- the end of a lease --------------------------------------------------------------------------


def test_a_view_ends_with_its_lease(pool: belugafs.Pool) -> None:
    ns = pool.namespace("llama")
    with ns.read([key(1), key(2)]) as blocks:
        first = blocks[0]
        view = first.view
        assert pool._client.leases == 2
    assert pool._client.leases == 0
    with pytest.raises(ValueError, match="released memoryview"):
        _ = view[0]
    with pytest.raises(ValueError, match="lease is closed"):
        _ = first.view
    with pytest.raises(ValueError, match="lease is closed"):
        first.numpy()
    assert blocks.close() == 0


def test_what_outlives_a_lease_keeps_its_block(pool: belugafs.Pool) -> None:
    ns = pool.namespace("llama")
    core = pool._host.pool  # type: ignore[union-attr]
    with ns.read([key(i) for i in range(4)]) as blocks:
        array = blocks[0].numpy()
        part = blocks[1].view[8:16]
        over_view = np.frombuffer(blocks[2].view, np.uint8)
    assert pool._client.leases == 3
    for number in range(4):
        core.block_delete(core.ns_create("llama"), key(number))
    for number in range(1000, 1400):  # more than fits: whatever may be used again, is
        core.block_put(core.ns_create("llama"), key(number), content(number))
    assert array.tobytes() == content(0)
    assert part.tobytes() == content(1)[8:16]
    assert over_view.tobytes() == content(2)
    del array, part, over_view
    gc.collect()
    assert pool._client.leases == 0


def test_dropped_without_close(pool: belugafs.Pool) -> None:
    blocks = pool.namespace("llama").read([key(1)])
    assert blocks[0].view == content(1)
    assert pool._client.leases == 1
    del blocks
    gc.collect()
    assert pool._client.leases == 0


def test_arrays_outlive_the_pool(pool_file: Path) -> None:
    with belugafs.connect(pool_file) as pool:
        store(pool._host.pool, range(3))  # type: ignore[union-attr]
        array = pool.namespace("llama").read([key(2)])[0].numpy()
    assert array.tobytes() == content(2)
    assert pool.closed
    with pytest.raises(OSError, match="closed"):
        pool.namespace("llama")
    # Who attaches next finds that somebody reads still, and takes nothing of it.
    with belugafs.connect(pool_file) as again:
        assert again._host is not None
        clients = again._host.pool.clients()
        assert sorted(client["leases"] for client in clients) == [0, 1]
        del array
        gc.collect()
        assert [client["leases"] for client in again._host.pool.clients()] == [0]


def test_damage(pool_file: Path, attach: Any) -> None:
    core = attach(pool_file)
    store(core, range(3))
    core.close()
    with belugafs.connect(pool_file) as pool:
        ns = pool.namespace("llama")
        with ns.read([key(1)]) as blocks:
            place = blocks[0].address - pool._client.span[0]
    with pool_file.open("r+b") as file:
        file.seek(place + BLOCK_BYTES - 1)
        byte = file.read(1)[0]
        file.seek(place + BLOCK_BYTES - 1)
        file.write(bytes([byte ^ 1]))
    with belugafs.connect(pool_file) as pool:
        ns = pool.namespace("llama")
        with ns.read([key(0), key(1), key(2)]) as blocks:
            assert blocks.present == [True, False, True]
            with pytest.raises(belugafs.BlockDamaged, match="is damaged"):
                _ = blocks[1].view
        with pytest.raises(belugafs.BlockDamaged):
            ns.get(key(1))
        assert pool._host is not None
        pool._host.pool.block_delete(pool._host.pool.ns_create("llama"), key(1))


# ---- with a mount --------------------------------------------------------------------------------


def test_through_a_mount(mounted: Any) -> None:
    (mounted.path / "engine").mkdir()
    (mounted.path / "engine/0a").write_bytes(content(77))
    with belugafs.connect(mounted.path) as pool:
        ns = pool.namespace("llama")
        assert ns.match([key(i) for i in range(12)]) == 10
        with ns.read([key(i) for i in range(10)]) as blocks:
            assert all(block.view == content(i) for i, block in enumerate(blocks))
            assert mounted.stats()["readers"] == "1"
            assert mounted.stats()["reader_leases"] == "10"
        assert mounted.stats()["reader_leases"] == "0"
        # What an engine wrote through the mount, and what isn't there, or not yet.
        with (mounted.path / "engine/new").open("wb") as file:
            file.write(b"half")
            file.flush()
            paths = ["engine/0a", "engine/none", "engine/new", "engine"]
            with pool.read_files(paths) as blocks:
                assert blocks.present == [True, False, False, False]
                assert blocks[0].view == content(77)
                with pytest.raises(belugafs.BlockMissing, match="engine/none"):
                    blocks[1].numpy()
        with pool.read_files(["engine/new"]) as blocks:
            assert blocks[0].view == b"half"
    # The pool's own path leads to its mount.
    with belugafs.connect(mounted.pool_path) as pool:
        assert pool.place == str(mounted.path)
    mounted.await_stat("readers", 0)


def test_the_daemon_killed_under_views(mounted: Any) -> None:
    with belugafs.connect(mounted.path) as pool:
        ns = pool.namespace("llama")
        with ns.read([key(i) for i in range(10)]) as blocks:
            array = blocks[7].numpy()
            mounted.kill9()
            # Nobody is there, and all goes on: bytes, look-ups, leases.
            assert blocks[3].view == content(3)
            assert ns.match([key(i) for i in range(12)]) == 10
            with ns.read([key(5)]) as more:
                assert more[0].view == content(5)
            mounted.mount()
            assert mounted.stats()["reader_leases"] == "10"
            # The next daemon respects what it finds: its pool is filled over and over.
            for path in (mounted.path / "llama").glob("*/*/*"):
                path.unlink()
            for i in range(300):
                (mounted.path / f"file{i}").write_bytes(content(5000 + i))
            assert not any(ns.exists([key(i) for i in range(10)]))
            assert all(block.view == content(i) for i, block in enumerate(blocks))
            assert array.tobytes() == content(7)
            with pool.read_files(["file299"]) as files:
                assert files[0].view == content(5299)
        assert mounted.stats()["reader_leases"] == "1"
        del array
        gc.collect()
        assert mounted.stats()["reader_leases"] == "0"
        mounted.await_stat("quarantined_granules", 0)
    mounted.await_stat("readers", 0)


def test_umount_under_a_lease(mounted: Any) -> None:
    """An ordinary end of the daemon leaves readers alone, too."""
    with belugafs.connect(mounted.path) as pool, pool.namespace("llama").read([key(1)]) as blocks:
        mounted.umount()
        assert blocks[0].view == content(1)
        mounted.mount()
        assert mounted.stats()["reader_leases"] == "1"
        (mounted.path / "llama").rename(mounted.path / "other")
        assert blocks[0].view == content(1)


def test_no_repair_under_a_lease(mounted: Any) -> None:
    """A pool that is still read is repaired no more than one that is mounted; it can be checked."""
    with belugafs.connect(mounted.path) as pool, pool.namespace("llama").read([key(1)]) as blocks:
        mounted.umount()
        done = mounted.command("belugafs.fsck", "-y", str(mounted.pool_path))
        assert done.returncode == 8
        assert "still read it in place" in done.stderr
        assert mounted.command("belugafs.fsck", "-n", str(mounted.pool_path)).returncode == 0
        assert mounted.command("belugafs.mkfs", "--force", str(mounted.pool_path)).returncode != 0
        assert blocks[0].view == content(1)
    assert mounted.command("belugafs.fsck", "-y", str(mounted.pool_path)).returncode == 0


_HOLDER = """
import sys, time, belugafs
pool = belugafs.connect(sys.argv[1])
blocks = pool.namespace("llama").read([bytes.fromhex(sys.argv[2])])
assert blocks.present == [True]
print("leased", flush=True)
time.sleep(60)
"""


def test_a_killed_reader_holds_nothing(mounted: Any) -> None:
    command = [sys.executable, "-c", _HOLDER, str(mounted.path), key(1).hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "leased\n"
            assert mounted.stats()["reader_leases"] == "1"
            next((mounted.path / "llama/00/00").glob("*01")).unlink()
            time.sleep(0.5)
            assert int(mounted.stats()["quarantined_granules"]) == BLOCK_BYTES // 4096
        finally:
            holder.send_signal(signal.SIGKILL)
    assert mounted.stats()["readers"] == "0"
    mounted.await_stat("quarantined_granules", 0, limit_s=2)


def test_a_child_has_no_connection(mounted: Any) -> None:
    with belugafs.connect(mounted.path) as pool, pool.namespace("llama").read([key(1)]) as blocks:
        block = blocks[0]
        child = os.fork()
        if child == 0:
            code = 1
            try:
                block.numpy()
            except (ValueError, BufferError):
                try:
                    pool.namespace("llama")
                except RuntimeError:
                    code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert block.view == content(1)
        assert mounted.stats()["reader_leases"] == "1"


def test_readers_beside_a_writer_that_evicts(mounted: Any) -> None:
    """No wrong byte, however the blocks come and go."""
    stop = threading.Event()
    failures: list[str] = []
    seen = [0, 0]

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            (mounted.path / f"f{number % 400}").write_bytes(content(number % 400))

    def read(pool: belugafs.Pool) -> None:
        at = 0
        while not stop.is_set():
            at = (at + 37) % 400
            numbers = [(at + i) % 400 for i in range(16)]
            with pool.read_files([f"f{number}" for number in numbers]) as blocks:
                for number, block in zip(numbers, blocks, strict=True):
                    seen[block.present] += 1
                    if block.present and block.view != content(number):
                        failures.append(f"f{number}")

    with belugafs.connect(mounted.path) as pool:
        threads = [
            threading.Thread(target=write),
            *(threading.Thread(target=read, args=[pool]) for _ in range(2)),
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 60
        # At least 3 s, and until there was something to be seen.
        time.sleep(3)
        while time.monotonic() < deadline and not failures:
            if min(seen) > 50 and int(mounted.stats()["evicted_blocks"]) > 0:
                break
            time.sleep(0.1)
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures
    assert seen[1] > 50
    assert seen[0] > 50
    assert int(mounted.stats()["evicted_blocks"]) > 0


# ---- who may -------------------------------------------------------------------------------------

_CONNECT = """
import os, sys, belugafs.client
uid, gid = int(sys.argv[2]), int(sys.argv[3])
os.setgroups([gid]), os.setgid(gid), os.setuid(uid)
try:
    belugafs.connect(sys.argv[1]).close()
except OSError as error:
    sys.exit(error.errno)
"""


def connect_as(mounted: Any, uid: int, gid: int) -> int:
    command = [sys.executable, "-c", _CONNECT, str(mounted.path), str(uid), str(gid)]
    return subprocess.run(command, timeout=20, check=False).returncode


@pytest.fixture
def reachable(mounted: Any) -> Iterator[None]:
    """Other users may go through the directories that the mount and its socket lie in."""
    places = [Path(os.environ["BELUGAFS_RUN_DIR"]), mounted.path]
    above = {parent for place in places for parent in (place, *place.parents)} - {mounted.path}
    before = {parent: stat.S_IMODE(parent.stat().st_mode) for parent in above}
    closed = {parent: mode for parent, mode in before.items() if not mode & 0o1}
    for parent, mode in closed.items():
        parent.chmod(mode | 0o11)
    yield
    for parent, mode in closed.items():
        parent.chmod(mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.usefixtures("reachable")
def test_who_gets_descriptors(mounted: Any) -> None:
    assert connect_as(mounted, 65534, 65534) == errno.EACCES
    assert connect_as(mounted, 0, 0) == 0
    mounted.remount("library=gid=4242")
    assert connect_as(mounted, 65534, 65534) == errno.EACCES
    assert connect_as(mounted, 65534, 4242) == 0
    mounted.remount("library=off")
    assert connect_as(mounted, 0, 0) == errno.EOPNOTSUPP
    with pytest.raises(OSError, match="switched off"):
        belugafs.connect(mounted.path)


def test_wrong_options(mounted: Any) -> None:
    mounted.umount()
    for option in ("library=all", "library=gid=", "library=gid=x", "run_dir=here"):
        done = mounted.try_mount(option)
        assert done.returncode == 1, option
        assert option.split("=")[0] in done.stderr

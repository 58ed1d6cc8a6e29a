"""Blocks stored by ``belugafs.connect``: room that is filled in place, whichever daemon runs."""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket
import struct
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
from belugafs import _native
from belugafs.format import LOCAL_VERSION

pytestmark = pytest.mark.flat_pool

KEY_BYTES = 32
BLOCK_BYTES = 300 << 10
"""Two chunks, of which the second isn't whole."""


def key(number: int) -> bytes:
    return number.to_bytes(8, "big") * (KEY_BYTES // 8)


def content(number: int, size_bytes: int = BLOCK_BYTES) -> bytes:
    words = np.arange(-(-size_bytes // 8), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (words ^ np.uint64(number * 0xD1B54A32D192ED03 % 2**64)).tobytes()[:size_bytes]


def path_of(mounted: Any, number: int, name: str = "llama") -> Path:
    text = key(number).hex()
    return Path(mounted.path) / name / text[:2] / text[2:4] / text


@pytest.fixture
def mounted(unmounted_pool: Any) -> Any:
    unmounted_pool.mount()
    return unmounted_pool


@pytest.fixture(params=["in-process", "mounted"])
def pool(request: pytest.FixtureRequest) -> Iterator[belugafs.Pool]:
    """A connection, to a mount or to a pool that this process has attached."""
    if request.param == "mounted":
        place = request.getfixturevalue("mounted").path
    else:
        place = request.getfixturevalue("pool_file")
    with belugafs.connect(place) as pool:
        yield pool


# ---- reserving and committing --------------------------------------------------------------------


def test_reserve_and_commit(pool: belugafs.Pool) -> None:
    ns = pool.namespace("llama", create=True)
    assert pool.namespace("llama", create=True).name == "llama"
    keys = [key(i) for i in range(12)]
    with ns.reserve(keys[:10], BLOCK_BYTES) as new:
        assert len(new) == 10
        for number, block in enumerate(new):
            assert block.size_bytes == len(block) == len(block.view) == BLOCK_BYTES
            assert not block.view.readonly
            assert block.address % 4096 == 0
            block.view[:] = content(number)
        assert ns.match(keys) == 0
    assert new.stored == [True] * 10
    assert ns.match(keys) == 10
    with ns.read(keys) as blocks:
        assert blocks.present == [True] * 10 + [False] * 2
        for number, block in enumerate(blocks[:10]):
            assert block.view == content(number)
            assert block.verified
    with pytest.raises(ValueError, match="closed"):
        _ = new[0].view
    assert new.commit() == 0
    assert [block.key for block in new[2:4]] == keys[2:4]
    assert new[-1].key == keys[9]
    with pytest.raises(IndexError):
        _ = new[10]
    array = np.frombuffer(b"".join(keys[10:]), np.uint8).reshape(2, KEY_BYTES)
    with ns.reserve(array, BLOCK_BYTES) as other:
        assert [block.key for block in other] == keys[10:]
    assert other.stored == [False, False]  # nobody has filled them
    with ns.reserve(keys[10:], BLOCK_BYTES) as more:
        address = more[0].address
        assert address % 4096 == 0
        more.drop()
        with pytest.raises(ValueError, match="closed"):
            more.commit()


def test_writes_are_in_the_pool_itself(pool: belugafs.Pool) -> None:
    """No copy: the place of the room is the place that readers find the block at."""
    ns = pool.namespace("llama", create=True)
    start, size = pool._client.span
    with ns.reserve([key(1)], BLOCK_BYTES) as new:
        array = new[0].numpy(np.uint64)
        assert array.flags.writeable
        assert array.__array_interface__["data"][0] == new[0].address
        room = new[0].address
        array[:] = np.frombuffer(content(1), np.uint64)
        del array
    with ns.read([key(1)]) as blocks:
        assert start <= blocks[0].address < start + size
        offset = blocks[0].address - start
        assert blocks[0].view == content(1)
    # The second mapping is as long as the first one, and at another place.
    with ns.reserve([key(2)], BLOCK_BYTES) as again:
        base = room - offset
        assert base <= again[0].address < base + size
        assert base != start


def test_what_is_not_filled_is_zero(pool: belugafs.Pool) -> None:
    """Never what a former owner left."""
    ns = pool.namespace("llama", create=True)
    for number in range(4):
        ns.put(key(number), b"\xee" * BLOCK_BYTES)
    assert ns.delete([key(i) for i in range(5)]).tolist() == [True] * 4 + [False]
    time.sleep(0.5)  # until their space may be used again
    sizes = [0, 1, 4096, BLOCK_BYTES - 1]
    with ns.reserve([key(10 + i) for i in range(4)], BLOCK_BYTES) as new:
        for number, block in enumerate(new):
            block.view[:] = b"\xdd" * BLOCK_BYTES
            block.view[: sizes[number]] = content(number, sizes[number])
        new.commit(filled=sizes)
    for number, size in enumerate(sizes):
        assert ns.get(key(10 + number)) == content(number, size).ljust(BLOCK_BYTES, b"\0")
    with ns.reserve([key(20), key(21)], BLOCK_BYTES) as new:
        new[0].view[:5] = b"hello"
        assert new[0].commit(filled=5)
        assert ns.get(key(20)) == b"hello".ljust(BLOCK_BYTES, b"\0")
        with pytest.raises(ValueError, match="is committed"):
            new[0].commit()
        with pytest.raises(ValueError, match="filled of"):
            new[1].commit(filled=BLOCK_BYTES + 1)
        with pytest.raises(ValueError, match="1 sizes for 2 blocks"):
            new.commit(filled=[1])
    # Nobody had asked for the room of the second one: it wasn't filled, and isn't there.
    assert ns.exists([key(20), key(21)]).tolist() == [True, False]


def test_dropped_on_error(pool: belugafs.Pool) -> None:
    ns = pool.namespace("llama", create=True)
    with pytest.raises(RuntimeError, match="no"), ns.reserve([key(0), key(1)], 4096) as new:
        new[0].view[:] = content(0, 4096)
        new[0].commit()
        new[1].view[:] = content(1, 4096)
        raise RuntimeError("no")
    assert ns.exists([key(0), key(1)]).tolist() == [True, False]
    assert new.stored == [True, False]


def test_what_is_there_already(pool: belugafs.Pool) -> None:
    ns = pool.namespace("llama", create=True)
    assert ns.put(key(1), content(1))
    assert not ns.put(key(1), content(1))
    with ns.reserve([key(0), key(1), key(2), key(2)], BLOCK_BYTES) as new:
        for number, block in zip([0, 1, 2, 2], new, strict=True):
            block.view[:] = content(number)
        assert new.commit() == 2
    assert new.stored == [True, False, True, False]
    assert [block.existed for block in new] == [False, True, False, True]
    assert ns.get(key(1)) == content(1)


def test_put_delete_pin(pool: belugafs.Pool) -> None:
    ns = pool.namespace("llama", create=True)
    sizes = [0, 1, 5000, 65536, 65537, BLOCK_BYTES, 2 << 20]
    pairs = [(key(number), content(number, size)) for number, size in enumerate(sizes)]
    assert ns.put_many(pairs) == [True] * 7
    assert ns.put_many(iter(pairs)) == [False] * 7
    again = [pairs[0], (key(50), content(50)), pairs[5], (key(51), content(51)), pairs[1]]
    assert ns.put_many(again) == [False, True, False, True, False]
    assert ns.get(key(51)) == content(51)
    assert ns.put_many([]) == []
    for number, size in enumerate(sizes):
        assert ns.get(key(number)) == content(number, size)
    assert ns.put(key(90), np.arange(100, dtype=np.uint16))
    assert ns.get(key(90)) == np.arange(100, dtype=np.uint16).tobytes()
    with pytest.raises(BufferError):
        ns.put(key(91), np.arange(100, dtype=np.uint16)[::2])
    keys = [key(0), key(99)]
    assert ns.pin(keys).tolist() == [True, False]
    assert ns.pin(keys, "soft").tolist() == [True, False]
    assert ns.unpin(keys).tolist() == [True, False]
    assert ns.delete(keys).tolist() == [True, False]
    assert ns.delete([]).tolist() == []
    with pytest.raises(belugafs.BlockMissing):
        ns.get(key(0))


def test_wrong_arguments(pool: belugafs.Pool) -> None:
    ns = pool.namespace("llama", create=True)
    with pytest.raises(ValueError, match="one block or more"):
        ns.reserve([], 4096)
    with pytest.raises(ValueError, match="can be reserved"):
        ns.reserve(np.zeros((65537, 8), np.uint8), 4096)
    with pytest.raises(OSError, match="can be reserved") as caught:
        ns.reserve([key(1)], 0)
    assert caught.value.errno == errno.EFBIG
    with pytest.raises(OSError, match="can be reserved") as caught:
        ns.reserve([key(1)], 1 << 40)
    assert caught.value.errno == errno.EFBIG
    with pytest.raises(ValueError, match="2 to 64 bytes"):
        ns.delete([b"x"])
    with pytest.raises(OSError, match="name in the root") as caught:
        pool.namespace("a/b", create=True)
    assert caught.value.errno == errno.EINVAL


def test_torch(pool: belugafs.Pool) -> None:
    torch = pytest.importorskip("torch", reason="torch isn't installed")
    ns = pool.namespace("llama", create=True)
    values = torch.arange(BLOCK_BYTES // 4, dtype=torch.float32).reshape(-1, 64)
    with ns.reserve([key(1)], BLOCK_BYTES) as new:
        tensor = new[0].tensor(torch.float32, values.shape)
        assert tensor.data_ptr() == new[0].address
        tensor.copy_(values)
        with pytest.raises(ValueError, match="takes"):
            new[0].tensor(torch.float32, (3, 5))
        del tensor
    with ns.read([key(1)]) as blocks:
        assert torch.equal(blocks[0].tensor(torch.float32, values.shape), values)


# ---- arrays that outlive their block -------------------------------------------------------------


def test_an_array_that_is_left_spoils_no_other_block(pool: belugafs.Pool) -> None:
    """It keeps its block's room, committed or not, until it is gone."""
    ns = pool.namespace("llama", create=True)
    with ns.reserve([key(0), key(1)], BLOCK_BYTES) as new:
        kept = [new[0].numpy(), new[1].view[8:16]]
        new[0].view[:] = content(0)
        new[0].commit()
        assert new.drop() == 2
    assert ns.delete([key(0)]).tolist() == [True]
    for number in range(1000, 1400):  # more than fits: whatever may be used again, is
        ns.put(key(number), content(number))
    kept[0][:] = 0xEE
    kept[1][:] = b"\xee" * 8
    present = [i for i in range(1000, 1400) if ns.exists([key(i)])[0]]
    assert len(present) > 50
    assert all(ns.get(key(i)) == content(i) for i in present)
    kept.clear()
    del new
    gc.collect()
    assert pool._client.leases == 0


# ---- with a mount --------------------------------------------------------------------------------


def test_cat_reads_what_the_library_stored(mounted: Any) -> None:
    with belugafs.connect(mounted.path) as pool:
        ns = pool.namespace("llama", identity={"dtype": "bf16"}, create=True)
        with ns.reserve([key(1), key(2)], BLOCK_BYTES) as new:
            new[0].view[:] = content(1)
            new[1].view[:] = content(2)
        ns.put(key(3), content(3, 999))
        for number, size in ((1, BLOCK_BYTES), (2, BLOCK_BYTES), (3, 999)):
            path = path_of(mounted, number)
            assert path.stat().st_size == size
            done = subprocess.run(["cat", str(path)], capture_output=True, check=True)
            assert done.stdout == content(number, size)
        assert os.getxattr(mounted.path / "llama", "user.beluga.identity") == b'{"dtype":"bf16"}'
        path_of(mounted, 3).unlink()
        assert ns.exists([key(3)]).tolist() == [False]
        stats = mounted.stats()
        assert stats["rings"] == "1"
        assert int(stats["ring_requests"]) >= 4
        assert stats["reservations"] == "0"
    mounted.await_stat("rings", 0)
    mounted.await_stat("readers", 0)


def test_the_mount_sees_changes(mounted: Any) -> None:
    """What the library stores and deletes is so for who opens files, at once."""
    with belugafs.connect(mounted.path) as pool:
        ns = pool.namespace("llama", create=True)
        path = path_of(mounted, 1)
        assert not path.exists()
        ns.put(key(1), content(1))
        assert path.read_bytes() == content(1)
        assert ns.delete([key(1)])[0]
        with pytest.raises(FileNotFoundError):
            path.read_bytes()
        ns.put(key(1), b"another one")
        assert path.read_bytes() == b"another one"
        with path.open("rb") as file:
            assert ns.delete([key(1)])[0]
            assert file.read() == b"another one"  # as of any file that is removed
        deadline = time.monotonic() + 5
        while path.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not path.exists()
        assert not (mounted.path / "llama/00").exists()


def test_the_daemon_killed_under_a_reservation(mounted: Any) -> None:
    """It is killed and mounted anew with blocks half filled; the process goes on, and commits."""
    with belugafs.connect(mounted.path) as pool:
        ns = pool.namespace("llama", create=True)
        new = ns.reserve([key(i) for i in range(20)], BLOCK_BYTES)
        for number in range(10):
            new[number].view[: BLOCK_BYTES // 2] = content(number)[: BLOCK_BYTES // 2]
        assert new[0].commit(filled=BLOCK_BYTES // 2)
        for _ in range(2):
            mounted.kill9()
            for number in range(1, 10):  # nobody is there, and it is stored on
                new[number].view[BLOCK_BYTES // 2 :] = content(number)[BLOCK_BYTES // 2 :]
            mounted.mount()
            assert mounted.stats()["reservations"] == "1"
            assert mounted.stats()["reserved_granules"] == str(19 * BLOCK_BYTES // 4096)
            for i in range(150):  # the next daemon fills its pool over and over
                (mounted.path / f"file{i}").write_bytes(content(5000 + i))
            for number in range(1, 10):
                assert new[number].view == content(number)
        with new:
            pass
        assert new.stored == [True] * 10 + [False] * 10
        for number in range(1, 10):
            assert path_of(mounted, number).read_bytes() == content(number)
        half = content(0)[: BLOCK_BYTES // 2]
        assert ns.get(key(0)) == half.ljust(BLOCK_BYTES, b"\0")
        assert mounted.stats()["reservations"] == "0"
    mounted.await_stat("readers", 0)


def test_umount_under_a_reservation(mounted: Any) -> None:
    """An ordinary end of the daemon takes nothing away, either."""
    with belugafs.connect(mounted.path) as pool:
        ns = pool.namespace("llama", create=True)
        with ns.reserve([key(1)], BLOCK_BYTES) as new:
            new[0].view[:] = content(1)
            mounted.umount()
            assert new[0].view == content(1)
            assert mounted.command("belugafs.fsck", "-n", str(mounted.pool_path)).returncode == 0
            done = mounted.command("belugafs.fsck", "-y", str(mounted.pool_path))
            assert done.returncode == 8
            assert "still read it in place" in done.stderr
            mounted.mount()
        assert path_of(mounted, 1).read_bytes() == content(1)


def test_a_call_waits_for_the_next_daemon(mounted: Any) -> None:
    with belugafs.connect(mounted.path, patience_s=20) as pool:
        ns = pool.namespace("llama", create=True)
        mounted.kill9()
        timer = threading.Timer(0.5, mounted.mount)
        timer.start()
        try:
            assert ns.put(key(1), content(1))
        finally:
            timer.join()
        assert path_of(mounted, 1).read_bytes() == content(1)
    with belugafs.connect(mounted.path, patience_s=0.2) as pool:
        ns = pool.namespace("llama")
        mounted.kill9()
        with pytest.raises(OSError, match="mount it") as caught:
            ns.put(key(2), content(2))
        assert caught.value.errno == errno.ENOTCONN
        mounted.mount()
        assert ns.put(key(2), content(2))


def test_ctrl_c_while_there_is_no_daemon(mounted: Any) -> None:
    with belugafs.connect(mounted.path, patience_s=20) as pool:
        ns = pool.namespace("llama", create=True)
        mounted.kill9()
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            ns.put(key(1), content(1))
        assert time.monotonic() - started < 10
        timer.join()
    mounted.mount()


_HOLDER = """
import sys, time, belugafs
pool = belugafs.connect(sys.argv[1])
ns = pool.namespace("llama", create=True)
new = ns.reserve([bytes([i]) * 32 for i in range(8)], 300 << 10)
new[0].view[:] = b"x" * (300 << 10)
new[0].commit()
print("reserved", flush=True)
while True:
    for block in new[1:]:
        block.view[:] = b"y" * (300 << 10)
"""


@pytest.mark.parametrize("daemon", ["lives", "dies first", "dies later"])
def test_a_killed_writer_leaves_nothing(mounted: Any, daemon: str) -> None:
    command = [sys.executable, "-c", _HOLDER, str(mounted.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "reserved\n"
            assert mounted.stats()["reservations"] == "1"
            assert mounted.stats()["reserved_granules"] == str(7 * (300 << 10) // 4096)
            if daemon == "dies first":
                mounted.kill9()
        finally:
            holder.send_signal(signal.SIGKILL)
    if daemon == "dies later":
        mounted.kill9()
    if daemon != "lives":
        mounted.mount()
    mounted.await_stat("reservations", 0, limit_s=3)
    mounted.await_stat("readers", 0)
    mounted.await_stat("rings", 0)
    assert (mounted.path / "llama/00/00" / ("00" * 32)).read_bytes() == b"x" * (300 << 10)
    block_granules = (300 << 10) // 4096
    mounted.await_stat("used_granules", block_granules)


def test_a_killed_process_that_was_the_host_itself(pool_file: Path) -> None:
    """Daemon and writer in one: whoever attaches next finds what was committed, and room."""
    command = [sys.executable, "-c", _HOLDER, str(pool_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "reserved\n"
        finally:
            holder.send_signal(signal.SIGKILL)
    with belugafs.connect(pool_file) as pool:
        assert pool._host is not None
        assert pool._host.pool.reservations() == (0, 0)
        assert pool.namespace("llama").get(bytes(32)) == b"x" * (300 << 10)
        assert pool._host.pool.statfs()["used_granules"] == (300 << 10) // 4096


def test_a_full_pool(mounted: Any) -> None:
    """What is reserved can't be evicted; what is committed can."""
    with belugafs.connect(mounted.path) as pool:
        ns = pool.namespace("llama", create=True)
        held = []
        with pytest.raises(OSError, match="space|room|No") as caught:
            while True:
                held.append(ns.reserve([key(len(held))], 1 << 20))
        assert caught.value.errno == errno.ENOSPC
        assert len(held) > 30
        with pytest.raises(OSError, match="weren't stored") as caught:
            ns.put(key(1000), content(1, 1 << 20))
        assert caught.value.errno == errno.ENOSPC
        for number, new in enumerate(held):
            with new:
                new[0].view[:] = content(number, 1 << 20)
        for number in range(100, 200):
            assert ns.put(key(number), content(number, 1 << 20))
        assert int(mounted.stats()["evicted_blocks"]) > 30


def test_a_child_has_no_connection(mounted: Any) -> None:
    with belugafs.connect(mounted.path) as pool:
        ns = pool.namespace("llama", create=True)
        with ns.reserve([key(1)], BLOCK_BYTES) as new:
            new[0].view[:] = content(1)
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    new.commit()
                except (RuntimeError, ValueError):
                    try:
                        ns.put(key(2), b"x")
                    except RuntimeError:
                        code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert ns.exists([key(1), key(2)]).tolist() == [True, False]


def test_threads(pool: belugafs.Pool) -> None:
    ns = pool.namespace("llama", create=True)
    failures: list[str] = []

    def work(first: int) -> None:
        try:
            for number in range(first, first + 40, 4):
                keys = [key(number + i) for i in range(4)]
                with ns.reserve(keys, 50000) as new:
                    for i, block in enumerate(new):
                        block.view[:] = content(number + i, 50000)
                with ns.read(keys) as blocks:
                    for i, block in enumerate(blocks):
                        if block.view != content(number + i, 50000):
                            failures.append(f"{number + i}: other bytes")
        except Exception as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=work, args=[1000 * i]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# ---- who may -------------------------------------------------------------------------------------


def test_who_does_not_write_has_no_way_to(mounted: Any) -> None:
    """Reading opens the pool read-only; the descriptor to write by comes with the first change."""
    with belugafs.connect(mounted.path) as pool:
        pool_path = os.fspath(mounted.pool_path)
        assert not _writable(pool_path)
        pool.namespace("llama", create=True)
        assert _writable(pool_path)
    assert not _writable(pool_path)


def _writable(path: str) -> bool:
    maps = Path("/proc/self/maps").read_text().splitlines()
    return any(path in line and "w" in line.split()[1] for line in maps)


def _ask(path: str, request: bytes, descriptors: list[int]) -> tuple[int, str, int]:
    """One request on the mount's socket: errno, text, number of descriptors that came."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(10)
        connection.connect(path)
        socket.send_fds(connection, [request], descriptors)
        answer, got, _, _ = socket.recv_fds(connection, 512, 8)
        for descriptor in got:
            os.close(descriptor)
    if not answer:
        return -1, "", len(got)
    _, error, length = struct.unpack_from("<QiI", answer)
    return -error, answer[16 : 16 + length].decode(), len(got)


def test_wrong_requests_on_the_socket(mounted: Any, tmp_path: Path) -> None:
    """They are refused one by one, and nothing of them is left in the daemon."""
    config = (mounted.path / ".beluga/config").read_text()
    path = dict(line.partition(" ")[::2] for line in config.splitlines())["library_socket"]
    magic = int.from_bytes(b"BELUGALF", "little")
    client = _native.RingClient()
    ring, bell, _ = client.fds()
    (tmp_path / "file").write_bytes(bytes(8192))
    file = os.open(tmp_path / "file", os.O_RDWR)
    fds = f"/proc/{mounted.daemon_pid}/fd"
    before = len(os.listdir(fds))
    try:
        good = struct.pack("<QII", magic, LOCAL_VERSION, 1)
        assert _ask(path, good[:8], []) == (-1, "", 0)
        assert _ask(path, struct.pack("<QII", 5, LOCAL_VERSION, 1), [file] * 3) == (-1, "", 0)
        other = struct.pack("<QII", magic, LOCAL_VERSION - 1, 1)
        assert _ask(path, other, [ring, bell, file])[0] == errno.EPROTONOSUPPORT
        assert _ask(path, struct.pack("<QII", magic, LOCAL_VERSION, 9), [])[0] == errno.EPROTO
        assert _ask(path, good, [])[0] == errno.EPROTO
        assert _ask(path, good, [ring, bell])[0] == errno.EPROTO
        error, text, came = _ask(path, good, [ring, bell, file])
        assert (error, came) == (errno.ESTALE, 0)
        assert "lease file" in text
        with belugafs.connect(mounted.path) as pool:
            pool.namespace("llama", create=True)
            for wrong in ([file, bell, file], [bell, bell, bell], [ring, file, file]):
                assert _ask(path, good, wrong)[0] in (errno.ESTALE, errno.EPERM)
        mounted.await_stat("rings", 0)
        mounted.await_stat("readers", 0)
        # The thread that serves rings, which stays, has two of its own.
        deadline = time.monotonic() + 10
        while len(os.listdir(fds)) > before + 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(os.listdir(fds)) <= before + 2
    finally:
        os.close(file)
        client.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_ring_is_for_those_who_may_read(mounted: Any) -> None:
    """The right is looked at again with the ring: a lease file alone isn't one."""
    config = (mounted.path / ".beluga/config").read_text()
    path = dict(line.partition(" ")[::2] for line in config.splitlines())["library_socket"]
    os.chmod(path, 0o666)
    places = [parent for parent in Path(path).parents if parent.stat().st_mode & 0o1 == 0]
    modes = [place.stat().st_mode for place in places]
    for place, mode in zip(places, modes, strict=True):
        place.chmod(mode & 0o7777 | 0o11)
    request = struct.pack("<QII", int.from_bytes(b"BELUGALF", "little"), LOCAL_VERSION, 1)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            code = _ask(path, request, [0, 1, 2])[0]
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for place, mode in zip(places, modes, strict=True):
        place.chmod(mode & 0o7777)
    assert code == errno.EACCES

"""Changes asked for by a request ring: of a server in this process, of daemons that come and go."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from belugafs._ring import Ring, RingError, UnknownOutcome

KEY_BYTES = 32


def key(n: int) -> bytes:
    return n.to_bytes(8, "little") * 4


def data(n: int, size: int = 3000) -> bytes:
    return (f"block {n} " * (size // 7 + 1)).encode()[:size]


@pytest.fixture
def serve(native: Any) -> Iterator[Callable[..., Any]]:
    """``serve(pool, **options)``: a RingServer, stopped after the test, before its pool closes."""
    servers: list[Any] = []

    def serve(pool: Any, **options: Any) -> Any:
        servers.append(native.RingServer(pool, **options))
        return servers[-1]

    yield serve
    for server in servers:
        server.stop()


@pytest.fixture
def served(core_pool: Any, serve: Callable[..., Any]) -> Iterator[tuple[Any, Any, Ring]]:
    """A pool, its ring server, a ring."""
    server = serve(core_pool)
    with Ring(lambda ring, bell: server.add(ring, bell) and -1) as ring:
        yield core_pool, server, ring


def until(condition: Callable[[], bool], what: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.002)


def test_blocks_put_by_the_ring_are_the_pool_s(served: tuple[Any, Any, Ring]) -> None:
    pool, _, ring = served
    ns = ring.ns_create("llama")
    assert ns == pool.ns_create("llama")
    assert ring.put(ns, [(key(n), data(n)) for n in range(5)]) == [0] * 5
    assert ring.put(ns, [(key(4), b"other"), (key(5), data(5))]) == [errno.EEXIST, 0]
    assert ring.put(ns, [(key(4), b"other")]) == [errno.EEXIST]
    for n in range(6):
        buffer = bytearray(3000)
        assert pool.block_get(ns, key(n), buffer) == 3000
        assert buffer == data(n)
    assert ring.delete(ns, [key(0), key(77)]) == [0, errno.ENOENT]
    assert ring.delete(ns, [key(0)]) == [errno.ENOENT]
    keys = b"".join(key(n) for n in range(6))
    assert pool.block_exists(ns, keys, KEY_BYTES) == bytes([0, 1, 1, 1, 1, 1])


def test_thousands_of_keys_are_few_transactions(served: tuple[Any, Any, Ring]) -> None:
    pool, server, ring = served
    ns = ring.ns_create("many")
    before = pool.statfs()["txns"], server.stats()["requests"]
    assert ring.put(ns, ((key(n), data(n, 40)) for n in range(4000))) == [0] * 4000
    assert ring.delete(ns, [key(n) for n in range(3000)]) == [0] * 3000
    assert server.stats()["requests"] - before[1] == 2
    assert pool.statfs()["txns"] - before[0] < 100
    assert pool.statfs()["nblocks"] == 1000


def test_more_than_a_ring_holds_is_asked_in_parts(
    core_pool: Any, serve: Callable[..., Any]
) -> None:
    server = serve(core_pool)
    sizes = {"slots": 4, "request_bytes": 65536, "reply_bytes": 8192}
    with Ring(lambda ring, bell: server.add(ring, bell) and -1, **sizes) as ring:
        ns = ring.ns_create("parts")
        blocks = [(key(n), data(n, 20000)) for n in range(20)]
        assert ring.put(ns, blocks) == [0] * 20
        assert ring.put(ns, ((key(n), b"") for n in range(100, 4000))) == [0] * 3900
        assert ring.delete(ns, [key(n) for n in range(100, 4000)]) == [0] * 3900
        with pytest.raises(OSError, match="ask in parts") as refused:
            ring.put(ns, [(key(99), data(99, 70000))])
        assert refused.value.errno == errno.EMSGSIZE
        assert core_pool.statfs()["nblocks"] == 20


def test_pinned_blocks_stay(served: tuple[Any, Any, Ring]) -> None:
    pool, _, ring = served
    ns = ring.ns_create("pins")
    ring.put(ns, [(key(n), data(n)) for n in range(20)])
    assert ring.pin(ns, [key(1), key(2), key(99)]) == [0, 0, errno.ENOENT]
    assert ring.pin(ns, [key(3)], "soft") == [0]
    assert ring.unpin(ns, [key(2), key(4)]) == [0, 0]
    pool.evict(10000)
    keys = b"".join(key(n) for n in range(20))
    assert pool.block_exists(ns, keys, KEY_BYTES)[1:3] == b"\1\0"


def test_errors_say_what(served: tuple[Any, Any, Ring]) -> None:
    _, server, ring = served
    with pytest.raises(RingError, match="namespace") as refused:
        ring.put(1, [(key(1), b"x"), (key(2), b"y")])
    assert refused.value.errno == errno.EINVAL
    with pytest.raises(ValueError, match="one length"):
        ring.delete(5, [b"ab", b"abc"])
    with pytest.raises(RingError, match="65 bytes"):
        ring.delete(ring.ns_create("n"), [b"k" * 65] * 2)
    with pytest.raises(RingError):
        ring.ns_create("a/b")
    assert ring.call(4711).status == -errno.EOPNOTSUPP
    # malformed ones: refused, counted, and the next one is served
    for payload in (b"", b"x" * 15, b"\xff" * 16, b"\1\0\0\0\x20\0\0\0" + b"\0" * 8):
        reply = ring.call(4, payload, arg=5, reply_bytes=64)
        assert reply.status in (-errno.EBADMSG, -errno.EINVAL) and reply.text
    assert ring.ping(b"still there") == b"still there"
    until(lambda: server.stats()["refused"] > 0, "malformed requests are not counted")


def test_a_file_that_is_no_ring_is_refused(native: Any, serve: Callable[..., Any]) -> None:
    server = serve(None)
    client = native.RingClient()
    _, bell, _ = client.fds()
    fd = os.memfd_create("not sealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 1 << 20)
    with pytest.raises(native.CoreError, match="sealed") as refused:
        server.add(fd, bell)
    assert refused.value.errno == errno.EPERM
    import fcntl

    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    with pytest.raises(native.CoreError, match="magic"):
        server.add(fd, bell)
    os.close(fd)
    client.close()


def test_a_waiting_call_lets_other_threads_run(native: Any) -> None:
    client = native.RingClient()
    counted, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    answer = client.call(1, 0, b"", 0, 0, 0.5)
    stop.set()
    thread.join()
    assert answer[0] == errno.ETIMEDOUT and answer[5] == 1
    assert "ask again" in answer[4]
    assert counted[0] > 100
    client.close()


def test_a_signal_ends_a_waiting_call(native: Any) -> None:
    client = native.RingClient()
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        client.call(1, 0, b"", 0, 0, 60.0)
    assert time.monotonic() - began < 30
    timer.join()
    client.close()


def test_trio_goes_on_meanwhile(served: tuple[Any, Any, Ring]) -> None:
    _, _, ring = served

    async def main() -> int:
        ticks = 0
        async with trio.open_nursery() as nursery:

            async def ask(n: int) -> None:
                reply = await ring.call_async(1, arg=n)
                assert reply.result == n

            for n in range(20):
                nursery.start_soon(ask, n)
            for _ in range(5):
                await trio.sleep(0)
                ticks += 1
        return ticks

    assert trio.run(main) == 5


def test_many_threads_share_a_ring(served: tuple[Any, Any, Ring]) -> None:
    _, _, ring = served
    wrong: list[int] = []

    def ask(first: int) -> None:
        for n in range(first, first + 300):
            if ring.call(1, data(n, n % 2000), arg=n, reply_bytes=2000).result != n:
                wrong.append(n)

    threads = [threading.Thread(target=ask, args=(1000 * i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_closed_rings_and_stopped_servers_say_so(native: Any, serve: Callable[..., Any]) -> None:
    server = serve(None)
    ring = Ring(lambda fd, bell: server.add(fd, bell) and -1)
    assert ring.ping(b"x") == b"x"
    ring.close()
    ring.close()
    with pytest.raises(ValueError, match="closed"):
        ring.ping()
    until(lambda: server.stats()["rings"] == 0, "the server keeps a ring that was closed")
    server.stop()
    with pytest.raises(ValueError, match="stopped"):
        server.stats()


def test_the_pool_stays_while_it_is_served(core_pool: Any, serve: Callable[..., Any]) -> None:
    server = serve(core_pool)
    with Ring(lambda fd, bell: server.add(fd, bell) and -1) as ring:
        ns = ring.ns_create("x")
        assert ring.put(ns, [(key(1), b"1")]) == [0]
    server.stop()
    assert core_pool.statfs()["nblocks"] == 1


# ---- daemons that come and go --------------------------------------------------------------------

DAEMON = """
import os, sys, time
from belugafs import _native
path, ring, bell, alive, ready = sys.argv[1], *map(int, sys.argv[2:6])
fd = os.open(path, os.O_RDWR)
pool = _native.Pool(fd, os.fstat(fd).st_size, host_uuid=b"h" * 16, boot_id=b"b" * 16)
server = _native.RingServer(pool)
server.add(ring, bell, alive)
os.write(ready, b"!")
os.close(ready)
while server.stats()["rings"]:
    time.sleep(0.02)
server.stop()
pool.close()
"""


class Daemons:
    """Processes that serve a ring, one after the other; ``connect`` is for :class:`Ring`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.processes: list[subprocess.Popen[bytes]] = []
        self.may_start = True

    def connect(self, ring: int, bell: int) -> int:
        if not self.may_start:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody is there")
        said, ready = os.pipe()
        own = os.pidfd_open(os.getpid())
        arguments = [str(self.path), *map(str, (ring, bell, own, ready))]
        self.processes.append(
            subprocess.Popen(
                [sys.executable, "-c", DAEMON, *arguments], pass_fds=(ring, bell, own, ready)
            )
        )
        os.close(ready)
        os.close(own)
        assert os.read(said, 1) == b"!", "the daemon has not started"
        os.close(said)
        return os.pidfd_open(self.processes[-1].pid)

    def kill(self) -> None:
        self.processes[-1].kill()
        self.processes[-1].wait()


@pytest.fixture
def daemons(pool_file: Path) -> Iterator[Daemons]:
    daemons = Daemons(pool_file)
    yield daemons
    for process in daemons.processes:
        process.kill()
        process.wait()


@pytest.mark.flat_pool
def test_a_killed_daemon_is_followed_by_the_next(daemons: Daemons) -> None:
    with Ring(daemons.connect) as ring:
        ns = ring.ns_create("survives")
        done = 0
        for _ in range(3):
            killer = threading.Timer(0.05, daemons.kill)
            killer.start()
            last = len(daemons.processes)
            while len(daemons.processes) == last:
                statuses = ring.put(ns, [(key(done + i), data(done + i)) for i in range(8)])
                # asked again, it may have been done before
                assert set(statuses) <= {0, errno.EEXIST}
                done += 8
                if done > 4000:
                    done = 0
            killer.join()
        statuses = ring.put(ns, [(key(n), b"?") for n in range(min(done, 500))])
        assert set(statuses) <= {errno.EEXIST}
        assert ring.stats()["generation"] == 4
    assert daemons.processes[-1].wait(20) == 0, "the daemon did not notice that the ring was closed"


@pytest.mark.flat_pool
def test_without_a_daemon_the_outcome_is_unknown(daemons: Daemons) -> None:
    ring = Ring(daemons.connect)
    ns = ring.ns_create("n")
    daemons.may_start = False
    daemons.kill()
    with pytest.raises(UnknownOutcome, match="nobody is there") as unknown:
        ring.put(ns, [(key(1), b"1")], timeout_s=0.3)
    assert unknown.value.errno == errno.ENOTCONN and unknown.value.number
    daemons.may_start = True
    assert ring.put(ns, [(key(1), b"1")]) == [0]
    ring.close()


@pytest.mark.flat_pool
def test_a_daemon_notices_that_its_client_was_killed(daemons: Daemons) -> None:
    script = (
        "import os, sys, time\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import test_ring\n"
        "daemons = test_ring.Daemons(test_ring.Path(sys.argv[2]))\n"
        "ring = test_ring.Ring(daemons.connect)\n"
        "ring.ping()\n"
        "print(daemons.processes[0].pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    where = os.path.dirname(__file__)
    client = subprocess.Popen(
        [sys.executable, "-c", script, where, str(daemons.path)], stdout=subprocess.PIPE
    )
    assert client.stdout
    daemon = os.pidfd_open(int(client.stdout.readline()))
    client.kill()
    client.wait()
    client.stdout.close()
    import select

    assert select.select([daemon], [], [], 20)[0], "the daemon serves a client that is dead"
    os.close(daemon)


def test_a_child_of_fork_has_no_ring(native: Any, serve: Callable[..., Any]) -> None:
    server = serve(None)
    client = native.RingClient()
    ring, bell, _ = client.fds()
    server.add(ring, bell)
    pid = os.fork()
    if pid == 0:
        ok = 1
        try:
            refused = client.call(1, 0, b"", 0, 0, 1.0)[0] == errno.EXDEV
            try:
                server.stats()
            except ValueError:
                ok = 0 if refused else 1
            server.stop()
            client.close()
        finally:
            os._exit(ok)
    assert os.waitpid(pid, 0)[1] == 0
    assert client.call(1, 3, b"", 0, 0, 5.0)[2] == 3
    client.close()


# ---- how fast ------------------------------------------------------------------------------------


def test_the_measurement_measures() -> None:
    """Small: what it prints is read by people, and a loaded machine promises no time."""
    from belugafs import ring_bench

    result = ring_bench.measure(calls=500, many=5000, in_flight=64)
    assert 0.05 < result.median_us <= result.p99_us
    assert result.requests_per_s > 100
    said = "\n".join(ring_bench.lines(result))
    assert "2.11" in said and "12.13" in said and "64 requests" in said

"""The library on trio: the same calls, awaited, and nothing is lost when they are cancelled."""

from __future__ import annotations

import gc
import inspect
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import belugafs
from belugafs import aio, client

pytestmark = pytest.mark.flat_pool

LIMIT_S = 30
BLOCK_BYTES = 8192
arrived: list[int] = []
"""Leases as of each slow `read`, when it had them."""


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


@pytest.fixture
def filled(pool_file: Path) -> Path:
    with belugafs.connect(pool_file) as pool:
        core = pool._host.pool  # type: ignore[union-attr]
        ns = core.ns_create("llama")
        for number in range(10):
            core.block_put(ns, key(number), bytes([number]) * BLOCK_BYTES)
    return pool_file


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """`read` waits for this."""
    go_on = threading.Event()
    read = client.Namespace.read

    def wait(self: Any, keys: Any) -> Any:
        assert go_on.wait(LIMIT_S)
        blocks = read(self, keys)
        arrived.append(self._client.leases)
        return blocks

    wait.__name__ = "read"
    monkeypatch.setattr(aio.Namespace, "read", aio._twin(wait))
    yield go_on
    go_on.set()


def test_calls(filled: Path) -> None:
    keys = [key(number) for number in range(12)]

    async def main() -> None:
        async with await aio.connect(filled) as pool:
            assert isinstance(pool, aio.Pool)
            assert pool.place == str(filled)
            ns = await pool.namespace("llama")
            assert isinstance(ns, aio.Namespace)
            assert ns.name == "llama"
            assert "llama" in repr(ns)
            assert await ns.match(keys) == 10
            assert (await ns.exists(keys)).sum() == 10
            assert await ns.get(key(3)) == b"\3" * BLOCK_BYTES
            with await ns.read(keys) as blocks:
                assert isinstance(blocks, client.Blocks)
                assert blocks[4].view == b"\4" * BLOCK_BYTES
            with await pool.read_files(["none"]) as files:
                assert files.present == [False]
            await pool.check()
            with pytest.raises(FileNotFoundError, match="no namespace"):
                await pool.namespace("none")
            with pytest.raises(TypeError, match="gone"):
                pool.watch(print)
            assert not pool.closed
        assert pool.closed

    trio.run(main)


def test_others_go_on_while_a_call_waits(filled: Path, slow: threading.Event) -> None:
    async def main() -> None:
        async with await aio.connect(filled) as pool:
            ns = await pool.namespace("llama")
            done = []

            async def read() -> None:
                with await ns.read([key(1)]) as blocks:
                    done.append(bytes(blocks[0].view[:1]))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                assert await ns.match([key(0)]) == 1
                assert done == []
                slow.set()
            assert done == [b"\1"]

    trio.run(main)


def test_what_a_cancelled_read_leases_is_given_back(filled: Path, slow: threading.Event) -> None:
    async def main() -> None:
        async with await aio.connect(filled) as pool:
            ns = await pool.namespace("llama")
            begin = time.monotonic()
            with trio.move_on_after(0.05):
                await ns.read([key(number) for number in range(10)])
            assert time.monotonic() - begin < LIMIT_S  # it wasn't waited for
            arrived.clear()
            slow.set()
            with trio.fail_after(LIMIT_S):
                while not arrived or pool.sync._client.leases:
                    await trio.sleep(0.01)
                    gc.collect()
            assert arrived == [10]
            assert pool.sync._host.pool.clients()[0]["leases"] == 0

    trio.run(main)


def test_what_changes_something_is_waited_for(filled: Path) -> None:
    """Its memory is the caller's, who may use it for something else once the call has ended."""
    done = []

    class Writer:
        def put(self, key: bytes) -> None:
            time.sleep(0.2)
            done.append(key)

    async def main() -> None:
        with trio.move_on_after(0.01):
            await aio.Twin(Writer()).put(b"k")

    trio.run(main)
    assert done == [b"k"]


def test_calls_that_are_named_nowhere_are_twins(filled: Path) -> None:
    """What the library gets later is awaited by the same scheme, and so is what it returns."""

    class Reservation(list[int]):
        size_bytes = 7

        def commit(self, filled: int = 0) -> int:
            return filled

    class Later:
        def reserve(self) -> Reservation:
            return Reservation([4, 5])

        @property
        def number(self) -> int:
            return 3

    async def main() -> None:
        twin = aio.Twin(Later())
        assert twin.number == 3
        reservation = await twin.reserve()
        assert isinstance(reservation, aio.Twin)
        assert reservation.size_bytes == 7
        assert await reservation.commit(filled=5) == 5
        assert (list(reservation), reservation[1], len(reservation)) == ([4, 5], 5, 2)
        with pytest.raises(AttributeError):
            _ = twin.nothing
        with pytest.raises(AttributeError):
            _ = twin._private

    trio.run(main)


def test_a_cancelled_block_still_closes_its_pool(filled: Path) -> None:
    pools: list[aio.Pool] = []

    async def main() -> None:
        with trio.CancelScope() as scope:
            async with await aio.connect(filled) as pool:
                pools.append(pool)
                scope.cancel()
                await trio.sleep(LIMIT_S)

    trio.run(main)
    assert pools[0].sync.closed


def test_gone(filled: Path) -> None:
    async def main() -> None:
        pool = await aio.connect(filled)
        with trio.move_on_after(0.1) as scope:
            await pool.gone(every_s=0.01)
        assert scope.cancelled_caught
        error = belugafs.LeaseLost("declared dead")

        def lost() -> None:
            raise error

        pool.sync.check, check = lost, pool.sync.check  # type: ignore[method-assign]
        pool.check = aio._twin(lambda self: self.check()).__get__(pool)  # type: ignore[method-assign]
        assert await pool.gone(every_s=0.01) is error
        del check
        await pool.close()

    trio.run(main)


@pytest.mark.parametrize(
    ("twin", "of"), [(aio.Namespace, client.Namespace), (aio.Pool, client.Pool)]
)
def test_twins_take_what_their_calls_take(twin: type, of: type) -> None:
    for name, method in vars(of).items():
        if name in vars(twin) and inspect.isfunction(method) and name not in ("watch",):
            if name.startswith("__"):
                continue
            assert inspect.signature(getattr(twin, name)) == inspect.signature(method), name
            assert inspect.iscoroutinefunction(getattr(twin, name)), name
            assert getattr(twin, name).__doc__ == method.__doc__, name


def test_storing(filled: Path) -> None:
    """Reservations are committed at the end of a block, in a thread."""
    new = [key(number) for number in range(100, 104)]

    async def main() -> None:
        async with await aio.connect(filled, patience_s=LIMIT_S) as pool:
            ns = await pool.namespace("gemma", create=True)
            async with await ns.reserve(new, BLOCK_BYTES) as reservation:
                assert len(reservation) == 4
                for block in reservation:
                    block.view[:] = block.key[-1:] * BLOCK_BYTES
                assert await reservation.commit() == 4
            assert reservation.stored == [True] * 4
            assert await ns.match(new) == 4
            assert await ns.get(new[2]) == b"\x66" * BLOCK_BYTES
            assert await ns.put(key(1), b"x" * 100)
            assert (await ns.delete([key(1), key(2)])).tolist() == [True, False]
            assert (await ns.pin(new, "soft")).all()

    trio.run(main)

"""What is leased doesn't stand any more: told at once, to whoever asks to be."""

from __future__ import annotations

import logging
import os
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

import belugafs
from belugafs import _native, client

pytestmark = pytest.mark.flat_pool

LIMIT_S = 30
EVERY_S = 0.01


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


@pytest.fixture
def hosts(pool_file: Path, attach: Any) -> Any:
    """A pool with a host that a process reads by (and that has died since), and another host."""
    core = attach(pool_file)
    ns = core.ns_create("llama")
    core.block_put(ns, key(1), b"x" * 8192)
    core.close()
    first = attach(pool_file, host_uuid=b"1" * 16, local_dir="")
    pool = client.Pool(_native.Client.open(*first.client_new(os.getpid(), 0)), str(pool_file))
    yield pool, first, lambda: attach(pool_file, host_uuid=b"2" * 16)
    pool.close()


def test_a_host_that_is_declared_dead(hosts: Any) -> None:
    pool, first, other = hosts
    slot = first.statfs()["slot"]
    told: list[BaseException] = []
    called = threading.Event()

    def gone(error: BaseException) -> None:
        told.append(error)
        called.set()

    with pool.watch(gone, every_s=EVERY_S), pool.namespace("llama").read([key(1)]) as blocks:
        assert blocks[0].view[:1] == b"x"
        pool.check()
        first.close(clean=False)
        second = other()
        assert not called.wait(10 * EVERY_S)
        second.declare_dead(slot)
        assert called.wait(LIMIT_S)
        with pytest.raises(belugafs.LeaseLost, match="declared dead"):
            pool.check()
        with pytest.raises(belugafs.LeaseLost):
            blocks.close()
        pool.check()  # nothing is leased any more
    assert [type(error) for error in told] == [belugafs.LeaseLost]


def test_a_pool_that_is_made_anew(hosts: Any, pool_file: Path) -> None:
    pool, _, _ = hosts
    called = threading.Event()
    told: list[BaseException] = []
    with pool.watch(lambda error: (told.append(error), called.set()), every_s=EVERY_S):
        pool.check()
        fd = os.open(pool_file, os.O_RDWR)
        try:
            _native.mkfs(fd, os.fstat(fd).st_size, uuid=uuid.uuid4().bytes)
        finally:
            os.close(fd)
        assert called.wait(LIMIT_S)
    assert [type(error) for error in told] == [belugafs.PoolGone]
    with pytest.raises(belugafs.PoolGone, match="made anew"):
        pool.check()


def test_a_pool_that_is_cut(hosts: Any, pool_file: Path) -> None:
    pool, first, _ = hosts
    size_bytes = pool_file.stat().st_size
    os.truncate(pool_file, size_bytes - 4096)
    with pytest.raises(belugafs.PoolGone, match="cut"):
        pool.check()
    os.truncate(pool_file, 0)
    with pytest.raises(belugafs.PoolGone):
        pool.check()
    first.close(clean=False)
    pool_file.unlink()


def test_the_end_of_a_watch(hosts: Any, caplog: pytest.LogCaptureFixture) -> None:
    pool, _, _ = hosts
    with pytest.raises(ValueError, match="every_s"):
        pool.watch(print, every_s=0)
    watch = pool.watch(print, every_s=1000)
    watch.close()
    watch.close()
    # With the connection, by itself.
    watch = pool.watch(print, every_s=EVERY_S)
    pool.close()
    watch._thread.join(LIMIT_S)
    assert not watch._thread.is_alive()
    with pytest.raises(OSError, match="closed"):
        pool.check()


def test_a_callback_that_fails_is_logged(
    hosts: Any, pool_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool, first, _ = hosts
    with caplog.at_level(logging.ERROR):
        watch = pool.watch(lambda error: 1 // 0, every_s=EVERY_S)
        os.truncate(pool_file, 0)
        watch._thread.join(LIMIT_S)
    assert "the callback for a pool that is gone failed" in caplog.text
    watch.close()
    first.close(clean=False)
    pool_file.unlink()

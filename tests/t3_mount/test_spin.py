"""Threads of the direct transport that look for the next request before they sleep."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

LONGEST_US = 1000


@pytest.fixture(params=[0, LONGEST_US], ids=["sleeping", "looking"])
def spinning_pool(mounted_pool: Any, request: pytest.FixtureRequest) -> Any:
    """Mounted over ``direct``, with threads that never look, or as long as they may."""
    if mounted_pool.transport != "direct":
        pytest.skip("only the direct transport has threads that look")
    mounted_pool.remount(f"spin_us={request.param}")
    return mounted_pool


def daemon_cpu_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextmanager
def asking(mount: Path, threads: int) -> Iterator[list[int]]:
    """Threads that ask one thing after the other; how many questions each has had answered."""
    done = [0] * threads
    stop = threading.Event()

    def ask(i: int) -> None:
        with suppress(OSError):  # what comes when the connection is cut
            while not stop.is_set():
                with suppress(FileNotFoundError):
                    os.stat(mount / f"missing-{i}-{done[i]}")
                done[i] += 1

    workers = [threading.Thread(target=ask, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    yield done
    stop.set()
    for worker in workers:
        worker.join()


def test_config_says_how_long(spinning_pool: Any) -> None:
    wanted = spinning_pool.options.removeprefix("spin_us=")
    assert spinning_pool.config()["spin_us"] == (
        wanted if len(os.sched_getaffinity(0)) > 1 else "0"
    )


def test_requests_of_many_threads_get_their_own_answers(spinning_pool: Any) -> None:
    """A reply goes back on the way its request came."""
    wrong: list[str] = []

    def work(i: int) -> None:
        for n in range(60):
            path = spinning_pool.path / f"{i}-{n}"
            data = f"{i} {n} ".encode() * (1 + n * 997 % 20000)
            path.write_bytes(data)
            if path.read_bytes() != data or path.stat().st_size != len(data):
                wrong.append(path.name)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
    assert len(os.listdir(spinning_pool.path)) == 6 * 60


def test_who_asks_nothing_costs_nothing(spinning_pool: Any) -> None:
    with asking(spinning_pool.path, 2) as done:
        time.sleep(0.3)
    assert min(done) > 100
    time.sleep(0.1)
    before = daemon_cpu_s(spinning_pool.daemon_pid)
    time.sleep(2)
    assert daemon_cpu_s(spinning_pool.daemon_pid) - before < 1  # of 2 that a thread could have used


def test_questions_with_pauses_are_not_waited_for(spinning_pool: Any) -> None:
    """Longer ones than it would look: each look is for nothing, and soon there is none."""
    for n in range(200):  # as quickly as they go
        with suppress(FileNotFoundError):
            os.stat(spinning_pool.path / f"quick-{n}")
    before = daemon_cpu_s(spinning_pool.daemon_pid)
    begun = time.monotonic()
    for n in range(400):
        time.sleep(2.5 * LONGEST_US / 1e6)
        with suppress(FileNotFoundError):
            os.stat(spinning_pool.path / f"slow-{n}")
    wall_s = time.monotonic() - begun
    # 400 looks for nothing take 0.4 s; the rest is what serving takes, on a busy machine, too
    assert (
        daemon_cpu_s(spinning_pool.daemon_pid) - before < 0.3 * LONGEST_US / 1e6 * 400 + wall_s / 10
    )


def test_an_abort_ends_threads_that_look(spinning_pool: Any, fuse_control: None) -> None:
    spinning_pool.expect_log("connection ended")
    with asking(spinning_pool.path, 2) as done:
        time.sleep(0.2)
        spinning_pool.abort()
        spinning_pool.wait_gone()
    assert min(done) > 50


def test_an_unmount_ends_threads_that_look(spinning_pool: Any) -> None:
    with asking(spinning_pool.path, 2) as done:
        time.sleep(0.2)
        spinning_pool.umount(lazy=True)
    spinning_pool.wait_gone()
    assert min(done) > 50
    spinning_pool.assert_clean()


def test_a_number_that_is_none_is_refused(mounted_pool: Any) -> None:
    mounted_pool.umount()
    for value in ("1001", "-1", "2.5", "auto", ""):
        done = mounted_pool.try_mount(f"spin_us={value}")
        assert done.returncode == 1, value
        assert "spin_us" in done.stderr and "1000" in done.stderr
    mounted_pool.mount("")

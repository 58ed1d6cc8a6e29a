"""Databases on a mount: SQLite with a journal and with a write-ahead log, and diskcache over it.

llama-cpp-python's server keeps prompt states in diskcache: an index in SQLite, and the states in
files of their own, written in small pieces.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import diskcache
import pytest

MIB = 1 << 20

JOURNALS = pytest.mark.parametrize("journal", ["delete", "truncate", "persist", "wal"])

# Adds one to a counter in many small transactions, and moves money between accounts.
WORKER = """
import random, sqlite3, sys
path, seed, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
db = sqlite3.connect(path, timeout=60, isolation_level=None)
for _ in range(rounds):
    db.execute("begin immediate")
    db.execute("update counter set n = n + 1")
    a, b = rng.sample(range(100), 2)
    db.execute("update account set money = money - 7, note = ? where id = ?", (bytes(3000), a))
    db.execute("update account set money = money + 7 where id = ?", (b,))
    db.execute("commit")
    if rng.random() < 0.3:
        assert db.execute("select sum(money) from account").fetchone() == (100_000,)
"""


def make_database(path: Path, journal: str) -> None:
    with sqlite3.connect(path) as db:
        assert db.execute(f"pragma journal_mode = {journal}").fetchone() == (journal,)
        db.execute("create table counter (n integer)")
        db.execute("insert into counter values (0)")
        db.execute("create table account (id integer primary key, money integer, note blob)")
        rows = [(number, 1000, bytes(500)) for number in range(100)]
        db.executemany("insert into account values (?, ?, ?)", rows)
    db.close()


def check(path: Path) -> int:
    """The counter of a database that must be sound."""
    db = sqlite3.connect(path, timeout=60)
    try:
        assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
        assert db.execute("select sum(money) from account").fetchone() == (100_000,)
        return int(db.execute("select n from counter").fetchone()[0])
    finally:
        db.close()


def start(path: Path, seed: int, rounds: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WORKER, str(path), str(seed), str(rounds)])


@JOURNALS
def test_several_processes_write_one_database(kv_dir: Path, journal: str) -> None:
    path = kv_dir / "index.db"
    make_database(path, journal)
    workers = [start(path, seed, 40) for seed in range(3)]
    assert [worker.wait(90) for worker in workers] == [0, 0, 0]
    assert check(path) == 120


@JOURNALS
def test_a_killed_writer_leaves_a_sound_database(kv_dir: Path, journal: str) -> None:
    """Whoever comes next rolls back what the dead one had begun."""
    path = kv_dir / "index.db"
    make_database(path, journal)
    rng = random.Random(journal)
    before = 0
    for seed in range(6):
        worker = start(path, seed, 1_000_000)
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                worker.wait(0.4 + rng.random() * 0.3)
        finally:
            worker.send_signal(signal.SIGKILL)
            worker.wait(30)
        after = check(path)
        assert after >= before
        before = after
    assert before > 0


# Begins a transaction that doesn't fit the page cache, so that the database file is changed
# before the commit, says so and waits to be killed.
HALF_DONE = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("pragma cache_size = 5")
db.execute("begin immediate")
db.execute("update account set money = money + 1, note = zeroblob(5000)")
print("changed", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_the_journal_of_a_killed_writer_is_there(mounted_pool: Any, journal: str) -> None:
    """A file that was synced is kept, though its writer was killed, and also when the pool gets
    full: without its journal the half changed database could not be rolled back."""
    path = Path(mounted_pool.path) / "index.db"
    make_database(path, journal)
    worker = subprocess.Popen(
        [sys.executable, "-c", HALF_DONE, str(path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "changed\n"
    finally:
        worker.kill()
        worker.communicate(timeout=30)
    assert len(os.listdir(path.parent)) > 1
    for number in range(128):
        (path.parent / f"block{number}").write_bytes(bytes([number]) * MIB)
    assert check(path) == 0


@JOURNALS
def test_a_killed_daemon_leaves_a_sound_database(mounted_pool: Any, journal: str) -> None:
    path = Path(mounted_pool.path) / "index.db"
    make_database(path, journal)
    worker = start(path, 1, 1_000_000)
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(0.6)
    mounted_pool.kill9()
    assert worker.wait(30) != 0  # its descriptors are dead
    mounted_pool.mount()
    assert check(path) > 0


def test_a_full_pool_keeps_the_database(mounted_pool: Any) -> None:
    """Blocks are evicted around it."""
    top = Path(mounted_pool.path)
    make_database(top / "index.db", "wal")
    for number in range(128):
        worker_rounds = 1 if number % 16 == 0 else 0
        if worker_rounds:
            assert start(top / "index.db", number, worker_rounds).wait(30) == 0
        (top / f"block{number}").write_bytes(bytes([number]) * MIB)
    assert check(top / "index.db") == 8
    blocks = [name for name in os.listdir(top) if name.startswith("block")]
    assert 16 <= len(blocks) < 64


def test_diskcache(kv_dir: Path) -> None:
    """What llama-cpp-python does with it: large values under tuples of tokens, pop on a hit."""
    key, state = tuple(range(600)), os.urandom(6 * MIB)
    with diskcache.Cache(str(kv_dir)) as cache:
        cache[key] = state
        cache[(1, 2, 3)] = b"short"
        assert set(cache.iterkeys()) == {key, (1, 2, 3)}
        assert list(kv_dir.rglob("*.val"))
    with diskcache.Cache(str(kv_dir)) as cache:
        assert cache.check() == []
        assert cache.pop(key) == state
        assert not list(kv_dir.rglob("*.val"))
        cache[key] = state
        assert cache[key] == state
        # A value that the filesystem evicted is a miss.
        next(kv_dir.rglob("*.val")).unlink()
        assert cache.get(key) is None
        with pytest.raises(KeyError):
            cache[key]
        cache[key] = state
        assert cache[key] == state


CACHE_USER = """
import diskcache, os, random, sys
rng = random.Random(int(sys.argv[2]))
with diskcache.Cache(sys.argv[1], timeout=60) as cache:
    for _ in range(30):
        number = rng.randrange(12)
        value = cache.pop(number)
        assert value is None or value == bytes([number]) * 100_000, number
        cache[number] = bytes([number]) * 100_000
        cache.incr("rounds")
"""


def test_diskcache_of_several_processes(kv_dir: Path) -> None:
    users = [
        subprocess.Popen([sys.executable, "-c", CACHE_USER, str(kv_dir), str(seed)])
        for seed in range(3)
    ]
    assert [user.wait(90) for user in users] == [0, 0, 0]
    with diskcache.Cache(str(kv_dir)) as cache:
        assert cache.check() == []
        assert cache["rounds"] == 90
        values = [key for key in cache.iterkeys() if key != "rounds"]
        assert all(cache[key] == bytes([key]) * 100_000 for key in values)
        assert len(list(kv_dir.rglob("*.val"))) == len(values)

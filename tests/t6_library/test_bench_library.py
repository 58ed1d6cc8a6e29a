"""``belugafs bench --library``: what it measures and says, and that it leaves nothing."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from belugafs import ring_bench
from belugafs.bench import cli
from belugafs.bench.library import blocks, lookups, peers, report, rows, run, stores
from belugafs.exits import Exit
from belugafs.pool import PoolError

# The second: a run must leave nothing in /dev/shm.
pytestmark = [pytest.mark.flat_pool, pytest.mark.alone("machine"), pytest.mark.timeout(300)]

BLOCK_BYTES = 4096
MANY = 12_000
ROWS = {
    "match, present",
    "match, absent",
    "exists, absent",
    "batch, from C",
    "batch, from an array",
    "batch, from a list",
    "lease and views",
    "lease alone",
    "release",
    "first use",
    "read 16 KiB",
    "put 16 KiB",
    "read 2.5 MiB",
    "put 2.5 MiB",
    "get 16 KiB",
    "reserve and commit",
    "commits in batches",
    "with checksums",
    "store a prompt",
    "16-token blocks",
    "first put",
    "first pass, verify=off",
    "first pass, verify=first",
    "match, present, 1e+04",
    "exists, absent, 1e+04",
    "a fresh reader, 1e+04",
}


def plan(directory: Path, **changed: Any) -> run.Plan:
    values: dict[str, Any] = {
        "many": MANY,
        "block_bytes": BLOCK_BYTES,
        "rounds": 1,
        "budget_s": 5.0,
        "with_peers": False,
        "directory": str(directory),
        "few": 2000,
        "ring_calls": 2000,
        "kernel_s": 0.1,
        "kernel_bytes": 48 << 20,
    }
    return run.Plan(**{**values, **changed})


def test_a_run(pool_dir: Path, fuse_control: None, capsys: pytest.CaptureFixture[str]) -> None:
    """All of it, once: every row has every place that it ought to have."""
    if not os.path.exists("/dev/fuse"):
        pytest.skip("no /dev/fuse here")
    before = set(glob.glob("/dev/shm/belugafs-bench-*"))
    steps: list[str] = []
    outcome = run.run(plan(pool_dir), steps.append)
    assert os.listdir(pool_dir) == []
    assert set(glob.glob("/dev/shm/belugafs-bench-*")) <= before
    assert "bench" not in Path("/proc/self/mountinfo").read_text()

    assert {row.name for row in outcome.rows} == ROWS
    assert outcome.many == MANY
    assert outcome.missing == {}
    assert steps[0] == "storing blocks" and steps[-1] == "the request ring"
    found = json.loads(json.dumps(report.as_dict(outcome)))
    results = {result["name"]: result for result in found["results"]}
    for name, result in results.items():
        assert result["places"]["library"]["median_us"] > 0, name
        if result["limit"]:
            assert result["ratios"][result["limit"]] > 0, name
        if result["bytes"]:
            assert result["places"]["library"]["cpu_s_per_gb"] >= 0, name
    for name in ("match, present", "lease and views", "release", "put 16 KiB", "store a prompt"):
        assert set(results[name]["ratios"]) >= {"dict", "FUSE"}, name
        assert results[name]["ratios"]["FUSE"] > 0
    assert results["match, present"]["count"] == 938
    assert results["lease and views"]["bytes"] == 938 * BLOCK_BYTES
    assert "rep movsb" not in results["read 2.5 MiB"]["places"]
    assert found["ring"]["paper_round_trip_us"] == ring_bench.PAPER_ROUND_TRIP_US
    assert {row["name"] for row in found["kernels"]} >= {"gather 128 x 20 KiB"}

    report.print_tables(outcome)
    text = capsys.readouterr().out
    for word in (*ROWS, "ring: round trip", "paper: 2.11 us", "gather 128 x 20 KiB", "/ FUSE"):
        assert word in text
    assert text.index("speed of the library") < text.index("us of one run")
    pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")
    report.draw(outcome, str(pool_dir / "bench.svg"))
    assert "</svg>" in (pool_dir / "bench.svg").read_text()
    with pytest.raises(PoolError, match="no/such"):
        report.draw(outcome, "/no/such/bench.svg")


def small_library(directory: Path) -> stores.LibraryStore:
    return stores.LibraryStore(str(directory / "pool"), 64 << 20, 1000)


def test_every_store_does_the_same(pool_dir: Path, mounted_pool: Any) -> None:
    """Whatever the place, an operation means the same: else a ratio would mean nothing."""
    library = small_library(pool_dir)
    place = types.SimpleNamespace(
        mount_point=str(mounted_pool.path), daemon_cpu_s=lambda: 1.0, abort=lambda: None
    )
    made: list[Any] = [library, stores.DictStore(), stores.FuseStore(place)]  # type: ignore[arg-type]
    try:
        made.append(peers.LmdbStore(str(pool_dir / "lmdb"), 64 << 20))
    except peers.PeerMissing:
        assert "lmdb" not in sys.modules
    keys, absent = lookups.keys_of(0, 20), lookups.keys_of(1 << 40, 20)
    data = bytes(range(256)) * 64
    for store in made:
        store.fill(keys, data)
        assert store.match(keys) == 20, store.name
        assert store.match(keys[:5] + absent) == 5, store.name
        assert store.exists(absent + keys[:3]) == 3, store.name
        held = store.hold(keys)
        views = held[1] if isinstance(held, tuple) else held
        assert [bytes(view) for view in views] == [data] * 20, store.name
        del views
        store.let_go(held)
        into = bytearray(len(data))
        store.read(keys[7], memoryview(into))
        assert into == data, store.name
        store.put(absent[0], data)
        assert store.exists(absent) == 1, store.name
        store.remove(absent[0])
        assert store.exists(absent) == 0, store.name
        assert store.cpu_s() >= 0
    in_c = stores.CLibrary(library)
    assert in_c.exists(b"".join(keys + absent)) == 20
    in_c.close()
    library.close()
    if len(made) > 3:
        made[3].close()
    assert not (pool_dir / "pool").exists()


def test_what_is_missing_is_said(pool_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setitem(sys.modules, "lmdb", None)
    monkeypatch.setitem(sys.modules, "mooncake", None)
    missing: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        assert list(peers.peers(str(pool_dir), 1 << 20, stack, missing)) == []
    assert missing["LMDB"] == "pip install lmdb"
    assert missing["Mooncake"] == "pip install mooncake-transfer-engine-non-cuda"

    def none(*_: object) -> Any:
        raise PoolError("no mount here", Exit.UNSUPPORTED)

    monkeypatch.setattr(run, "measured_place", none)
    with run._fuse(1 << 20, missing) as store:
        assert store is None
    assert missing["FUSE"] == "no mount here"


def test_as_many_blocks_as_fit(monkeypatch: pytest.MonkeyPatch, pool_dir: Path) -> None:
    monkeypatch.setattr(stores, "free_bytes", lambda directory: 1_400_000)
    assert stores.blocks_that_fit(str(pool_dir), 10**7) == 1000
    assert stores.blocks_that_fit(str(pool_dir), 10) == 10
    monkeypatch.setattr(run, "free_bytes", lambda directory: 1 << 20)
    with pytest.raises(PoolError, match="--block"):
        run.run(plan(pool_dir), lambda text: None)
    assert os.listdir(pool_dir) == []


def test_ratios_and_goals() -> None:
    """A ratio is the median of the rounds' ratios; without bytes there is no figure per GB."""
    row = rows.Row("x", "", 10, 0, {}, limit="memcpy", ratio_goal=0.9, rate_goal=1.0)
    assert row.met is None
    row.places = {
        "library": rows.Measured([1.0, 2.0, 8.0], [1.0] * 3),
        "memcpy": rows.Measured([1.0, 1.8, 4.0], [1.0] * 3),
    }
    assert row.ratio("memcpy") == 0.9
    assert row.ratio("dict") is None
    assert row.met is True
    assert row.goal == ">= 0.9 of memcpy, >= 1e-06 M/s"
    row.time_goal_s = 1.5
    assert row.met is False
    assert row.cpu_s_per_gb("library") is None
    assert row.cpu_us_per_operation("library") == 1e5
    row.size_bytes = 10**9
    assert row.cpu_s_per_gb("library") == 1.0
    row.places["rep movsb"] = rows.Measured([1.0, 1.0, 1.0], [1.0] * 3)
    blocks.best_memcpy(row)
    assert row.ratio("memcpy") == 0.5
    assert "rep movsb" not in row.places


def test_a_work_is_timed_without_what_stands_around_it() -> None:
    log: list[str] = []
    work = rows.Work(
        lambda: log.append("run") or "result",  # type: ignore[func-returns-value]
        before=lambda: log.append("before"),
        after=lambda result: log.append(result),
        cpu_s=lambda: float(len(log)),
        runs_max=2,
    )
    row = rows.Row("x", "", 2, 0, {"library": work})
    assert rows.measure([row], rounds=3, budget_s=60, step=log.append) == 3
    assert log[:7] == ["x, round 1", "before", "run", "result", "before", "run", "result"]
    assert len(row.places["library"].seconds) == 3
    assert row.places["library"].cpu_seconds[0] >= 1.0
    assert rows.measure([row], rounds=1000, budget_s=0, step=lambda text: None) == 1


def test_the_command(pool_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[run.Plan] = []

    def fake(wanted: run.Plan, step: Any) -> run.Outcome:
        asked.append(wanted)
        step("working")
        ring = ring_bench.Result(1, 1.0, 1.0, 128, 1e6, 0.0, 2)
        return run.Outcome([], [], ring, 5, 1, {}, {"cpus": 2, "load_1m": 0.5})

    monkeypatch.setattr(run, "run", fake)

    def command(*arguments: str) -> int:
        code: int = cli.bench_command.main([*arguments], standalone_mode=False)
        return code

    assert command("--library", "--tmpfs", str(pool_dir), "--json") == 0
    assert asked[0].many == 10_000_000 and asked[0].block_bytes == 256 << 10
    assert asked[0].directory == str(pool_dir) and not asked[0].with_peers
    options = ["--blocks", "30000", "--block", "2.5M", "--peers", "--seconds", "7", "--rounds", "2"]
    assert command("--library", *options) == 0
    assert (asked[1].many, asked[1].block_bytes, asked[1].with_peers) == (30000, 5 << 19, True)
    assert (asked[1].rounds, asked[1].budget_s) == (2, 7)
    assert command("--library", "/mnt") == 1
    assert command("--peers") == 1
    assert command("--blocks", "30000") == 1
    assert command("--library", "--tmpfs", "/no/such") == 1
    assert len(asked) == 2

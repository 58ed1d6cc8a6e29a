"""``belugafs bench``: what it measures, what it says, and that it leaves nothing behind."""

from __future__ import annotations

import glob
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from belugafs.bench.plan import Cell, cells, room_bytes
from belugafs.bench.runner import Result, Sample

# A run must leave nothing in /dev/shm.
pytestmark = [pytest.mark.alone("machine"), pytest.mark.timeout(300)]
MIB = 1 << 20
_QUICK = ["--rounds", "2", "--seconds", "2"]
_LIMIT_S = 80


@pytest.fixture
def leftovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a run makes; compared with what is there afterwards. Others may be running one."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def look() -> set[str]:
        return {*glob.glob("/dev/shm/belugafs-bench-*"), *glob.glob(f"{tmp_path}/belugafs-*")}

    return look


def _bench(*arguments: object, code: int = 0) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "belugafs.cli", "bench", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_a_pool_is_made_measured_and_removed(fuse_control: None, leftovers: Any) -> None:
    before = leftovers()
    sizes = ["--size", "128M", "--sizes", "16K,1M", "--clients", "1,2"]
    found = json.loads(_bench("--json", *sizes, *_QUICK).stdout)
    assert leftovers() <= before
    assert "bench" not in Path("/proc/self/mountinfo").read_text()

    results = {(r["case"], r["mode"], r["size_bytes"], r["clients"]): r for r in found["results"]}
    expected = {
        (cell.case, cell.mode, cell.size_bytes, cell.clients)
        for cell in cells([16384, MIB], [1, 2])
    }
    assert set(results) == expected
    for result in results.values():
        assert result["ratio_to_tmpfs"] > 0
        for place in ("mount", "tmpfs"):
            assert result[place]["operations_per_s"] > 0
            assert len(result[place]["rounds_operations_per_s"]) == found["rounds"]
    direct = results["read", "direct", MIB, 2]
    assert direct["ratio_to_memcpy"] > 0
    assert direct["mount"]["bytes_per_s"] == pytest.approx(
        direct["mount"]["operations_per_s"] * MIB, rel=0.01
    )
    assert direct["mount"]["daemon_cpu_s_per_gb"] > 0
    assert direct["tmpfs"]["daemon_cpu_s_per_gb"] == 0
    assert found["rounds"] in (1, 2)  # as many as there is time for
    assert found["mount_time"]["mount_s"] > 0


def test_what_is_in_the_page_cache_does_not_trouble_the_daemon(
    unmounted_pool: Any, make_pool: Any
) -> None:
    """Over pyfuse3; the other transport leaves nothing there."""
    unmounted_pool.pool_path = make_pool(128 * MIB)
    unmounted_pool.mount("transport=pyfuse3")
    sizes = ["--sizes", "1M", "--clients", "1"]
    found = json.loads(_bench("--json", unmounted_pool.path, *sizes, *_QUICK).stdout)
    cpu_s_per_gb = {
        result["mode"]: result["mount"]["daemon_cpu_s_per_gb"]
        for result in found["results"]
        if result["case"] == "read"
    }
    assert cpu_s_per_gb["kept"] < cpu_s_per_gb["direct"]


def test_of_a_mount_that_is_there(mounted_pool: Any, leftovers: Any) -> None:
    before = leftovers()
    (mounted_pool.path / "mine").write_bytes(b"x" * MIB)
    sizes = ["--sizes", "64K", "--clients", "1"]
    text = _bench(mounted_pool.path, *sizes, "--rounds", "1", "--seconds", "1").stdout
    for word in (
        "read direct",
        "read dropped",
        "read kept",
        "map kept",
        "write direct",
        "miss",
        "readdir",
    ):
        assert word in text
    assert "until it answers" not in text  # somebody else's mount stays mounted
    assert os.listdir(mounted_pool.path) == ["mine"]
    assert int(mounted_pool.stats()["evicted_blocks"]) == 0
    assert leftovers() <= before


def test_what_does_not_fit_is_refused_before_anything_is_evicted(mounted_pool: Any) -> None:
    done = _bench(mounted_pool.path, "--sizes", "8M", code=14)
    assert "use smaller --sizes or fewer --clients" in done.stderr
    assert os.listdir(mounted_pool.path) == []
    done = _bench("--json", "--size", "64M", "--sizes", "8M", code=14)
    assert json.loads(done.stdout)["code"] == "NO_SPACE"
    assert "make the pool larger with --size" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--clients", "0"], 1, "numbers from 1 to"),
        (["--clients", "1,x"], 1, "numbers from 1 to"),
        (["--sizes", "big"], 1, "is not a size"),
        (["/no/such"], 2, "no belugafs is mounted on"),
        (["--tmpfs", "/no/such"], 1, "--tmpfs"),
    ],
)
def test_usage(arguments: list[str], code: int, text: str) -> None:
    assert text in _bench(*arguments, code=code).stderr


def test_plot_without_matplotlib_says_what_to_install(pool_dir: Path) -> None:
    script = (
        "import sys; sys.modules['matplotlib'] = None; sys.argv = ['belugafs', 'bench', '--plot',"
        f" '{pool_dir}/p.svg']; from belugafs.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 24
    assert "pip install 'belugafs[plot]'" in done.stderr
    assert os.listdir(pool_dir) == []


def test_plot_draws_a_panel_for_each_size(pool_dir: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")
    from belugafs.bench.plot import draw

    results = [
        _result(Cell("read", "direct", size, clients))
        for size in (0, 16384, MIB)
        for clients in (1, 2, 4)
    ]
    draw(results, str(pool_dir / "bench.svg"))
    text = (pool_dir / "bench.svg").read_text()
    assert "</svg>" in text
    from belugafs.pool import PoolError

    with pytest.raises(PoolError, match="no/such"):
        draw(results, "/no/such/bench.svg")


def test_terminated_it_leaves_nothing(fuse_control: None, leftovers: Any) -> None:
    before = leftovers()
    command = [sys.executable, "-m", "belugafs.cli", "bench", "--size", "128M", "--sizes", "64K"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        deadline = time.monotonic() + 30
        while not _client_of(child.pid):
            assert time.monotonic() < deadline and child.poll() is None
            time.sleep(0.05)
        time.sleep(0.5)
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 143
    assert leftovers() <= before


def test_a_daemon_that_dies_ends_the_run_with_an_error(fuse_control: None, leftovers: Any) -> None:
    before = leftovers()
    command = [sys.executable, "-m", "belugafs.cli", "bench", "--size", "128M", "--sizes", "64K"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        deadline = time.monotonic() + 30
        while not _client_of(child.pid):
            assert time.monotonic() < deadline and child.poll() is None
            time.sleep(0.05)
        made = leftovers() - before
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            source = line.rpartition(" - ")[2].split()[1]
            if os.path.dirname(source) in made:
                stats = Path(line.split()[4], ".beluga/stats").read_text()
                os.kill(int(stats.partition("\npid ")[2].split()[0]), signal.SIGKILL)
        _, error = child.communicate(timeout=60)
        assert child.returncode == 23, error
        assert b"Traceback" not in error
        assert b"a client failed" in error or b"the daemon of the mount has ended" in error
    assert leftovers() <= before


def _client_of(pid: int) -> bool:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return any(b"bench.client" in Path(f"/proc/{c}/cmdline").read_bytes() for c in children)
    except OSError:
        return False


def _sample(rate: float, moved: int = 1000, cpu_s: float = 1.0) -> Sample:
    return Sample(rate, rate * 10, cpu_s, cpu_s / 2, moved)


def _result(cell: Cell) -> Result:
    return Result(cell, [_sample(1)], [_sample(2)], [_sample(4)])


def test_a_ratio_is_the_median_of_the_ratios_within_rounds() -> None:
    """Three rounds, the machine half as fast in the second: no ratio of medians."""
    result = Result(
        Cell("read", "direct", 10, 1),
        mount=[_sample(10), _sample(5), _sample(30)],
        tmpfs=[_sample(20), _sample(10), _sample(40)],
    )
    assert result.ratio("tmpfs") == 0.5
    assert result.ratio("memcpy") is None
    assert result.median("mount", "operations_per_s") == 10
    assert result.cpu_s_per_gb("mount", "client") == pytest.approx(1e6)
    assert result.cpu_s_per_gb("mount", "daemon") == pytest.approx(5e5)
    result.mount[1].daemon_cpu_s = None  # not to be seen from another pid namespace
    assert result.cpu_s_per_gb("mount", "daemon") is None
    assert result.cpu_s_per_gb("mount", "client") == pytest.approx(1e6)
    names = Result(Cell("miss", "", 0, 1), [_sample(1)], [_sample(1)])
    assert names.cpu_s_per_gb("mount", "client") is None


def test_room_is_for_the_largest_size_and_most_clients() -> None:
    assert room_bytes([MIB], [1]) < room_bytes([MIB], [1, 8]) < room_bytes([MIB, 40 * MIB], [8])
    assert room_bytes([40 * MIB], [8]) < 1 << 30  # what the pool has by default

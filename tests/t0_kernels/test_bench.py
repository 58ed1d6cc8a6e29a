"""The benchmark runs, and counts right; its figures are nobody's promise here."""

import json

import numpy as np
import pytest
from fake_cuda import FakeCuda

from belugafs.kernels import Layout, bench, bench_gpu
from belugafs.kernels.choice import Method

MIB = 1 << 20


def test_rows_and_their_ratios(capsys) -> None:
    bench.main(["--json", "--seconds", "0", "--memory-mib", "48"])
    result = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in result["rows"]}
    best = rows["gather 128 x 20 KiB"]["against"]
    assert best in bench.MEMCPY
    assert rows[best]["ratio"] == 1
    assert rows["gather 128 x 20 KiB"]["nbytes"] == 128 * 20 * 1024
    assert rows["gather 16 x 16 tokens"]["nbytes"] == rows["gather 1 x 256 tokens"]["nbytes"]
    for row in rows.values():
        assert row["gb_per_s"] * row["median_us"] * 1e3 == pytest.approx(row["nbytes"])
        assert row["ratio"] > 0
        assert row["cpu_s_per_gb"] > 0
    assert result["gpu"].get("missing") or result["gpu"]["card"]


def test_the_table(capsys) -> None:
    bench.main(["--seconds", "0", "--memory-mib", "48", "--isa", "portable"])
    out = capsys.readouterr().out
    assert "portable, one thread" in out
    assert "scatter 128 x 20 KiB" in out
    assert "GPU: " in out
    bench._copy.set_isa(bench._copy.isas()[0])


def test_the_gpus_part_up_to_the_gpu(monkeypatch) -> None:
    """Every row is measured and every block copied, by a stand-in."""
    fake = FakeCuda()
    monkeypatch.setattr(bench_gpu, "find_gpu", lambda: (fake.cupy, fake.runtime, "a card"))
    monkeypatch.setattr(bench_gpu, "_POOL_BYTES", 4 * MIB)
    monkeypatch.setattr(bench_gpu, "_LARGE_BYTES", MIB)
    monkeypatch.setattr(bench_gpu, "_ROUNDS", 1)
    layout = Layout(2, 2, 2, 64, 16, 2)
    found = bench_gpu.measure_gpu(layout, thresholds=True)
    assert found["card"] == found["thresholds"]["source"] == "a card"
    for side in ("to the pool", "from the pool"):
        assert found[f"one cudaMemcpy of 1 MiB {side}, GB/s"] > 0
        for method in Method:
            assert found[f"4 x 4096 bytes {side} by {method.value}, GB/s"] > 0
    assert found["gather of 64 blocks in one call, GB/s"] > 0
    assert "bfk_scatter_read_paged" in fake.launched
    assert not fake.registered


def test_no_gpu_is_said(monkeypatch) -> None:
    monkeypatch.setenv("BELUGAFS_CUDART", "/nowhere/libcudart.so")
    with pytest.raises(bench_gpu.GpuMissing, match="no CUDA runtime library"):
        bench_gpu.measure_gpu(bench.LAYOUT)


def test_too_little_memory() -> None:
    with pytest.raises(ValueError, match="48 MiB or more"):
        bench.measure_cpu(memory_bytes=MIB)


def test_both_ways_to_see_the_cache_see_the_same_bytes() -> None:
    """A page of 256 tokens is 16 of the small ones in a row."""
    places = bench._Places(48 * MIB, np.random.default_rng(1))
    short, long = places.cache(16), places.cache(256)
    assert (short.npages, long.npages) == (19, 1)
    assert long.order == short.order == "lkthd"
    assert long.parts["engine"].tolist() == short.parts["engine"].tolist()
    assert (long.parts["page_stride"] == 16 * short.parts["page_stride"]).all()

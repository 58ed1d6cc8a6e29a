"""libbelugafs: the header is C11 and C++, and a program needs nothing else."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.flat_pool

PROGRAM = Path(__file__).parent / "program.c"
BLOCK_BYTES = 300 << 10
STORED_BYTES = 300_000


def compiler(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name}")
    return found


def flags(*words: str) -> list[str]:
    command = [sys.executable, "-m", "belugafs.build_flags", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def content(number: int) -> bytes:
    return bytes((number * 7 + i) % 251 for i in range(256)) * (BLOCK_BYTES // 256)


def checksum(data: bytes) -> int:
    total = 0
    for byte in data:
        total = (total * 31 + byte) & (1 << 64) - 1
    return total


@pytest.mark.parametrize(
    "language", ["gcc -std=c11", "g++ -std=c++11"], ids=lambda text: text.rpartition("=")[2]
)
def test_program(language: str, unmounted_pool: Any, attach: Any, tmp_path: Path) -> None:
    name, standard = language.split()
    source = tmp_path / ("program.c" if name == "gcc" else "program.cc")
    source.write_text("#define _POSIX_C_SOURCE 200809L\n" + PROGRAM.read_text())
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    command = [compiler(name), standard, *warnings, *flags("--cflags"), str(source)]
    program = tmp_path / "program"
    built = subprocess.run(
        [*command, "-o", str(program), *flags("--libs")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr

    core = attach(unmounted_pool.pool_path)
    ns = core.ns_create("llama")
    for number in range(5):
        core.block_put(ns, number.to_bytes(8, "big") * 4, content(number))
    core.close()
    unmounted_pool.mount()
    config = (unmounted_pool.path / ".beluga/config").read_text()
    socket = dict(line.partition(" ")[::2] for line in config.splitlines())["library_socket"]
    done = subprocess.run(
        [str(program), socket, "llama", "6"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "match 5",
        "exists 5",
        "leased 5",
        *(f"block {i} 0 {BLOCK_BYTES} 1 {checksum(content(i))}" for i in range(5)),
        "block 5 -2 0 0 0",
        f"get {BLOCK_BYTES}",
        "again 1",
        "committed 5",
        f"again 0 {-errno.EEXIST}",
        "put 1" + 5 * f" {-errno.EEXIST}" + " 0",
        "pinned 6",
        "unpinned 6",
        "deleted 1",
    ]
    stored = {}
    for path in (unmounted_pool.path / "made").glob("*/*/*"):
        stored[int.from_bytes(bytes.fromhex(path.name)[:8], "big")] = path.read_bytes()
    assert stored == {
        1: b"b" * 5 + b"\0" * (STORED_BYTES - 5),
        2: b"c" * 7,
        3: b"d" * STORED_BYTES,
        4: b"e" * STORED_BYTES,
        5: b"some byte",
    }
    unmounted_pool.await_stat("reservations", 0)
    nobody = subprocess.run(
        [str(program), socket + "x", "llama", "1"], capture_output=True, text=True, check=False
    )
    assert nobody.returncode == 1
    assert "no daemon answers" in nobody.stderr


def test_only_the_public_calls_are_exported() -> None:
    library = Path(flags("--libs")[0].removeprefix("-L")) / "libbelugafs.so"
    listed = subprocess.run(
        [compiler("nm"), "-D", "--defined-only", str(library)],
        capture_output=True,
        text=True,
        check=True,
    )
    names = {line.split()[-1] for line in listed.stdout.splitlines()}
    header = (library.parent / "include/belugafs.h").read_text()
    declared = {
        line.split("(")[0].split()[-1].lstrip("*")
        for line in header.splitlines()
        if line.startswith("BFC_API")
    }
    assert len(declared) > 8
    assert names == declared

"""ring.h, _ring_format.py and docs/ring.md say the same of a request ring."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from belugafs import _ring_format as ring
from belugafs.format import FormatError, Struct

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "belugafs" / "_core"
DOC = (ROOT / "docs" / "ring.md").read_text()

CONSTANTS = {
    "RG_VERSION": ring.VERSION,
    "RG_SLOTS_MAX": ring.SLOTS_MAX,
    "RG_SMALL": ring.SMALL,
    "RG_CHUNK": ring.CHUNK,
    "RG_AREA_MAX": ring.AREA_MAX,
    "RG_LINES_OFF": ring.LINES_OFF,
    "RG_TEXT": ring.TEXT,
    "RG_OPEN": ring.OPEN,
    "RG_CLOSED": ring.CLOSED,
    "RG_AGAIN": ring.AGAIN,
    **{f"RG_L_{line.name}": int(line) for line in ring.Line},
}
OPS = {f"RG_OP_{op.name}": int(op) for op in ring.Op}
SHAPES = ((1, 0, 0), (4, 8192, 4096), (128, 4 << 20, 1 << 20), (256, 64 << 20, 64 << 20))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """name -> value, as the compiler sees them."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    lines = [f"P({name}, {name});" for name in CONSTANTS | OPS]
    for cls in ring.STRUCTS:
        name = cls.C[0]
        lines.append(f"P({name}, sizeof(struct {name}));")
        for field in cls.layout():
            lines.append(f"P({name}.{field.name}@, offsetof(struct {name}, {field.name}));")
            size = f"sizeof(((struct {name} *)0)->{field.name})"
            lines.append(f"P({name}.{field.name}#, {size});")
    where = tmp_path_factory.mktemp("ring")
    (where / "print.c").write_text(
        f'#include <stddef.h>\n#include <stdio.h>\n#include "{CORE / "ring.h"}"\n'
        '#define P(name, value) printf("%s %llu\\n", #name, (unsigned long long)(value))\n'
        "int main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    subprocess.run(
        [compiler, "-std=gnu11", "-Wall", "-Werror", "-o", where / "print", where / "print.c"],
        check=True,
    )
    out = subprocess.run([where / "print"], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in (line.split() for line in out.splitlines())}


@pytest.mark.parametrize("cls", ring.STRUCTS, ids=lambda cls: cls.__name__)
def test_struct(cls: type[Struct], compiled: dict[str, int]) -> None:
    name = cls.C[0]
    assert cls.nbytes() == compiled[name]
    for field in cls.layout():
        assert field.offset == compiled[f"{name}.{field.name}@"], field.name
        assert field.size == compiled[f"{name}.{field.name}#"], field.name


def test_constants(compiled: dict[str, int]) -> None:
    for name, value in (CONSTANTS | OPS).items():
        assert compiled[name] == value, name


def test_every_constant_and_struct_of_the_header() -> None:
    text = re.sub(r"/\*.*?\*/", " ", (CORE / "ring.h").read_text(), flags=re.DOTALL)
    named = set(re.findall(r"^#define (RG_\w+)(?![\w(])", text, flags=re.MULTILINE))
    named |= set(re.findall(r"\b(RG_(?:L|OP)_\w+) =", text))
    assert named - {"RG_MAGIC"} <= set(CONSTANTS | OPS)
    lines = re.findall(
        r"static_assert\(((?:sizeof\(struct \w+\) == \d+(?: && )?)+)", text.replace("\n", " ")
    )
    checked = {name for line in lines for name in re.findall(r"struct (\w+)", line)}
    assert checked == {cls.C[0] for cls in ring.STRUCTS}


def test_document() -> None:
    rows = dict(re.findall(r"^\| `(RG_\w+)` \| (\d+) \|", DOC, flags=re.MULTILINE))
    assert {name: int(value) for name, value in rows.items()} == CONSTANTS
    parts = re.split(r"^### `struct (rg_\w+)` \((\d+) bytes\)$", DOC, flags=re.MULTILINE)[1:]
    found = {
        name: (int(size), re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", body, flags=re.MULTILINE))
        for name, size, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }
    assert set(found) == {cls.C[0] for cls in ring.STRUCTS}
    for cls in ring.STRUCTS:
        size, fields = found[cls.C[0]]
        assert size == cls.nbytes()
        said = [(int(at), int(n), name) for at, n, name in fields]
        assert said == [(f.offset, f.size, f.name) for f in cls.layout()], cls.__name__
    ops = re.findall(r"^\| (\d) [a-z]", DOC, flags=re.MULTILINE)
    assert [int(n) for n in ops] == list(ring.Op)


@pytest.mark.parametrize("slots, req_bytes, rep_bytes", SHAPES)
def test_ranges_do_not_overlap(slots: int, req_bytes: int, rep_bytes: int) -> None:
    at = ring.shape(slots, req_bytes, rep_bytes)
    assert ring.LINES_OFF + slots * ring.LINE <= at.rep_line
    assert at.rep_line + slots * ring.LINE <= at.req_pay
    assert at.req_pay + at.req_len <= at.rep_pay
    assert at.rep_pay + at.rep_len <= at.size
    assert all(n % 4096 == 0 for n in (at.rep_line, at.req_pay, at.rep_pay, at.size))


def test_a_bad_head_says_what() -> None:
    with pytest.raises(FormatError, match="request ring: magic"):
        ring.read_head(bytes(4096))

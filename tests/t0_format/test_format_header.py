"""format.h, format.py and docs/format.md say the same.

The header is asked by the compiler: a small C program prints offset and size of every field that
the Python module declares, and the value of every constant that the header names. The Python
structs have no gaps, so a field that only the header has shows as a wrong offset or size. The
tables of the document are parsed and compared with the module.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from belugafs import format as fmt

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "belugafs" / "_core" / "format.h"
DOC = ROOT / "docs" / "format.md"

# Names in format.h that are no constants of the format.
NO_CONSTANT = {"BELUGAFS_FORMAT_H"}
FUNCTION_MACROS = {"BFS_T", "BFS_GADDR", "BFS_GIDX", "BFS_GDEV", "BFS_CHUNK_PAGES"}


def header_names() -> tuple[list[str], list[str]]:
    """Object-like macros and enumerators of format.h."""
    text = re.sub(r"/\*.*?\*/", " ", HEADER.read_text(), flags=re.DOTALL)
    macros = re.findall(r"^#define (\w+)(?![\w(])", text, flags=re.MULTILINE)
    enumerators: list[str] = []
    for body in re.findall(r"\benum\s*\w*\s*\{(.*?)\}", text, flags=re.DOTALL):
        enumerators += re.findall(r"\b(BFS_\w+)\s*(?:=[^,}]*)?(?:,|$)", body.strip())
    return [name for name in macros if name not in NO_CONSTANT | FUNCTION_MACROS], enumerators


def python_value(name: str) -> int | bytes:
    """What format.py says for a constant of format.h."""
    for prefix, enum in fmt.ENUMS.items():
        if name.startswith(prefix) and name.removeprefix(prefix) in enum.__members__:
            return int(enum[name.removeprefix(prefix)])
    value = getattr(fmt, name.removeprefix("BFS_"))
    assert isinstance(value, int | bytes)
    return value


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """name -> value, as the compiler sees them."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    lines = []
    for cls in fmt.STRUCTS:
        struct, member = cls.C
        whole = f"((struct {struct} *)0)->{member}" if member else f"*(struct {struct} *)0"
        base = f"offsetof(struct {struct}, {member})" if member else "(size_t)0"
        lines.append(f'P("{struct}.{member}", sizeof({whole}));')
        for field in cls.layout():
            path = f"{member}.{field.name}" if member else field.name
            at = f"offsetof(struct {struct}, {path}) - {base}"
            lines.append(f'P("{struct}.{member}:{field.name}@", {at});')
            lines.append(
                f'P("{struct}.{member}:{field.name}#", sizeof(((struct {struct} *)0)->{path}));'
            )
    macros, enumerators = header_names()
    for name in macros + enumerators:
        if name == "BFS_MAGIC":
            lines.append('printf("BFS_MAGIC %s\\n", BFS_MAGIC);')
        else:
            lines.append(f'P("{name}", {name});')
    for kind in fmt.Rec:
        lines.append(f'P("T{kind}", BFS_T({kind}, 0x1234567));')
    lines.append('P("GADDR", BFS_GADDR(3, 0x123456789aull));')
    lines.append('P("GIDX", BFS_GIDX(BFS_GADDR(3, 0x123456789aull)));')
    lines.append('P("GDEV", BFS_GDEV(BFS_GADDR(3, 0x123456789aull)));')
    for pages in (64, 65, 1000):
        lines.append(f'P("CHUNK{pages}", BFS_CHUNK_PAGES({pages}u));')
    source = (
        "#include <stddef.h>\n#include <stdio.h>\n"
        f'#include "{HEADER}"\n'
        '#define P(name, value) printf("%s %llu\\n", name, (unsigned long long)(value))\n'
        "int main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    where = tmp_path_factory.mktemp("header")
    (where / "print.c").write_text(source)
    subprocess.run(
        [compiler, "-std=gnu11", "-Wall", "-Werror", "-o", where / "print", where / "print.c"],
        check=True,
    )
    out = subprocess.run([where / "print"], check=True, capture_output=True, text=True).stdout
    return dict(line.split(" ", 1) for line in out.splitlines())


@pytest.mark.parametrize("cls", fmt.STRUCTS, ids=lambda cls: cls.__name__)
def test_struct(cls: type[fmt.Struct], compiled: dict[str, str]) -> None:
    name = ".".join(cls.C)
    assert cls.nbytes() == int(compiled[name])
    for field in cls.layout():
        assert field.offset == int(compiled[f"{name}:{field.name}@"]), field.name
        assert field.size == int(compiled[f"{name}:{field.name}#"]), field.name


def test_every_struct_of_the_header() -> None:
    text = HEADER.read_text()
    assert set(re.findall(r"^struct (bfs_\w+) \{", text, flags=re.MULTILINE)) == {
        cls.C[0] for cls in fmt.STRUCTS
    }


def test_constants(compiled: dict[str, str]) -> None:
    macros, enumerators = header_names()
    assert len(macros) > 25
    assert len(enumerators) > 50
    for name in macros + enumerators:
        value = python_value(name)
        found = compiled[name]
        assert value == (found.encode() if isinstance(value, bytes) else int(found)), name


def test_no_constant_only_in_python() -> None:
    macros, enumerators = header_names()
    known = set(macros + enumerators)
    for prefix, enum in fmt.ENUMS.items():
        for member in enum:
            assert f"{prefix}{member.name}" in known


def test_functions(compiled: dict[str, str]) -> None:
    for kind in fmt.Rec:
        assert fmt.rec_key(kind, 0x1234567) == int(compiled[f"T{kind}"])
    addr = fmt.gaddr(3, 0x123456789A)
    assert addr == int(compiled["GADDR"])
    assert fmt.gidx(addr) == int(compiled["GIDX"])
    assert fmt.gdev(addr) == int(compiled["GDEV"])
    for pages in (64, 65, 1000):
        assert fmt.chunk_pages(pages) == int(compiled[f"CHUNK{pages}"])


def test_height() -> None:
    assert [fmt.height_of(n) for n in (0, 1, 2, 254, 255, 254**2, 254**2 + 1)] == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
    ]


# ---- the document --------------------------------------------------------------------------


def doc_sections() -> dict[str, tuple[int, list[tuple[int, int, str]]]]:
    """Struct name -> (size in its heading, rows (offset, bytes, field)) of docs/format.md."""
    out: dict[str, tuple[int, list[tuple[int, int, str]]]] = {}
    current: list[tuple[int, int, str]] | None = None
    for line in DOC.read_text().splitlines():
        if heading := re.match(r"### `struct (bfs_[\w.]+)` \((\d+) bytes", line):
            current = []
            assert heading[1] not in out, f"{heading[1]} is described twice"
            out[heading[1]] = (int(heading[2]), current)
        elif line.startswith("#"):
            current = None
        elif current is not None and (row := re.match(r"\| (\d+) \| (\d+) \| `(\w+)` \|", line)):
            current.append((int(row[1]), int(row[2]), row[3]))
    return out


def test_document_structs() -> None:
    sections = doc_sections()
    for cls in fmt.STRUCTS:
        struct, member = cls.C
        if cls is fmt.NodeEnt:  # described in the row of bfs_bnode.e
            continue
        size, rows = sections.pop(f"{struct}.{member}" if member else struct)
        assert size == cls.nbytes(), struct
        assert rows == [(f.offset, f.size, f.name) for f in cls.layout()], struct
    assert not sections, "the document describes structs that the module doesn't have"


def test_document_constants() -> None:
    macros, enumerators = header_names()
    rows = re.findall(
        r"^\| `(BFS_\w+)` \| (\d+|0x[0-9a-f]+) \|", DOC.read_text(), flags=re.MULTILINE
    )
    seen = [name for name, _ in rows]
    assert len(seen) == len(set(seen)), "a constant stands in two tables"
    for name, value in rows:
        assert python_value(name) == int(value, 0), name
    # by their meaning rather than in a table
    elsewhere = {
        "BFS_MAGIC",
        "BFS_BODY",
        "BFS_BLOB_BYTES",
        "BFS_BUCKET_HEAP",
        "BFS_INCOMPAT_KNOWN",
        "BFS_RO_COMPAT_KNOWN",
    }
    assert set(macros + enumerators) - set(seen) == elsewhere
    text = DOC.read_text()
    assert "`BELUGAFS`" in text
    for name in elsewhere - {"BFS_MAGIC", "BFS_BLOB_BYTES", "BFS_BUCKET_HEAP"}:
        assert f"`{name}`" in text, name


# ---- the twins of the checksums ------------------------------------------------------------


def test_checksums_against_xxhash_h(tmp_path: Path) -> None:
    """The xxhash package and xxhash.h agree on what format.py computes with it."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source = """
#define XXH_INLINE_ALL
#include <stdio.h>
#include <string.h>
#include <xxhash.h>
int main(void)
{
	unsigned char b[4096];
	for (int i = 0; i < 4096; i++) b[i] = (unsigned char)(i * 7 + i / 251);
	unsigned long long seed = 0x0123456789abcdefull, h;
	h = XXH3_64bits_withSeed(b, 56, seed ^ (3 << 8 | 2));
	printf("%llu\\n", h ? h : 1);
	h = XXH3_64bits_withSeed(b + 32, 4064, seed ^ XXH3_64bits_withSeed(b, 24, seed));
	printf("%llu\\n", h);
	h = XXH3_64bits_withSeed(b + 8, 120, seed ^ 0x12340);
	printf("%llu\\n", h ? h : 1);
	h = XXH3_64bits_withSeed(b, 5, seed ^ (17ull * 0x9E3779B97F4A7C15ull) ^ 1ull << 62);
	printf("%llu\\n", h);
	printf("%llu\\n", (unsigned long long)(((unsigned __int128)(h << 16) * 1237u) >> 64));
	printf("%llu\\n", (unsigned long long)XXH3_64bits(b, 4096));
	return 0;
}
"""
    (tmp_path / "sums.c").write_text(source)
    built = subprocess.run(
        [compiler, "-std=gnu11", "-O1", "-o", tmp_path / "sums", tmp_path / "sums.c"],
        capture_output=True,
        text=True,
    )
    if built.returncode and "xxhash.h" in built.stderr:
        pytest.skip("no xxhash.h")
    assert built.returncode == 0, built.stderr
    out = subprocess.run([tmp_path / "sums"], check=True, capture_output=True, text=True).stdout
    data = bytes((i * 7 + i // 251) & 255 for i in range(4096))
    seed = 0x0123456789ABCDEF
    name_hash = fmt.entry_hash(seed, 17, 1, data[:5])
    assert [int(line) for line in out.split()] == [
        fmt.line_csum(data[:64], seed, 3, 2),
        fmt.page_csum(data, seed),
        fmt.row_csum(data[:128], seed, 0x12340),
        name_hash,
        fmt.bucket_of(name_hash, 1237),
        fmt.chunk_sum(data),
    ]


def test_decode_says_where() -> None:
    with pytest.raises(fmt.FormatError, match=r"pool offset 0x1040: Ptr: expected 16 bytes"):
        fmt.Ptr.decode(b"\0" * 70, 64, offset=0x1000)
    with pytest.raises(fmt.FormatError, match=r"pool offset 0x0: superblock magic: expected"):
        fmt.PoolReader(bytes(64 * 1024))

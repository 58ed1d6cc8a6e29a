"""Every code that fsck can say stands in docs/fsck-codes.md, and no other."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def codes_of_source() -> tuple[set[str], set[str], set[str]]:
    """Codes of problems, of notes and of repairs in fsck*.c and repair*.c."""
    core = ROOT / "belugafs" / "_core"
    files = sorted([*core.glob("fsck*.c"), *core.glob("repair*.c")])
    text = "".join(path.read_text() for path in files)
    problems = set(re.findall(r'\bfk_bad\(k, (?:[^"]*\? )?"([a-z-]+)"', text)) - {"count-"}
    problems |= {f"count-{name}" for name in re.findall(r'\bCOUNT\("([a-z]+)"', text)}
    notes = set(re.findall(r'\bfk_note\(k, "([a-z-]+)"', text))
    return problems, notes, set(re.findall(r'\bfk_did\([a-z>-]+, "([a-z-]+)"', text))


def codes_of_document() -> tuple[set[str], set[str], set[str]]:
    """Codes in the tables of the document."""
    problems: set[str] = set()
    notes: set[str] = set()
    repairs: set[str] = set()
    into = notes
    for line in (ROOT / "docs" / "fsck-codes.md").read_text().splitlines():
        if line.startswith("## "):
            into = {"## Notes": notes, "## Repairs": repairs}.get(line, problems)
        if line.startswith("| `"):
            into |= set(re.findall(r"`([a-z-]+)`", line.split("|")[1]))
    return problems, notes, repairs


def test_codes() -> None:
    source, document = codes_of_source(), codes_of_document()
    assert source[0] == document[0]
    assert source[1] == document[1]
    assert source[2] == document[2]
    assert not source[0] & source[1], "a code is either a problem or a note"
    assert not source[2] & (source[0] | source[1]), "nor is it that of a repair"
    assert sum(map(len, source)) < 160, "CODES of fsck.h"

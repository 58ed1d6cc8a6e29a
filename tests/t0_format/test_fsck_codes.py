"""Every code that fsck can say stands in docs/fsck-codes.md, and no other."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def codes_of_source() -> tuple[set[str], set[str]]:
    """Codes of problems and of notes in fsck*.c."""
    files = sorted((ROOT / "belugafs" / "_core").glob("fsck*.c"))
    text = "".join(path.read_text() for path in files)
    problems = set(re.findall(r'\bfk_bad\(k, (?:[^"]*\? )?"([a-z-]+)"', text)) - {"count-"}
    problems |= {f"count-{name}" for name in re.findall(r'\bCOUNT\("([a-z]+)"', text)}
    return problems, set(re.findall(r'\bfk_note\(k, "([a-z-]+)"', text))


def codes_of_document() -> tuple[set[str], set[str]]:
    """Codes in the tables of the document."""
    problems: set[str] = set()
    notes: set[str] = set()
    into = notes
    for line in (ROOT / "docs" / "fsck-codes.md").read_text().splitlines():
        if line.startswith("## "):
            into = notes if line == "## Notes" else problems
        if line.startswith("| `"):
            into |= set(re.findall(r"`([a-z-]+)`", line.split("|")[1]))
    return problems, notes


def test_codes() -> None:
    source, document = codes_of_source(), codes_of_document()
    assert source[0] == document[0]
    assert source[1] == document[1]
    assert not source[0] & source[1], "a code is either a problem or a note"
    assert len(source[0]) < 160, "CODES of fsck.h"

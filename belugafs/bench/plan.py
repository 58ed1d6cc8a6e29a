"""What is measured."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# case -> modes
FILE_CASES = {
    "read": {
        "direct": "open O_DIRECT, read, close",
        "dropped": "open, read, close; nothing of the file in the page cache",
        "kept": "read of an open file that is in the page cache",
    },
    "map": {
        "opened": "open, map, touch every page, unmap, close",
        "kept": "map of an open file, touch every page, unmap",
    },
    "write": {
        "direct": "create O_DIRECT, write, close, rename",
        "buffered": "create, write, close, rename",
    },
}
NAME_CASES = {
    "stat": {
        "first": "of a name that the kernel has forgotten",
        "again": "of a name that it has just looked up",
    },
    "miss": {"": "open of a name that is not there"},
    "readdir": {"": "entries of a listed directory"},
}
NAMES = 2000  # in the directory of the name cases
_FILES_BYTES = 80 << 20  # of one size, for reading
_FILES_MAX = 256


@dataclass(frozen=True)
class Cell:
    """One measurement. ``size_bytes`` is 0 where there is no data."""

    case: str
    mode: str
    size_bytes: int
    clients: int

    @property
    def label(self) -> str:
        return f"{self.case} {self.mode}".rstrip()

    @property
    def text(self) -> str:
        """What one operation is."""
        return {**FILE_CASES, **NAME_CASES}[self.case][self.mode]


def cells(sizes_bytes: Iterable[int], clients: Iterable[int]) -> Iterator[Cell]:
    """All of a run."""
    counts = list(clients)
    for size_bytes in sizes_bytes:
        for case, modes in FILE_CASES.items():
            for mode in modes:
                yield from (Cell(case, mode, size_bytes, count) for count in counts)
    for case, modes in NAME_CASES.items():
        for mode in modes:
            # what the kernel has forgotten takes a second's wait
            chosen = counts[:1] if mode == "first" else counts
            yield from (Cell(case, mode, 0, count) for count in chosen)


def files_of(size_bytes: int) -> int:
    """How many files of a size are there to be read."""
    return max(2, min(_FILES_MAX, _FILES_BYTES // size_bytes))


def room_bytes(sizes_bytes: Iterable[int], clients: Iterable[int]) -> int:
    """The space that a place needs: files to read of each size, and while it is written a file
    and its successor for each client."""
    sizes = list(sizes_bytes)
    files = sum(files_of(size) * (size + 4096) for size in sizes)
    return files + 2 * max(clients) * (max(sizes) + 4096)

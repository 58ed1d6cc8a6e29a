"""Rounds that alternate between the places, their medians, and ratios within a round."""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from belugafs.bench.clients import Clients
from belugafs.bench.place import Place, tmpfs_mount_times_s
from belugafs.bench.plan import FILE_CASES, NAMES, Cell, cells, files_of

_FORGET_S = 1.2  # the kernel keeps names of a mount for a second
_SLOT_MIN_S, _SLOT_MAX_S = 0.02, 2.0
GB = 1e9

Step = Callable[[str], None]
"""Called before each cell, with its text."""


@dataclass
class Sample:
    """One round of one cell in one place: rates are sums over the clients."""

    operations_per_s: float
    bytes_per_s: float
    """Entries a second where entries are listed."""
    client_cpu_s: float
    daemon_cpu_s: float | None
    """None: not to be seen."""
    moved: int


@dataclass
class Result:
    """A cell with the samples of its rounds: those of one index lie beside each other in time."""

    cell: Cell
    mount: list[Sample] = field(default_factory=list)
    tmpfs: list[Sample] = field(default_factory=list)
    memcpy: list[Sample] = field(default_factory=list)

    def ratio(self, other: str) -> float | None:
        """The mount's rate over that of ``tmpfs`` or ``memcpy``."""
        pairs = zip(self.mount, getattr(self, other), strict=False)
        ratios = [
            ours.operations_per_s / theirs.operations_per_s
            for ours, theirs in pairs
            if theirs.operations_per_s
        ]
        return statistics.median(ratios) if ratios else None

    def median(self, place: str, name: str) -> float | None:
        samples: list[Sample] = getattr(self, place)
        return statistics.median(getattr(s, name) for s in samples) if samples else None

    def cpu_s_per_gb(self, place: str, whose: str) -> float | None:
        """Processor seconds for 10^9 bytes; None where no bytes are moved, or it isn't known.
        ``whose`` is client or daemon."""
        samples: list[Sample] = getattr(self, place)
        moved = sum(sample.moved for sample in samples)
        used_s: list[float | None] = [getattr(sample, f"{whose}_cpu_s") for sample in samples]
        known_s = [cpu_s for cpu_s in used_s if cpu_s is not None]
        if not moved or not self.cell.size_bytes or len(known_s) < len(used_s):
            return None
        return sum(known_s) / moved * GB

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        places: dict[str, Any] = {}
        for place in ("mount", "tmpfs", "memcpy"):
            if not getattr(self, place):
                continue
            places[place] = {
                "operations_per_s": self.median(place, "operations_per_s"),
                "bytes_per_s": self.median(place, "bytes_per_s") if self.cell.size_bytes else None,
                "client_cpu_s_per_gb": self.cpu_s_per_gb(place, "client"),
                "daemon_cpu_s_per_gb": self.cpu_s_per_gb(place, "daemon"),
                "rounds_operations_per_s": [s.operations_per_s for s in getattr(self, place)],
            }
        return {
            **asdict(self.cell),
            "text": self.cell.text,
            "ratio_to_tmpfs": self.ratio("tmpfs"),
            "ratio_to_memcpy": self.ratio("memcpy"),
            **places,
        }


@dataclass
class MountTimes:
    """Seconds from a mount command to a mount that answers."""

    mount_s: list[float]
    tmpfs_s: list[float]


class Runner:
    """A whole run: all cells, one after the other, in each of ``rounds`` rounds. No round begins
    that would not end within ``budget_s``, beside the first."""

    def __init__(
        self,
        place: Place,
        tmpfs: str,
        *,
        sizes_bytes: Sequence[int],
        clients: Sequence[int],
        rounds: int,
        budget_s: float,
    ) -> None:
        self._place = place
        self._rounds = rounds
        self._budget_s = budget_s
        self._dirs = {
            "mount": os.path.join(place.mount_point, f"belugafs-bench-{os.getpid()}"),
            "tmpfs": os.path.join(tmpfs, "files"),
        }
        self._results = [Result(cell) for cell in cells(sizes_bytes, clients)]
        slots = sum(3 if result.cell.case == "read" else 2 for result in self._results)
        self._slot_s = min(_SLOT_MAX_S, max(_SLOT_MIN_S, 0.7 * budget_s / slots / rounds))
        self._most = max(clients)

    @property
    def steps(self) -> int:
        """How often ``run`` calls its ``step``, at most."""
        return len(self._results) * self._rounds

    def run(self, step: Step) -> list[Result]:
        """All cells. Raises PoolError, and then leaves files behind: ``clean_up``."""
        with Clients(self._most) as clients:
            self._prepare(clients)
            started = time.monotonic()
            for done in range(1, self._rounds + 1):
                for result in self._results:
                    cell = result.cell
                    step(f"{cell.label}, {cell.clients} clients, round {done}")
                    self._measure(clients, result)
                if (time.monotonic() - started) * (done + 1) / done > self._budget_s:
                    break
            self._remove(clients)
        return self._results

    def clean_up(self) -> None:
        """Remove the files of a run that has failed, by another process: this one's may hang."""
        with Clients(1) as clients:
            self._remove(clients)

    @staticmethod
    def _files(cell: Cell) -> int:
        """How many a cell finds."""
        return files_of(cell.size_bytes) if cell.case in FILE_CASES else NAMES

    def _prepare(self, clients: Clients) -> None:
        self._remove(clients)
        for size_bytes, files in {(r.cell.size_bytes, self._files(r.cell)) for r in self._results}:
            for path in self._dirs.values():
                place = os.path.join(path, str(size_bytes))
                clients.one(do="prepare", dir=place, files=files, size_bytes=size_bytes)

    def _remove(self, clients: Clients) -> None:
        for path in self._dirs.values():
            clients.one(do="remove", dir=path)

    def _measure(self, clients: Clients, result: Result) -> None:
        cell = result.cell
        for place, samples in (("mount", result.mount), ("tmpfs", result.tmpfs)):
            samples.append(self._sample(clients, cell, cell.case, place))
        if cell.case == "read":
            result.memcpy.append(self._sample(clients, cell, "memcpy", ""))

    def _sample(self, clients: Clients, cell: Cell, case: str, place: str) -> Sample:
        before_s = self._place.daemon_cpu_s()
        answers = clients.measure(
            cell.clients,
            case=case,
            mode=cell.mode if case != "memcpy" else "",
            dir=os.path.join(self._dirs.get(place, ""), str(cell.size_bytes)),
            size_bytes=cell.size_bytes,
            files=self._files(cell),
            duration_s=self._slot_s,
            forget_s=_FORGET_S if place == "mount" else 0,
        )
        after_s = self._place.daemon_cpu_s()
        daemon_s = None if before_s is None or after_s is None else after_s - before_s
        return Sample(
            operations_per_s=sum(a["count"] / a["elapsed_s"] for a in answers),
            bytes_per_s=sum(a["moved"] / a["elapsed_s"] for a in answers),
            client_cpu_s=sum(a["cpu_s"] for a in answers),
            daemon_cpu_s=daemon_s if place == "mount" else 0.0,
            moved=sum(a["moved"] for a in answers),
        )


def mount_times(place: Place, rounds: int) -> MountTimes:
    """Of a mount of our own; nothing may be using it. Raises PoolError."""
    return MountTimes([place.time_remount() for _ in range(rounds)], tmpfs_mount_times_s(rounds))

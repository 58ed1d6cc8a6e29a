"""The client processes, seen from outside."""

import json
import selectors
import subprocess
import sys
import time
from typing import Any

from belugafs.bench.client import Job
from belugafs.exits import Exit
from belugafs.pool import PoolError

ANSWER_LIMIT_S = 60.0


class Clients:
    """So many idle processes, that do jobs together. A context manager: they end with it.

    Each answer has to come within ``ANSWER_LIMIT_S``. PoolError if it doesn't, or says that
    something failed.
    """

    def __init__(self, count: int) -> None:
        self._children: list[subprocess.Popen[bytes]] = []
        self._rest: dict[int, bytes] = {}
        for _ in range(count):
            self._children.append(
                subprocess.Popen(
                    [sys.executable, "-m", "belugafs.bench.client"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    # An interrupt from the terminal is for whoever cleans up.
                    start_new_session=True,
                )
            )

    def __enter__(self) -> "Clients":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End them all. One that waits for a hung daemon is left behind, killed."""
        for child in self._children:
            child.kill()
        for child in self._children:
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                continue
        self._children.clear()

    def one(self, **job: Any) -> Job:
        """Have the first one do something."""
        self._send([job])
        return self._answers(1)[0]

    def measure(self, count: int, **job: Any) -> list[Job]:
        """Have the first ``count`` do the same at the same time; their results."""
        self._send([{"do": "measure", **job, "index": index} for index in range(count)])
        self._answers(count)
        self._send([{}] * count)
        return self._answers(count)

    def _send(self, jobs: list[Job]) -> None:
        for child, job in zip(self._children, jobs, strict=False):
            assert child.stdin is not None
            try:
                child.stdin.write(json.dumps(job).encode() + b"\n")
                child.stdin.flush()
            except BrokenPipeError:
                raise PoolError("a client of the benchmark has ended", Exit.INTERNAL) from None

    def _answers(self, count: int) -> list[Job]:
        found: dict[int, Job] = {}
        deadline = time.monotonic() + ANSWER_LIMIT_S
        with selectors.DefaultSelector() as selector:
            for index, child in enumerate(self._children[:count]):
                assert child.stdout is not None
                selector.register(child.stdout, selectors.EVENT_READ, index)
            while len(found) < count:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise PoolError(
                        f"a client has waited for {ANSWER_LIMIT_S:.0f} s; does the mount hang?",
                        Exit.IO_ERROR,
                    )
                for key, _ in ready:
                    line = self._line(key.data)
                    if line is not None:
                        found[key.data] = json.loads(line)
                        selector.unregister(key.fileobj)
        for answer in found.values():
            if "error" in answer:
                raise PoolError(f"a client failed: {answer['error']}", Exit.IO_ERROR)
        return [found[index] for index in range(count)]

    def _line(self, index: int) -> bytes | None:
        pipe = self._children[index].stdout
        assert pipe is not None
        part = pipe.read1(1 << 16)  # type: ignore[attr-defined]
        if not part:
            raise PoolError("a client of the benchmark has ended", Exit.INTERNAL)
        line, newline, rest = (self._rest.pop(index, b"") + part).partition(b"\n")
        self._rest[index] = rest if newline else line
        return line if newline else None

"""One client process: ``python -m belugafs.bench.client``. Imports nothing of belugafs.

Jobs come as JSON, a line each, and are answered by a line. A measurement is prepared first,
answered by ``{"ready": true}``, and begins at the next line, so that all clients begin together.
The clock runs here, around the operations alone.
"""

import ctypes
import itertools
import json
import mmap
import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

_PAGE_BYTES = 4096
_MEMCPY_BYTES = 64 << 20  # larger than caches, so that small copies are no cache hits

Job = dict[str, Any]
Operation = Callable[[], int]
"""Does one operation; how many bytes (or entries) it moved."""


def _buffer(size_bytes: int) -> mmap.mmap:
    """Memory at a page boundary, as O_DIRECT wants it, touched."""
    rounded = -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES
    memory = mmap.mmap(-1, rounded)
    for at in range(0, rounded, 1 << 20):
        part = min(1 << 20, rounded - at)
        memory[at : at + part] = os.urandom(part)
    return memory


def file_name(directory: str, number: int) -> str:
    """As engines name blocks: a hash."""
    return f"{directory}/{number * 0x9E3779B97F4A7C15 % 2**64:016x}{number:048x}.bin"


def prepare(job: Job) -> None:
    """Make the files of a directory."""
    os.makedirs(job["dir"])
    data = _buffer(job["size_bytes"] or 1)
    view = memoryview(data)[: job["size_bytes"]]
    for number in range(job["files"]):
        with open(file_name(job["dir"], number), "xb", buffering=0) as file:
            _write_all(file.fileno(), view)


def remove(job: Job) -> None:
    """Remove a directory with all that is in it, if it is there."""
    shutil.rmtree(job["dir"], ignore_errors=True)


def _write_all(fd: int, view: memoryview) -> None:
    done = 0
    while done < len(view):
        done += os.write(fd, view[done:])


def _read_all(fd: int, view: memoryview, size_bytes: int) -> int:
    done = 0
    while done < size_bytes:
        got = os.preadv(fd, [view[done:]], done)
        if got == 0:
            raise OSError(f"a file has {done} bytes, not {size_bytes}")
        done += got
    return done


def _paths(job: Job) -> "itertools.cycle[str]":
    """The files of the directory, each client from a place of its own on."""
    count, first = job["files"], job["index"] * 7
    names = [file_name(job["dir"], (number + first) % count) for number in range(count)]
    return itertools.cycle(names)


def _read(job: Job) -> Operation:
    size_bytes: int = job["size_bytes"]
    mode = job["mode"]
    view = memoryview(_buffer(size_bytes))
    paths = _paths(job)
    if mode == "kept":
        # No more files than stay open and in the cache.
        fds = [os.open(next(paths), os.O_RDONLY) for _ in range(min(job["files"], 8))]
        for fd in fds:
            _read_all(fd, view, size_bytes)
        turns = itertools.cycle(fds)
        return lambda: _read_all(next(turns), view, size_bytes)
    flags = os.O_RDONLY | (os.O_DIRECT if mode == "direct" else 0)

    def read() -> int:
        fd = os.open(next(paths), flags)
        try:
            if mode == "dropped":
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            return _read_all(fd, view, size_bytes)
        finally:
            os.close(fd)

    return read


def _map(job: Job) -> Operation:
    size_bytes: int = job["size_bytes"]
    paths = _paths(job)

    def map_and_touch(fd: int) -> int:
        with mmap.mmap(fd, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ) as memory:
            touched = len(memory[::_PAGE_BYTES])  # a byte of each
        return min(touched * _PAGE_BYTES, size_bytes)

    def opened() -> int:
        fd = os.open(next(paths), os.O_RDONLY)
        try:
            return map_and_touch(fd)
        finally:
            os.close(fd)

    if job["mode"] == "opened":
        return opened
    fds = [os.open(next(paths), os.O_RDONLY) for _ in range(min(job["files"], 8))]
    turns = itertools.cycle(fds)
    return lambda: map_and_touch(next(turns))


def _written(job: Job) -> str:
    return f"{job['dir']}/w{job['index']}"


def _write(job: Job) -> Operation:
    size_bytes: int = job["size_bytes"]
    view = memoryview(_buffer(size_bytes))[:size_bytes]
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | (os.O_DIRECT if job["mode"] == "direct" else 0)
    final = _written(job)
    new = final + ".tmp"

    def write() -> int:
        fd = os.open(new, flags, 0o644)
        try:
            _write_all(fd, view)
        finally:
            os.close(fd)
        os.rename(new, final)
        return size_bytes

    return write


def _stat(job: Job) -> Operation:
    paths = _paths(job)
    if job["mode"] == "first":
        time.sleep(job["forget_s"])

    def stat() -> int:
        os.stat(next(paths))
        return 1

    if job["mode"] == "again":
        for _ in range(job["files"]):
            stat()
    return stat


def _miss(job: Job) -> Operation:
    # Another name each time, also in another round.
    prefix = f"{job['dir']}/none-{os.getpid()}-{time.monotonic_ns():x}-"
    numbers = itertools.count()

    def miss() -> int:
        try:
            os.close(os.open(f"{prefix}{next(numbers)}", os.O_RDONLY))
        except FileNotFoundError:
            return 1
        raise OSError(f"{prefix}... is there")

    return miss


def _readdir(job: Job) -> Operation:
    place, count = job["dir"], job["files"]

    def readdir() -> int:
        found = len(os.listdir(place))
        if found != count:
            raise OSError(f"{place} has {found} names, not {count}")
        return found

    return readdir


def _memcpy(job: Job) -> Operation:
    size_bytes: int = job["size_bytes"]
    room = max(_MEMCPY_BYTES, size_bytes)
    source, target = _buffer(room), _buffer(size_bytes)
    address = ctypes.addressof(ctypes.c_char.from_buffer(source))
    to = ctypes.addressof(ctypes.c_char.from_buffer(target))
    offsets = itertools.cycle(range(0, room - size_bytes + 1, size_bytes))
    held = (source, target)

    def memcpy() -> int:
        assert held
        ctypes.memmove(to, address + next(offsets), size_bytes)
        return size_bytes

    return memcpy


_CASES = {
    "read": _read,
    "map": _map,
    "write": _write,
    "stat": _stat,
    "miss": _miss,
    "readdir": _readdir,
    "memcpy": _memcpy,
}


def measure(job: Job) -> Job:
    """Prepare, wait for the start, repeat one operation until the time is over, and tell."""
    operation = _CASES[job["case"]](job)
    _answer({"ready": True})
    sys.stdin.readline()
    # What the kernel has forgotten is not forgotten any more in a second round.
    most = job["files"] if job["mode"] == "first" else 1 << 62
    count, moved = 0, 0
    cpu, start = time.process_time(), time.perf_counter()
    end = start + job["duration_s"]
    while True:
        moved += operation()
        count += 1
        now = time.perf_counter()
        if now >= end or count >= most:
            break
    cpu_s = time.process_time() - cpu
    if job["case"] == "write":
        os.unlink(_written(job))
    return {"count": count, "moved": moved, "elapsed_s": now - start, "cpu_s": cpu_s}


def _answer(answer: Job) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        try:
            if job["do"] == "measure":
                _answer(measure(job))
            else:
                {"prepare": prepare, "remove": remove}[job["do"]](job)
                _answer({})
        except OSError as error:
            _answer({"error": str(error)})


if __name__ == "__main__":
    main()

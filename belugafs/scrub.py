"""``-o verify=scrub``: a thread of the daemon that compares all files with their checksums, slowly,
over and over.

Reads by the mount's users are checked as with ``verify=first``. That a block went bad after its
first read shows here: its next read is EIO, it is logged, and counted in ``.beluga/stats``.
Nothing is removed; ``belugafs verify --repair-drop`` does that.
"""

import logging
import threading
import time

from belugafs import _native, poolwalk

log = logging.getLogger("belugafs.scrub")

PAUSE_S = 10.0  # between two passes

_SLICE_BYTES = 1 << 20  # checked in one call of the core
_FILE_BYTES = 16 << 10  # what finding a file counts for, so that names have a rate, too
_WAIT_MIN_S = 0.02
_KNOWN_MAX = 4096


class Scrubber:
    """One thread's work, on a pool that is attached longer than it runs. ``stats`` may be called
    from any thread."""

    def __init__(self, pool: _native.Pool, rate_bytes_per_s: int) -> None:
        self._pool = pool
        self._rate = rate_bytes_per_s
        self._passes = self._checked_bytes = self._bad_chunks = 0
        self._known: set[int] = set()  # inodes that are logged

    def stats(self) -> dict[str, int]:
        """Whole passes, bytes checked, and pieces found damaged, each time they were found."""
        return {
            "scrub_passes": self._passes,
            "scrub_checked_bytes": self._checked_bytes,
            "scrub_bad_chunks": self._bad_chunks,
        }

    def run(self, stop: threading.Event) -> None:
        """Work until told to stop."""
        while not stop.is_set():
            started = time.monotonic()
            try:
                if not self._pass(stop):
                    return
                self._passes += 1
                log.info("all files are checked, in %.1f s", time.monotonic() - started)
            except _native.CoreError as error:
                log.error("scrubbing: %s", error.strerror)
            stop.wait(PAUSE_S)

    def _pass(self, stop: threading.Event) -> bool:
        """Once through the pool; False if it was told to stop."""
        begun, done = time.monotonic(), 0
        top = self._pool.getattr(_native.ROOT_INO)
        for file in poolwalk.files(self._pool, "/", top):
            done += _FILE_BYTES
            at, finished = 0, False
            while not finished:
                ahead_s = done / self._rate - (time.monotonic() - begun)
                if stop.is_set() or (ahead_s > _WAIT_MIN_S and stop.wait(ahead_s)):
                    return False
                try:
                    found = self._pool.verify(file.ino, at, _SLICE_BYTES)
                except _native.CoreError as error:
                    if error.errno not in poolwalk.GONE:
                        log.error("%s: %s", file.path, error.strerror)
                    break
                at, finished = found["next"], bool(found["done"])
                done += found["checked_bytes"]
                self._checked_bytes += found["checked_bytes"]
                if found["bad_chunks"]:
                    self._bad_chunks += found["bad_chunks"]
                    self._tell(file, found)
        return True

    def _tell(self, file: poolwalk.File, found: dict[str, int]) -> None:
        if file.ino in self._known:
            return
        if len(self._known) < _KNOWN_MAX:
            self._known.add(file.ino)
        first, last = found["bad_off"], found["bad_off"] + found["bad_bytes"] - 1
        log.error("%s is damaged: the checksum of bytes %d to %d is wrong", file.path, first, last)

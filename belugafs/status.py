"""What ``belugafs status`` shows, from a mount's control files or from an unmounted pool."""

import json
import os
import subprocess
import uuid
from typing import Any

from belugafs import attach, holders, leases, mounts
from belugafs._native import GRANULE_BYTES, Pool, peek
from belugafs._pool.host import Mount
from belugafs.control import COMMAND_NAME, DIRECTORY_NAME, parse_pairs
from belugafs.exits import Exit
from belugafs.pool import PoolError
from belugafs.units import format_size

_ALL_SLOTS = (1 << 32) - 1
_ANSWER_LIMIT_S = 5.0
_left_behind: list[subprocess.Popen[str]] = []
"""Not waited for, and kept, so that nobody else waits for them either."""
_OPEN_BY_MAX = 3
_READERS_MAX = 8

Report = dict[str, Any]
"""``pool``, ``mount_point`` (None: not mounted), ``label``, ``uuid``, ``granule_bytes``, ``stats``
(the core's counters, and the daemon's own), ``config`` (how it is mounted; empty if it isn't),
``evictable_bytes`` (what eviction could free: blocks that are neither pinned hard nor open; None:
not known, since only root and the user who mounted can ask, and not on a read-only mount),
``open_by`` (the processes with the most open files, as far as they can be seen), ``readers`` (the
processes that read blocks in place, as :meth:`belugafs.leases.Reader.as_dict`; None: not known,
since only root and the user who mounted see them) and ``error`` (None, or why there are no
stats)."""

# Asks the daemon, in slices, as often as it says that there is more. In another process for the
# same reason as the rest.
_ASK_EVICTABLE = r"""
test -w "$1" && exec 3<> "$1" || exit
at=0
while echo "evictable $at" >&3; do
    answer=$(cat <&3) && echo "$answer" || exit
    at=${answer##*'"next": '}
    at=${at%'}'}
    test "$at" -gt 0 || exit 0
done
exit 1
"""


def all_mounts() -> list[Report]:
    """One report for each mount on this machine; a dead one has an ``error`` instead of stats."""
    reports = []
    for mount in mounts.belugafs_mounts():
        try:
            reports.append(_of_mount(mount))
        except PoolError as error:
            dead = _report(mount.source, mount.mount_point, {}, b"", "")
            dead["error"] = str(error)
            dead["readers"] = _as_dicts(_left_by(mount.source))
            reports.append(dead)
    return reports


def report(where: str) -> Report:
    """Of a path in a mount, or of a pool, mounted or not. Raises PoolError."""
    mount = mounts.mount_of(where)
    if mount is not None:
        return _of_mount(mount)
    mounts.refuse_plain_directory(where)
    with attach.attached_readonly(where) as (pool, super_):
        numbers = pool.statfs()
        found = _report(os.path.realpath(where), None, numbers, super_["uuid"], super_["label"])
        found["evictable_bytes"] = evictable_bytes(pool)
        found["readers"] = _as_dicts(leases.of_pool(super_["uuid"]))
        return found


def evictable_bytes(pool: Pool) -> int:
    """What eviction could free of an attached pool now."""
    return pool.evictable(0, _ALL_SLOTS)[0] * GRANULE_BYTES


def _of_mount(mount: Mount) -> Report:
    stats, config = _control_files(mount)
    numbers: dict[str, Any] = {k: int(text) for k, text in stats.items() if text.isdecimal()}
    numbers.update({k: text == "yes" for k, text in stats.items() if text in ("yes", "no")})
    numbers.pop("label", None)  # may be any word, digits too
    identity = bytes.fromhex(config.get("uuid", ""))
    report = _report(mount.source, mount.mount_point, numbers, identity, stats.get("label", ""))
    report["config"] = config
    report["evictable_bytes"] = _evictable_bytes(mount)
    report["readers"] = _as_dicts(leases.of_mount(config))
    if numbers.get("open_files"):
        report["open_by"] = _open_by(mount)
    return report


def _control_files(mount: Mount) -> tuple[dict[str, str], dict[str, str]]:
    """The pairs of ``stats`` and ``config``. Raises PoolError.

    Another process reads them: who waits for a hung daemon can't even be killed.
    """
    text, error, code = _ask(mount, 'cd "$1" && cat stats && echo && cat config')
    if code != 0:
        why = error.strip().splitlines()[0].rpartition(": ")[2] if error.strip() else "no answer"
        raise PoolError(
            f"the mount on {mount.mount_point} does not answer: {why}; mounting it again heals it",
            Exit.IO_ERROR,
        )
    stats, _, config = text.partition("\n\n")
    return parse_pairs(stats), parse_pairs(config)


def _evictable_bytes(mount: Mount) -> int | None:
    text, _, code = _ask(mount, _ASK_EVICTABLE, os.fsdecode(COMMAND_NAME))
    answers = [json.loads(line) for line in text.splitlines()] if code == 0 else []
    return sum(answer["evictable_bytes"] for answer in answers) if answers else None


def _ask(mount: Mount, script: str, name: str = "") -> tuple[str, str, int]:
    """Output, errors and exit code of a shell's script about a file of ``.beluga``, its $1.
    Raises PoolError if the daemon hangs; the shell is left behind then."""
    place = os.path.join(mount.mount_point, os.fsdecode(DIRECTORY_NAME), name)
    child = subprocess.Popen(
        ["sh", "-c", script, "sh", place],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    try:
        text, error = child.communicate(timeout=_ANSWER_LIMIT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        _left_behind.append(child)
        raise PoolError(
            f"the daemon of {mount.mount_point} has not answered for {_ANSWER_LIMIT_S:.0f} s; "
            f"umount -f {mount.mount_point} ends all that waits for it",
            Exit.IO_ERROR,
        ) from None
    return text, error, child.returncode


def _as_dicts(readers: list[leases.Reader] | None) -> list[dict[str, Any]] | None:
    return None if readers is None else [reader.as_dict() for reader in readers]


def _left_by(source: str) -> list[leases.Reader] | None:
    """Those that go on without the daemon of a mount."""
    try:
        with open(source, "rb") as file:
            super_ = peek(file.fileno(), os.fstat(file.fileno()).st_size)
    except OSError:  # no file to be read, or no pool in it
        return None
    return leases.of_pool(super_["uuid"])


def _open_by(mount: Mount) -> list[dict[str, Any]]:
    """Those with the most open files: why nothing can be evicted."""
    found = [holder for holder in holders.holders(mount) if holder.open_files]
    found.sort(key=lambda holder: -holder.open_files)
    keys = ("pid", "command", "open_files")
    return [{key: getattr(holder, key) for key in keys} for holder in found[:_OPEN_BY_MAX]]


def _report(
    pool: str, mount_point: str | None, numbers: dict[str, Any], identity: bytes, label: bytes | str
) -> Report:
    text = label if isinstance(label, str) else label.rstrip(b"\0").decode("utf-8", "replace")
    return {
        "pool": pool,
        "mount_point": mount_point,
        "label": text,
        "uuid": str(uuid.UUID(bytes=identity)) if len(identity) == 16 else "",
        "granule_bytes": GRANULE_BYTES,
        "stats": {key: value for key, value in numbers.items() if isinstance(value, int)},
        "config": {},
        "evictable_bytes": None,
        "open_by": [],
        "readers": None,
        "error": None,
    }


def _scrubbed(stats: dict[str, int]) -> str:
    if "scrub_passes" not in stats:
        return ""
    checked = format_size(stats["scrub_checked_bytes"])
    text = f"{stats['scrub_passes']} times, {checked} in all"
    return text + (f", {stats['scrub_bad_chunks']} damaged" if stats["scrub_bad_chunks"] else "")


def as_text(report: Report) -> str:
    """A report for people."""
    place = report["mount_point"]
    head: str = report["pool"] + (f" on {place}" if place else " (not mounted)")
    if report["error"] is not None:
        return f"{head}\n  {report['error']}\n" + _row("read in place", _read_by(report))
    stats = report["stats"]

    def size(name: str) -> str:
        return format_size(stats.get(name, 0) * GRANULE_BYTES)

    percent = 100 * stats["used_granules"] / max(1, stats["data_granules"])
    used = f"{size('used_granules')} of {size('data_granules')} ({percent:.1f} %)"
    open_by = "".join(
        f"; {by['open_files']} by process {by['pid']} ({by['command']})" for by in report["open_by"]
    )
    evictable = report["evictable_bytes"]
    going = f"{size('block_granules')} in blocks"
    if evictable is not None:
        going = f"{format_size(evictable)} can be evicted"
    files = f"{stats['nblocks']} blocks, {stats['nordinary']} ordinary"
    rows = {
        "label": report["label"],
        "uuid": report["uuid"],
        "used": f"{used}, {going}",
        "freed, not yet reusable": size("quarantined_granules"),
        "bad memory": size("bad_granules") if stats["bad_granules"] else "",
        "files": f"{files}, {stats['nunsealed']} being written",
        "inodes": f"{stats['inodes_used']} of {stats['inodes']}",
        "open": f"{stats['open_files']}, {stats['open_for_write']} for writing{open_by}",
        "read in place": _read_by(report),
        "evicted": f"{stats['evicted_blocks']} blocks, {size('evicted_granules')}",
        "hits, misses": f"{stats['hits']}, {stats['misses']}",
        "failed checksums": f"{stats['corrupt']} pieces" if stats["corrupt"] else "",
        "scrubbed": _scrubbed(stats),
    }
    return f"{head}\n" + "".join(_row(name, text) for name, text in rows.items())


def _row(name: str, text: str) -> str:
    """Nothing for an empty text; further lines of it stand below its first."""
    indented = text.replace("\n", "\n" + " " * 27)
    return f"  {name:<24} {indented}\n" if text else ""


def _and_reserved(by: dict[str, Any]) -> str:
    size_bytes = by["reserved_bytes"]
    return f", {format_size(size_bytes)} reserved" if size_bytes else ""


def _read_by(report: Report) -> str:
    """Who reads in place, a line each; the blocks that nobody can evict now are theirs."""
    readers = report["readers"] or []
    lines = [
        f"{by['blocks']} blocks, {format_size(by['bytes'])}{_and_reserved(by)} by process "
        f"{by['pid']} ({by['command']}), since {by['since']}"
        for by in readers[:_READERS_MAX]
    ]
    rest = readers[_READERS_MAX:]
    if rest:
        blocks, size_bytes = sum(by["blocks"] for by in rest), sum(by["bytes"] for by in rest)
        lines.append(f"{blocks} blocks, {format_size(size_bytes)} by {len(rest)} more")
    return "\n".join(lines)

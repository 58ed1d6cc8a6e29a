"""Who keeps a mount busy: what ``belugafs holders`` says, also after an ``umount`` that failed.

Looks into /proc only, never at the mount itself, so a daemon that hangs doesn't matter. A user
other than root sees only his own processes.
"""

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from belugafs import mounts
from belugafs._pool.host import Mount
from belugafs._pool.host import mounts as all_mounts

_PROC = Path("/proc")


@dataclass
class Holder:
    """A process that uses a mount. ``uses`` are phrases such as ``working directory``, that of
    its open files among them."""

    pid: int
    command: str
    open_files: int
    uses: list[str]

    def __str__(self) -> str:
        return f"{self.pid} ({self.command}): {', '.join(self.uses)}"


def holders(mount: Mount) -> list[Holder]:
    """The processes that keep a mount busy, by pid, as far as they can be seen. Not those that
    ask: this one, and the umount that has called it."""
    device = mounts.device_of(mount.mount_id)
    found = []
    for pid in others():
        place = _PROC / str(pid)
        uses = _directories(place, mount.mount_point)
        count, example = _open_files(place, mount)
        if count:
            uses.append(f"open {example}" if count == 1 else f"{count} open files, as {example}")
        if device and _maps(place, device):
            uses.append("mapped")
        if uses:
            found.append(Holder(pid, _text(place / "comm").strip(), count, uses))
    return found


def others() -> list[int]:
    """All processes but those that ask."""
    return sorted({int(name) for name in os.listdir(_PROC) if name.isdigit()} - _asking())


def _asking() -> set[int]:
    pid = os.getpid()
    pids = {pid}
    while match := re.search(r"^PPid:\s*(\d+)$", _text(_PROC / str(pid) / "status"), re.MULTILINE):
        pid = int(match[1])
        if not _text(_PROC / str(pid) / "comm").startswith("umount"):
            break
        pids.add(pid)
    return pids


def mounts_inside(mount: Mount) -> list[str]:
    """Mount points below a mount, which keep it busy as well."""
    inside = mount.mount_point.rstrip("/") + "/"
    places = (other.mount_point for other in all_mounts())
    return [place for place in places if place.startswith(inside)]


def _directories(place: Path, mount_point: str) -> list[str]:
    uses = []
    for name, use in (("cwd", "working directory"), ("root", "root"), ("exe", "program")):
        try:
            path = os.readlink(place / name)
        except OSError:
            continue
        if path == mount_point or path.startswith(mount_point.rstrip("/") + "/"):
            uses.append(f"{use} {path}")
    return uses


def _open_files(place: Path, mount: Mount) -> tuple[int, str]:
    """How many descriptors a process has on the mount, and the path of one. The mount's id is
    exact where paths and device numbers are not: a second mount of the same filesystem in
    another place keeps nothing busy here."""
    wanted = re.compile(rf"^mnt_id:\s*{mount.mount_id}$", re.MULTILINE)
    try:
        numbers = os.listdir(place / "fdinfo")
    except OSError:
        return 0, ""
    count, example = 0, ""
    for number in numbers:
        if wanted.search(_text(place / "fdinfo" / number)):
            count += 1
            if not example:
                with contextlib.suppress(OSError):  # closed meanwhile
                    example = os.readlink(place / "fd" / number)
    return count, example


def _maps(place: Path, device: str) -> bool:
    return any(f" {device} " in line for line in _text(place / "maps").splitlines())


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError:  # ended, or somebody else's
        return ""


def lines(mount: Mount) -> list[str]:
    """For people."""
    found = holders(mount)
    inside = mounts_inside(mount)
    text = [f"{mount.mount_point} is in use by process {holder}" for holder in found]
    text += [f"{place} is mounted inside of {mount.mount_point}" for place in inside]
    if text:
        advice = "end these, or detach it now and let them finish: umount -l"
        return [*text, f"{advice} {mount.mount_point}"]
    unseen = "" if os.geteuid() == 0 else " (of other users' processes, only root sees that)"
    return [f"nothing is seen to use {mount.mount_point}{unseen}"]

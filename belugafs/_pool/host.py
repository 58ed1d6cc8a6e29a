"""What the kernel says about this machine: mounts, DAX devices, memory, huge pages, processes.

Everything is read from /proc and /sys, nothing is changed. The two roots are variables so that
tests can put a made-up machine there.
"""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from belugafs._pool.base import Holder
from belugafs.units import KIB

PROC_ROOT = Path("/proc")
SYSFS_ROOT = Path("/sys")

DAX_NAME = re.compile(r"dax([0-9]+)\.[0-9]+")


# ---- mounts -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo. ``options`` are the filesystem's own (``size=``, ``huge=``)."""

    mount_id: int
    mount_point: str
    fs_type: str
    source: str
    options: dict[str, str]


def mounts() -> list[Mount]:
    """All mounts that this process can see."""
    found = []
    for line in _read_text(PROC_ROOT / "self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields, rest = left.split(" "), right.split(" ")
        if len(fields) < 6 or len(rest) < 3:
            continue
        options = dict(item.partition("=")[::2] for item in rest[2].split(","))
        found.append(
            Mount(int(fields[0]), _unescape(fields[4]), rest[0], _unescape(rest[1]), options)
        )
    return found


def mount_of(fd: int) -> Mount | None:
    """The mount that an open file lies on; None where /proc does not tell.

    The mount's id is exact where device numbers are not: bind mounts, overlayfs, btrfs.
    """
    text = _read_text(Path("/proc/self/fdinfo") / str(fd))
    match = re.search(r"^mnt_id:\s*(\d+)$", text, re.MULTILINE)
    if match is None:
        return None
    mount_id = int(match[1])
    return next((mount for mount in mounts() if mount.mount_id == mount_id), None)


def bound_node(mount: Mount) -> int | None:
    """The one NUMA node that a tmpfs is bound to (``mpol=bind:N``), or None."""
    match = re.fullmatch(r"bind(?:=static|=relative)?:(\d+)", mount.options.get("mpol", ""))
    return int(match[1]) if match else None


# ---- DAX devices ------------------------------------------------------------------------------


@dataclass(frozen=True)
class DaxDevice:
    """A DAX device as sysfs shows it. driver is "device_dax" (user space may map it), "kmem"
    (system-ram mode), "fsdev_dax" (for a kernel filesystem) or "" (none)."""

    name: str
    size_bytes: int
    align_bytes: int
    start_bytes: int | None
    target_node: int | None
    driver: str

    @property
    def region(self) -> str:
        """The X of daxX.Y: the memory range that the device is cut from."""
        match = DAX_NAME.fullmatch(self.name)
        return match[1] if match else "0"


def dax_device(rdev: int) -> DaxDevice | None:
    """The DAX device with this device number; None if the number is another device's."""
    link = SYSFS_ROOT / "dev/char" / f"{os.major(rdev)}:{os.minor(rdev)}"
    place = Path(os.path.realpath(link))
    if os.path.basename(os.path.realpath(place / "subsystem")) != "dax":
        return None
    driver = os.path.basename(os.path.realpath(place / "driver"))
    node = _read_int(place / "target_node")
    return DaxDevice(
        name=place.name,
        size_bytes=_read_int(place / "size") or 0,
        # Kernels before 5.10 have no such file, and know no other alignment by default.
        align_bytes=_read_int(place / "align") or 2 * 1024 * KIB,
        start_bytes=_read_int(place / "resource"),
        target_node=node if node is not None and node >= 0 else None,
        driver=driver if (place / "driver").exists() else "",
    )


def nodes() -> list[int]:
    """NUMA nodes that have memory."""
    found: list[int] = []
    for part in _read_text(SYSFS_ROOT / "devices/system/node/has_memory").strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found += range(int(first), int(last or first) + 1)
    return found


# ---- memory -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """How much memory new pages can take, and what sets that bound."""

    available_bytes: int
    bound: str


def available_memory(node: int | None = None) -> Memory | None:
    """Memory that can be had without swapping, from all nodes or from one; the limits of this
    process's control groups count. None where the kernel does not tell."""
    found = []
    if node is None:
        kib = _meminfo(PROC_ROOT / "meminfo").get("MemAvailable")
        if kib is not None:
            found.append(Memory(kib * KIB, "free memory (MemAvailable)"))
    else:
        table = _meminfo(SYSFS_ROOT / f"devices/system/node/node{node}/meminfo")
        if "MemFree" in table:
            reclaimable = sum(
                table.get(name, 0) for name in ("Active(file)", "Inactive(file)", "SReclaimable")
            )
            free_bytes = (table["MemFree"] + reclaimable) * KIB
            found.append(Memory(free_bytes, f"free memory of NUMA node {node}"))
    found += _cgroup_memory()
    return min(found, key=lambda memory: memory.available_bytes, default=None)


def _meminfo(path: Path) -> dict[str, int]:
    """meminfo as a dict from name to KiB; a node's lines begin with "Node N"."""
    pattern = re.compile(r"^(?:Node \d+ )?([\w()]+):\s*(\d+) kB$", re.MULTILINE)
    return {name: int(kib) for name, kib in pattern.findall(_read_text(path))}


def _cgroup_memory() -> Iterator[Memory]:
    """What is left below the memory limit of each control group that this process is in.

    A container's limit is often far below MemAvailable, and who crosses it is killed.
    """
    for line in _read_text(PROC_ROOT / "self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            root, names = SYSFS_ROOT / "fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root = SYSFS_ROOT / "fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        group = root / path.lstrip("/")
        while True:
            limit, used = (_read_int(group / name) for name in names)
            if limit is not None and used is not None:
                stats = dict(re.findall(r"^(\w+) (\d+)$", _read_text(group / "memory.stat"), re.M))
                cache = int(stats.get("active_file", 0)) + int(stats.get("inactive_file", 0))
                yield Memory(max(0, limit - used + cache), f"the limit of control group {path}")
            if group in (root, Path("/")):
                break
            group = group.parent


@dataclass(frozen=True)
class HugePages:
    """The pool of huge pages of one size. available = free, not reserved by anybody, and those
    that the kernel would add on demand (nr_overcommit_hugepages)."""

    total: int
    available: int
    setting: str
    """The command that sets the number of pages, without its value."""


def huge_pages(page_bytes: int) -> HugePages | None:
    """The huge pages of a size; None if the kernel has none of that size."""
    place = SYSFS_ROOT / f"kernel/mm/hugepages/hugepages-{page_bytes // KIB}kB"
    total = _read_int(place / "nr_hugepages")
    if total is None:
        return None
    free, reserved, overcommit, surplus = (
        _read_int(place / name) or 0
        for name in (
            "free_hugepages",
            "resv_hugepages",
            "nr_overcommit_hugepages",
            "surplus_hugepages",
        )
    )
    default_kib = _meminfo(PROC_ROOT / "meminfo").get("Hugepagesize")
    if default_kib == page_bytes // KIB:
        setting = "sysctl vm.nr_hugepages={}"
    else:
        setting = f"echo {{}} > {place}/nr_hugepages"
    return HugePages(total, max(0, free - reserved) + max(0, overcommit - surplus), setting)


# ---- processes --------------------------------------------------------------------------------


def lock_holders(target: os.stat_result, name: str) -> tuple[Holder, ...]:
    """Processes that hold a flock on a file, as far as they can be seen.

    /proc/locks names the process that took the lock. Where it has ended, a child that inherited
    the descriptor keeps the lock, so then everybody who has the file open is named.
    """
    key = f"{os.major(target.st_dev):02x}:{os.minor(target.st_dev):02x}:{target.st_ino}"
    pids = set()
    for line in _read_text(PROC_ROOT / "locks").splitlines():
        fields = line.split()
        if len(fields) >= 6 and fields[1] == "FLOCK" and fields[5] == key:
            pids.add(int(fields[4]))
    holders = tuple(_holder(pid) for pid in sorted(pids) if _may_hold(pid, target, name))
    return holders or users(target, name)


def users(target: os.stat_result, name: str) -> tuple[Holder, ...]:
    """Other processes that have a file or device open or mapped, as far as they can be seen.

    ``name`` is the last part of its path.
    """
    found = []
    for entry in sorted(_pids()):
        place = PROC_ROOT / str(entry)
        if entry != os.getpid() and (_has_open(place, target, name) or _has_mapped(place, target)):
            found.append(_holder(entry))
    return tuple(found)


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir(PROC_ROOT) if name.isdigit()]
    except OSError:
        return []


def _holder(pid: int) -> Holder:
    return Holder(pid, _read_text(PROC_ROOT / str(pid) / "comm").strip())


def _may_hold(pid: int, target: os.stat_result, name: str) -> bool:
    """False if a process has ended, be it a zombie, or has let go of the file. Who may not look
    into a process believes /proc/locks."""
    place = PROC_ROOT / str(pid)
    if not place.exists() or re.search(r"^State:\s+[ZX]", _read_text(place / "status"), re.M):
        return False
    return not os.access(place / "fd", os.R_OK) or _has_open(place, target, name)


def _has_open(place: Path, target: os.stat_result, name: str) -> bool:
    try:
        numbers = os.listdir(place / "fd")
    except OSError:
        return False
    for number in numbers:
        # stat() on a descriptor of a hung FUSE or NFS file would hang too: ask for a file's
        # name and inode number first, which the kernel has at hand.
        try:
            same_name = os.path.basename(os.readlink(place / "fd" / number)) == name
        except OSError:
            continue
        fdinfo = _read_text(place / "fdinfo" / number)
        if same_name or re.search(rf"^ino:\s*{target.st_ino}$", fdinfo, re.MULTILINE):
            try:
                found = os.stat(place / "fd" / number)
            except OSError:
                continue
            if os.path.samestat(found, target) or _same_device(found, target):
                return True
    return False


def _same_device(one: os.stat_result, other: os.stat_result) -> bool:
    """The same device by two device nodes: each container has a node of its own."""
    both = stat.S_ISCHR(one.st_mode) and stat.S_ISCHR(other.st_mode)
    return both and one.st_rdev == other.st_rdev


def _has_mapped(place: Path, target: os.stat_result) -> bool:
    device = f"{os.major(target.st_dev):02x}:{os.minor(target.st_dev):02x}"
    wanted = f" {device} {target.st_ino} "
    return any(wanted in line + " " for line in _read_text(place / "maps").splitlines())


# ---- files ------------------------------------------------------------------------------------


def _read_text(path: Path) -> str:
    """The text of a file, "" where it cannot be read: what is not told is not known."""
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        return ""


def _read_int(path: Path) -> int | None:
    text = _read_text(path).strip()
    try:
        return int(text, 0)
    except ValueError:  # "max", or nothing
        return None


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)

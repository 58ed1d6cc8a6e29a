"""What this machine offers to belugafs, for ``belugafs doctor``. Looks, and changes nothing that
is there."""

import contextlib
import ctypes
import os
import platform
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

from belugafs._pool.host import Mount, mount_of
from belugafs.exits import Exit
from belugafs.mounts import belugafs_mounts, is_dead, mount_holding
from belugafs.pinning import Pin, pin_of_directory
from belugafs.pool import PoolError
from belugafs.transport import WANTED_PAGES, choose, kernel_release, passthrough
from belugafs.transport.probe import passthrough_errno

State = Literal["ok", "limited", "missing"]


class Finding(NamedTuple):
    """One thing that was looked for. ``limited``: it works, but something better exists.
    ``needed``: nothing can be mounted without it."""

    name: str
    state: State
    text: str
    needed: bool = False


_NEEDED = frozenset({"/dev/fuse", "fusermount3", "pyfuse3", "trio", "C core"})


def examine(where: Sequence[str] = ()) -> Iterator[Finding]:
    """All findings, the necessary things first; also of the mounts that these paths lie in. Raises
    PoolError where one lies in none."""
    found = [mount_holding(path) for path in where]
    for path, mount in zip(where, found, strict=True):
        if mount is None:
            raise PoolError(f"{path} is not in a belugafs mount", Exit.USAGE)
    for finding in _examine():
        yield finding._replace(needed=finding.name in _NEEDED)
    for mount in filter(None, found):
        yield _within(mount, _mapped)
    if not where and belugafs_mounts():
        text = "belugafs doctor MOUNT says whether what is mapped there can be given to a GPU"
        yield Finding("mounts", "ok", f"{len(belugafs_mounts())}; {text}")


def _examine() -> Iterator[Finding]:
    yield _kernel()
    yield _dev_fuse()
    yield _fusermount()
    yield _other_users()
    yield _package("pyfuse3")
    yield _libfuse()
    yield _package("trio")
    yield _core()
    yield _transport()
    yield _passthrough()
    yield _request_size()
    yield _huge_pages()
    yield _processor()
    yield _dax_devices()


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _kernel() -> Finding:
    state: State = "ok" if kernel_release() >= (5, 17) else "limited"
    text = f"Linux {platform.release()}"
    if state == "limited":
        text += "; before 5.17 a killed writer cannot always be told from one that closes"
    return Finding("kernel", state, text)


def _dev_fuse() -> Finding:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        advice = "modprobe fuse, or give the container the device"
        if os.path.exists("/dev/fuse"):
            advice = "chmod 666 /dev/fuse"
        return Finding("/dev/fuse", "missing", f"{error.strerror}; as root: {advice}")
    return Finding("/dev/fuse", "ok", "can be opened")


def _fusermount() -> Finding:
    place = shutil.which("fusermount3")
    if place is None:
        state: State = "limited" if os.geteuid() == 0 else "missing"
        text = "not found; users other than root need it to mount: apt install fuse3"
        return Finding("fusermount3", state, text)
    return Finding("fusermount3", "ok", place)


def _other_users() -> Finding:
    if os.geteuid() == 0:
        return Finding("allow_other", "ok", "as root, other users can use the mount")
    if "user_allow_other" in _text("/etc/fuse.conf").splitlines():
        return Finding("allow_other", "ok", "user_allow_other is set in /etc/fuse.conf")
    return Finding(
        "allow_other",
        "limited",
        "only you can use your mounts; as root: echo user_allow_other >> /etc/fuse.conf",
    )


def _package(name: str) -> Finding:
    try:
        return Finding(name, "ok", metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, "missing", f"pip install {name}")


def _libfuse() -> Finding:
    """The library that pyfuse3 has loaded, which says its own version."""
    name = "libfuse"
    try:
        import pyfuse3  # noqa: F401
    except ImportError:
        advice = "without pyfuse3 it is not looked for"
        return Finding(name, "limited", f"{advice}; the transport direct needs neither")
    lines = _text("/proc/self/maps").splitlines()
    place = next((line.split()[-1] for line in lines if "/libfuse3" in line), "")
    if not place:
        return Finding(name, "ok", "part of pyfuse3; only the transport pyfuse3 needs it")
    version = "of unknown version"
    with contextlib.suppress(OSError, AttributeError):
        pkgversion = ctypes.CDLL(place).fuse_pkgversion
        pkgversion.restype = ctypes.c_char_p
        version = pkgversion().decode()
    return Finding(name, "ok", f"{version} ({place}); only the transport pyfuse3 needs it")


def _core() -> Finding:
    try:
        from belugafs import _native
    except ImportError as error:
        return Finding("C core", "missing", f"{error}; build it: make build")
    return Finding("C core", "ok", f"format {_native.VERSION_MAJOR}.{_native.VERSION_MINOR}")


def _passthrough() -> Finding:
    reason = passthrough.lack()
    if not reason and (number := passthrough_errno()):
        reason = passthrough.refusal(number)
    if reason:
        text = f"{reason}; without it, what is mapped of a directory pool has a second copy"
        return Finding("passthrough", "limited", text)
    return Finding("passthrough", "ok", f"directory pools: {passthrough.WORKS}")


def _transport() -> Finding:
    choice = choose("auto")
    if choice.name == "direct":
        text = f"direct: {choice.reason}; -o transport=pyfuse3 works, too"
        return Finding("transport", "ok", text)
    text = f"{choice.name}: {choice.reason}; a newer kernel has it"
    return Finding("transport", "limited", text)


def _request_size() -> Finding:
    pages = _text("/proc/sys/fs/fuse/max_pages_limit")
    if not pages:
        return Finding("request size", "limited", "1 MiB at most; Linux 6.13 has more")
    text = f"up to {int(pages) * os.sysconf('SC_PAGE_SIZE') >> 10} KiB (fs.fuse.max_pages_limit)"
    if int(pages) >= WANTED_PAGES:
        return Finding("request size", "ok", text)
    if os.geteuid() == 0:
        return Finding("request size", "ok", f"{text}; a mount raises it to {WANTED_PAGES} pages")
    advice = f"as root: sysctl fs.fuse.max_pages_limit={WANTED_PAGES}, before the mount"
    return Finding("request size", "limited", f"{text}; {advice}")


def _huge_pages() -> Finding:
    shmem = _text("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    chosen = shmem[shmem.find("[") + 1 : shmem.find("]")] if "[" in shmem else ""
    reserved = _text("/proc/sys/vm/nr_hugepages") or "0"
    text = f"tmpfs: {chosen or 'none in this kernel'}; reserved for hugetlbfs: {reserved}"
    if chosen in ("always", "within_size", "advise", "force") or reserved != "0":
        return Finding("huge pages", "ok", text)
    return Finding("huge pages", "limited", text + "; a tmpfs mounted with huge=always has them")


def _processor() -> Finding:
    flags: set[str] = set()
    for line in _text("/proc/cpuinfo").splitlines():
        if line.startswith(("flags", "Features")):
            flags.update(line.partition(":")[2].split())
            break
    if platform.machine() not in ("x86_64", "AMD64"):
        return Finding("cache flush", "limited", f"{platform.machine()}: one host only")
    found = [name for name in ("clflush", "clflushopt", "clwb") if name in flags]
    if "clflushopt" in found:
        return Finding("cache flush", "ok", ", ".join(found))
    state: State = "limited" if found else "missing"
    return Finding(
        "cache flush", state, (", ".join(found) or "none") + "; shared pools need clflushopt"
    )


def _dax_devices() -> Finding:
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = sorted(os.listdir("/sys/bus/dax/devices"))
    if names:
        return Finding("DAX devices", "ok", ", ".join(names))
    return Finding("DAX devices", "limited", "none: pools are in ordinary memory; CXL: daxctl list")


# ---- what a process gets that maps files of a mount ---------------------------------------------

_ANSWER_LIMIT_S = 5
_MEMORY_KINDS = frozenset({"tmpfs", "hugetlbfs", "devdax"})


def _within(mount: Mount, look: Callable[[Mount], Finding]) -> Finding:
    """A mount whose daemon hangs is one more thing to find out."""
    found: list[Finding] = []
    thread = threading.Thread(target=lambda: found.append(look(mount)), daemon=True)
    thread.start()
    thread.join(_ANSWER_LIMIT_S)
    if found:
        return found[0]
    return Finding(
        f"mount {mount.mount_point}",
        "missing",
        f"doesn't answer within {_ANSWER_LIMIT_S} s; if it stays so: umount -f, and mount it again",
    )


def _mapped(mount: Mount) -> Finding:
    """Of one mount: the kind of its pool, its huge pages, how deep it is stacked, and whether what
    is mapped there can be given to a GPU. A file without a name is made for that, and is gone."""
    name = f"mount {mount.mount_point}"
    if is_dead(mount.mount_point):
        return Finding(name, "missing", "its daemon is dead; mounting it again heals it")
    try:
        config = dict(_config(mount.mount_point))
        kind = config["kind"]
        pin = _pin(mount, config)
    except (OSError, KeyError) as error:
        return Finding(name, "limited", f"can't be looked at: {error}")
    stacked = config.get("passthrough") == "on"
    layers = "one more filesystem (overlayfs) can be laid over it" if stacked else "not stacked"
    texts = [f"pool: {kind}", _huge_of(mount.source, kind), layers]
    texts.append(f"what is mapped {pin.text} ({pin.how})")
    if pin.works is False:
        texts.append(_advice(kind, config))
    return Finding(name, "ok" if pin.works else "limited", "; ".join(texts))


def _config(mount_point: str) -> Iterator[tuple[str, str]]:
    for line in Path(mount_point, ".beluga/config").read_text().splitlines():
        key, _, value = line.partition(" ")
        yield key, value


def _pin(mount: Mount, config: dict[str, str]) -> Pin:
    if config["readonly"] == "yes":
        return Pin(None, "read-only: no file can be made", "is not known to be pinnable")
    return pin_of_directory(mount.mount_point)


def _huge_of(source: str, kind: str) -> str:
    """Of a pool: the page size of its filesystem, or what its tmpfs was mounted with."""
    if kind == "devdax":
        return "pages of the device"
    if kind == "hugetlbfs":
        return f"huge pages of {os.statvfs(source).f_bsize >> 10} KiB"
    if kind == "file":
        return "no huge pages: the pool is on a disk; make it in /dev/shm or a tmpfs"
    fd = os.open(source, os.O_RDONLY)
    try:
        below = mount_of(fd)
    finally:
        os.close(fd)
    huge = below.options.get("huge", "never") if below is not None else "never"
    if huge != "never":
        return f"huge pages: {huge}"
    place = below.mount_point if below is not None else "the tmpfs"
    return f"no huge pages: mount -o remount,huge=within_size {place}, and make the pool anew"


def _advice(kind: str, config: dict[str, str]) -> str:
    if kind == "directory":
        reason = config.get("passthrough_reason", "this version or kernel has none")
        return f"no passthrough: {reason}"
    if kind in _MEMORY_KINDS:
        return (
            "map the pool itself, or make a directory pool (mkfs.belugafs --size SIZE DIR, as "
            "root), whose files the kernel maps by passthrough; docs/zero-copy.md"
        )
    return "a pool on a disk can't be given to a GPU: make it in a tmpfs; docs/zero-copy.md"

"""What this machine offers to belugafs, for ``belugafs doctor``. Looks, and changes nothing."""

import contextlib
import os
import platform
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

from belugafs.transport import choose, kernel_release, passthrough
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


def examine() -> Iterator[Finding]:
    """All findings, the necessary things first."""
    for finding in _examine():
        yield finding._replace(needed=finding.name in _NEEDED)


def _examine() -> Iterator[Finding]:
    yield _kernel()
    yield _dev_fuse()
    yield _fusermount()
    yield _other_users()
    yield _package("pyfuse3")
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
        return Finding("fusermount3", state, "not found; users other than root need it to mount")
    return Finding("fusermount3", "ok", place)


def _other_users() -> Finding:
    if os.geteuid() == 0:
        return Finding("allow_other", "ok", "as root, other users can use the mount")
    if "user_allow_other" in _text("/etc/fuse.conf").splitlines():
        return Finding("allow_other", "ok", "user_allow_other is set in /etc/fuse.conf")
    return Finding(
        "allow_other",
        "limited",
        "only you can use your mounts: user_allow_other is not set in /etc/fuse.conf",
    )


def _package(name: str) -> Finding:
    try:
        return Finding(name, "ok", metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, "missing", f"pip install {name}")


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
    state: State = "ok" if choice.name == "direct" else "limited"
    return Finding("transport", state, f"{choice.name}: {choice.reason}")


def _request_size() -> Finding:
    pages = _text("/proc/sys/fs/fuse/max_pages_limit")
    if not pages:
        return Finding("request size", "limited", "1 MiB at most (before Linux 6.13)")
    return Finding("request size", "ok", f"up to {int(pages) * 4} KiB (fs.fuse.max_pages_limit)")


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
    return Finding("DAX devices", "limited", "none: pools are in ordinary memory")

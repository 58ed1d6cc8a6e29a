"""Options of ``mount -t belugafs -o ...``: what there is, what each may be, and what is wrong."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

from belugafs.units import parse_size

Evict = Literal["lru", "none", "all"]
Verify = Literal["first", "always", "off", "scrub"]
Coherence = Literal["auto", "coherent", "incoherent"]
Publish = Literal["open", "close"]
Transport = Literal["auto", "pyfuse3", "direct"]
Passthrough = Literal["auto", "off"]

LIBRARY_ROOT = "root"
LIBRARY_OFF = "off"

HIGH_PERMILLE = 970
LOW_PERMILLE = 950
RATE_BYTES_PER_S = 64 << 20
SPIN_US = 30
"""Some two round trips of a program that asks one thing after the other."""
SPIN_MOST_US = 1000

# What mount(8), fstab and systemd add, and which means nothing to a filesystem.
_IGNORED = frozenset(
    {
        *("defaults", "auto", "noauto", "nofail", "_netdev", "silent", "loud", "async"),
        *("user", "users", "nouser", "owner", "noowner", "group", "nogroup"),
        *("relatime", "norelatime", "strictatime", "nostrictatime", "lazytime", "nolazytime"),
        *("diratime", "iversion", "noiversion", "mand", "nomand"),
    }
)
_IGNORED_PREFIXES = ("x-", "X-", "comment=", "user=", "uhelper=", "helper=")

# Done by the kernel's VFS: passed on.
_KERNEL_SWITCHES = frozenset(
    switch for pair in ("dev", "suid", "exec", "atime") for switch in (pair, "no" + pair)
) | {"sync", "dirsync"}


class OptionError(ValueError):
    """The text names the option and says what it may be."""


@dataclass
class MountOptions:
    """All options with their values; also what ``.beluga/config`` shows."""

    readonly: bool = False
    evict: Evict = "lru"
    verify: Verify = "first"
    scrub_bytes_per_s: int = RATE_BYTES_PER_S
    coherence: Coherence = "auto"
    publish: Publish = "open"
    transport: Transport = "auto"
    passthrough: Passthrough = "auto"
    spin_us: int = SPIN_US
    """How long the direct transport looks for the next request before it sleeps."""
    library: str = LIBRARY_ROOT
    """Who gets descriptors of the pool, to read blocks in place: ``root`` (and the daemon's user),
    ``off``, or ``gid=N``, a group beside these."""
    run_dir: str = ""
    """Where the files lie that these processes share with the daemon; empty:
    :mod:`belugafs.rundir`."""
    host: str = ""
    high_permille: int = HIGH_PERMILLE
    low_permille: int = LOW_PERMILLE
    log: str = ""
    """A file, ``syslog``, or empty for whatever there is."""
    allow_other: bool | None = None
    """None: if it can be had, which is as root or with user_allow_other in /etc/fuse.conf."""
    kernel: list[str] = field(default_factory=list)


def _choice(values: tuple[str, ...]) -> Callable[[str, str], str]:
    def check(name: str, value: str) -> str:
        if value not in values:
            raise OptionError(f"{name}={value}: {name} is one of {', '.join(values)}")
        return value

    return check


def _text(name: str, value: str) -> str:
    if not value:
        raise OptionError(f"{name}= needs a value")
    return value


def _permille(name: str, value: str) -> int:
    try:
        number = round(float(value.removesuffix("%")) * 10)
    except (ValueError, OverflowError):
        number = -1
    if not 1 <= number <= 1000:
        raise OptionError(f"{name}={value}: {name} is a percentage of the pool, such as {name}=95")
    return number


def _size(name: str, value: str) -> int:
    try:
        return parse_size(value)
    except ValueError as error:
        raise OptionError(f"{name}={value}: {error}") from None


def _spin(name: str, value: str) -> int:
    if not value.isdecimal() or int(value) > SPIN_MOST_US:
        raise OptionError(
            f"{name}={value}: {name} is a number of microseconds, 0 to {SPIN_MOST_US}"
        )
    return int(value)


def _library(name: str, value: str) -> str:
    group = value.removeprefix("gid=")
    if value in (LIBRARY_ROOT, LIBRARY_OFF):
        return value
    if value != group and group.isdecimal() and int(group) < 1 << 32:
        return f"gid={int(group)}"
    raise OptionError(f"{name}={value}: {name} is one of root, off, gid=NUMBER")


def _directory(name: str, value: str) -> str:
    if not value.startswith("/"):
        raise OptionError(f"{name}={value}: {name} is an absolute path")
    return value


_VALUES: dict[str, tuple[str, Callable[[str, str], object]]] = {
    "evict": ("evict", _choice(get_args(Evict))),
    "verify": ("verify", _choice(get_args(Verify))),
    "scrub_rate": ("scrub_bytes_per_s", _size),
    "coherence": ("coherence", _choice(get_args(Coherence))),
    "publish": ("publish", _choice(get_args(Publish))),
    "transport": ("transport", _choice(get_args(Transport))),
    "passthrough": ("passthrough", _choice(get_args(Passthrough))),
    "spin_us": ("spin_us", _spin),
    "library": ("library", _library),
    "run_dir": ("run_dir", _directory),
    "host": ("host", _text),
    "log": ("log", _text),
    "high": ("high_permille", _permille),
    "low": ("low_permille", _permille),
}
_SWITCHES = {
    "rw": ("readonly", False),
    "ro": ("readonly", True),
    "allow_other": ("allow_other", True),
    "noallow_other": ("allow_other", False),
}

HELP = """\
  ro, rw                       read-only: nothing is stored into the pool
  evict=lru|none|all           full pool: drop the least recently used blocks, or ENOSPC, or
                               drop ordinary files too
  high=PERCENT, low=PERCENT    start evicting at (97), until (95)
  verify=first|always|off|scrub
                               checksums of blocks: at the first read, at each, never; at the first
                               read, and of all blocks in the background
  scrub_rate=SIZE              so many bytes a second of them (64M)
  publish=open|close           a new file has its name from open on, or from its first close on
  coherence=auto|coherent|incoherent
                               does the memory keep processors' caches coherent (auto: yes)
  library=root|gid=NUMBER|off  who may use blocks in place, by belugafs.connect(), and with that
                               all of the pool (root, and the user who mounts)
  run_dir=DIR                  where they have their leases (/run/belugafs)
  host=NAME                    another host identity on the same machine
  allow_other, noallow_other   other users too, with normal permission checks (root: default)
  log=FILE|syslog              where the daemon's messages go
  transport=auto|direct|pyfuse3
                               how requests come from the kernel; doctor says which one auto takes
  spin_us=NUMBER               transport direct: where requests come quickly one after the other, a
                               thread looks for the next one so long before it sleeps (30; 0: never)
  passthrough=auto|off         directory pools: the kernel reads, writes and maps files by itself
  nodev, nosuid, noexec, noatime, dev, suid, exec, atime, sync, dirsync
                               as for every filesystem (root: nodev,nosuid unless dev,suid)"""


def parse_options(texts: list[str], *, sloppy: bool = False) -> MountOptions:
    """The values of all -o together; the last one counts. ``sloppy`` lets unknown options
    pass. Raises OptionError."""
    options = MountOptions()
    for item in _items(texts):
        name, equals, value = item.partition("=")
        if name in _SWITCHES and not equals:
            attribute, switch = _SWITCHES[name]
            setattr(options, attribute, switch)
        elif item in _KERNEL_SWITCHES:
            options.kernel.append(item)
        elif name in _VALUES:
            attribute, check = _VALUES[name]
            if not equals:
                raise OptionError(f"{name} needs a value: {name}=...")
            setattr(options, attribute, check(name, value))
        elif item == "remount":
            raise OptionError("remount is not supported: unmount, and mount with the new options")
        elif not (sloppy or item in _IGNORED or item.startswith(_IGNORED_PREFIXES)):
            raise OptionError(f"unknown option {item!r}" + _suggestion(name))
    if options.low_permille > options.high_permille:
        low, high = (f"{value / 10:g}" for value in (options.low_permille, options.high_permille))
        raise OptionError(f"low={low} is above high={high}")
    return options


def _items(texts: list[str]) -> Iterator[str]:
    for text in texts:
        yield from (item for item in text.split(",") if item)


def _suggestion(name: str) -> str:
    if name == "direct_io":
        return "; files could not be mapped with it, and O_DIRECT works without"
    from difflib import get_close_matches

    known = [*_VALUES, *_SWITCHES, *_KERNEL_SWITCHES]
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""

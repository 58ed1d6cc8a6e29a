"""mount(2) and umount2(2), which Python has no names for."""

import ctypes
import os

NOSUID, NODEV, NOEXEC = 2, 4, 8

_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, place: str, fs_type: str, flags: int, data: str) -> None:
    """Mount a filesystem. ``flags`` and ``data`` are mount(2)'s. Raises OSError."""
    done = _libc.mount(
        os.fsencode(source),
        os.fsencode(place),
        fs_type.encode(),
        ctypes.c_ulong(flags),
        data.encode(),
    )
    _check(done, place)


def umount(place: str, *, lazy: bool) -> None:
    """Unmount. ``lazy``: gone from the tree at once, open files go on. Raises OSError."""
    _check(_libc.umount2(os.fsencode(place), ctypes.c_int(_DETACH if lazy else 0)), place)


def _check(done: int, place: str) -> None:
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), place)

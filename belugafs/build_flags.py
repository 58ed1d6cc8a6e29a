"""Where the header and the library for C and C++ are:
``cc program.c $(python -m belugafs.build_flags)``.

``--cflags`` and ``--libs`` print one half.
"""

import shlex
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def cflags() -> list[str]:
    """For the compiler: where ``belugafs.h`` is."""
    return [f"-I{_HERE / 'include'}"]


def libs() -> list[str]:
    """For the linker, behind the sources: ``libbelugafs.so``, found again at run time."""
    return [f"-L{_HERE}", f"-Wl,-rpath,{_HERE}", "-lbelugafs"]


def main() -> None:
    known = {"--cflags": cflags, "--libs": libs}
    wanted = sys.argv[1:] or list(known)
    if unknown := [word for word in wanted if word not in known]:
        sys.exit(f"build_flags: {unknown[0]}: there are --cflags and --libs")
    print(shlex.join(flag for word in wanted for flag in known[word]()))


if __name__ == "__main__":
    main()

"""The one part of the build that pyproject.toml cannot say: the C extension modules.

``BELUGAFS_WERROR=1`` turns warnings into errors; ``BELUGAFS_DEBUG=1`` builds with assertions
and without optimisation. Both only change flags, so they need ``--force`` on a built tree.
"""

import os
from glob import glob

from setuptools import Extension, setup

PLACES = ("belugafs/_native*", "belugafs/_core/*", "belugafs/_direct/*")

flags = ["-O2", "-std=gnu11", "-Wall", "-Wextra", "-fvisibility=hidden", "-pthread"]
if os.environ.get("BELUGAFS_WERROR") == "1":
    flags.append("-Werror")
if os.environ.get("BELUGAFS_DEBUG") == "1":
    # Python's own flags carry -DNDEBUG.
    flags += ["-O0", "-g", "-UNDEBUG"]

setup(
    ext_modules=[
        Extension(
            "belugafs._native",
            # The binding is _native*.c; the core and the FUSE server know nothing of Python.
            sources=sorted(source for place in PLACES for source in glob(f"{place}.c")),
            depends=sorted([*glob("belugafs/*.h"), *glob("belugafs/_*/*.h")]),
            include_dirs=["belugafs/_core"],
            # xxhash.h is used as a header alone: nothing is linked.
            define_macros=[("XXH_INLINE_ALL", None)],
            extra_compile_args=flags,
            extra_link_args=["-pthread"],
        ),
        Extension(
            "belugafs.kernels._copy",
            # It holds the GPU's source as well (.incbin, from here: setup.py runs in the root).
            sources=["belugafs/kernels/_copy.c", *sorted(glob("kernels/*.c"))],
            depends=sorted([*glob("kernels/*.h"), *glob("kernels/*.cu")]),
            include_dirs=["kernels"],
            extra_compile_args=flags,
            extra_link_args=["-pthread"],
        ),
    ]
)

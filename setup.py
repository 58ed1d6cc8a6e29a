"""The one part of the build that pyproject.toml cannot say: the C extension modules, and the
library for C and C++ (``belugafs/libbelugafs.so``), linked of the objects of one of them.

``BELUGAFS_WERROR=1`` turns warnings into errors; ``BELUGAFS_DEBUG=1`` builds with assertions
and without optimisation. Both only change flags, so they need ``--force`` on a built tree.
"""

import os
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

PLACES = ("belugafs/_native*", "belugafs/_core/*", "belugafs/_direct/*")

flags = ["-O2", "-std=gnu11", "-Wall", "-Wextra", "-fvisibility=hidden", "-pthread"]
if os.environ.get("BELUGAFS_WERROR") == "1":
    flags.append("-Werror")
if os.environ.get("BELUGAFS_DEBUG") == "1":
    # Python's own flags carry -DNDEBUG.
    flags += ["-O0", "-g", "-UNDEBUG"]

LIBRARY = "belugafs.libbelugafs"
# What the core moves data by, and what stands around that. kernels/ is an extension of its own.
LOOPS = sorted([*glob("kernels/copy_*.c"), "kernels/loops.c", "kernels/guard.c"])


class Build(build_ext):
    """Knows a shared library among the extension modules."""

    def get_ext_filename(self, fullname: str) -> str:
        if fullname.rpartition(".")[2] == LIBRARY.rpartition(".")[2]:
            return os.path.join(*fullname.split(".")) + ".so"
        return super().get_ext_filename(fullname)

    def build_extension(self, ext: Extension) -> None:
        if ext.name != LIBRARY:
            super().build_extension(ext)
            return
        objects = self.compiler.object_filenames(ext.sources, output_dir=self.build_temp)
        # Compiled for belugafs._native, unless that was up to date and its objects are gone.
        if not all(map(os.path.exists, objects)):
            objects = self.compiler.compile(
                ext.sources,
                output_dir=self.build_temp,
                macros=ext.define_macros,
                include_dirs=ext.include_dirs,
                extra_postargs=ext.extra_compile_args,
            )
        place = self.get_ext_fullpath(ext.name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        self.compiler.link_shared_object(objects, place, extra_postargs=ext.extra_link_args)


setup(
    cmdclass={"build_ext": Build},
    ext_modules=[
        Extension(
            "belugafs._native",
            # The binding is _native*.c; the core and the FUSE server know nothing of Python.
            sources=sorted(source for place in PLACES for source in glob(f"{place}.c")) + LOOPS,
            depends=sorted(
                [
                    *glob("belugafs/*.h"),
                    *glob("belugafs/_*/*.h"),
                    *glob("belugafs/include/*.h"),
                    *glob("kernels/*.h"),
                ]
            ),
            include_dirs=["belugafs/_core", "kernels"],
            # xxhash.h is used as a header alone: nothing is linked.
            define_macros=[("XXH_INLINE_ALL", None)],
            extra_compile_args=flags,
            extra_link_args=["-pthread"],
        ),
        Extension(
            LIBRARY,
            sources=sorted(glob("belugafs/_core/*.c")) + LOOPS,
            include_dirs=["belugafs/_core", "kernels"],
            define_macros=[("XXH_INLINE_ALL", None)],
            extra_compile_args=flags,
            extra_link_args=["-pthread", "-Wl,-soname,libbelugafs.so", "-Wl,-z,defs"],
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
    ],
)

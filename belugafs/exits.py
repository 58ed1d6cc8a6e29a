"""Exit codes of the command line tools that make, open and mount pools.

One code for each class of problem, so that a script can tell "the device is in the wrong mode"
from "the disk is full" without reading messages. ``fsck.belugafs`` is the exception: it answers
with the codes of fsck(8), as every caller of a fsck expects.

The numbers are part of the command line interface: add at the end, never renumber.
"""

from enum import IntEnum


class Exit(IntEnum):
    """Exit status of ``mkfs.belugafs`` and of everything that opens a pool."""

    OK = 0
    USAGE = 1
    NOT_FOUND = 2
    IS_DIRECTORY = 3
    NOT_A_POOL_TYPE = 4
    BLOCK_DEVICE = 5
    OTHER_DEVICE = 6
    PERMISSION = 7
    SYSTEM_RAM = 8
    NO_DRIVER = 9
    FSDAX = 10
    BAD_DEVICE_SIZE = 11
    TOO_SMALL = 12
    TOO_LARGE = 13
    NO_SPACE = 14
    NO_MEMORY = 15
    NO_HUGEPAGES = 16
    SPARSE = 17
    IN_USE = 18
    FOREIGN = 19
    HOLDS_POOL = 20
    EMPTY = 21
    GEOMETRY = 22
    IO_ERROR = 23
    UNSUPPORTED = 24
    DAMAGED = 25
    INCOMPLETE = 26
    INTERNAL = 70
    INTERRUPTED = 130
    TERMINATED = 143

    @property
    def meaning(self) -> str:
        """One line for ``--help`` and the manual."""
        return _MEANINGS[self]


_MEANINGS = {
    Exit.OK: "success",
    Exit.USAGE: "wrong options or arguments",
    Exit.NOT_FOUND: "the pool, the path, or the directory to make it in does not exist",
    Exit.IS_DIRECTORY: "the path is a directory",
    Exit.NOT_A_POOL_TYPE: "not a file or device that can be mapped (FIFO, socket, ...)",
    Exit.BLOCK_DEVICE: "a block device",
    Exit.OTHER_DEVICE: "a character device that is not a DAX device",
    Exit.PERMISSION: "no permission, or a read-only filesystem",
    Exit.SYSTEM_RAM: "the DAX device is in system-ram mode",
    Exit.NO_DRIVER: "the DAX device has no driver",
    Exit.FSDAX: "the device is in fsdax mode (for kernel filesystems)",
    Exit.BAD_DEVICE_SIZE: "size, start or alignment of the device cannot be mapped",
    Exit.TOO_SMALL: "too small for a pool",
    Exit.TOO_LARGE: "larger than the device, or than a file may be",
    Exit.NO_SPACE: "not enough free space in the filesystem",
    Exit.NO_MEMORY: "not enough free memory for a pool in memory",
    Exit.NO_HUGEPAGES: "not enough free huge pages",
    Exit.SPARSE: "a sparse pool on a filesystem too full to back it",
    Exit.IN_USE: "the pool is in use",
    Exit.FOREIGN: "holds data that is not a belugafs pool",
    Exit.HOLDS_POOL: "holds a belugafs pool already (mkfs)",
    Exit.EMPTY: "holds no pool yet (mount, tools)",
    Exit.GEOMETRY: "size, inodes and hosts do not fit together",
    Exit.IO_ERROR: "input/output error",
    Exit.UNSUPPORTED: "the kernel or the filesystem lacks something that is needed",
    Exit.DAMAGED: "files are damaged",
    Exit.INCOMPLETE: "less could be done than was asked for",
    Exit.INTERNAL: "a bug in belugafs",
    Exit.INTERRUPTED: "interrupted (SIGINT)",
    Exit.TERMINATED: "terminated (SIGTERM, SIGHUP)",
}

"""What lies in a pool, file or device before anything is written to it.

mkfs must not destroy what somebody needs, and mount must say what it found instead of a pool.
Only the beginning and the end are looked at, by magic numbers; nothing is written.
"""

import struct

from belugafs._pool.base import PoolError, PoolInfo, read_range
from belugafs.exits import Exit
from belugafs.units import KIB

SUPERBLOCK_MAGIC = b"BELUGAFS"
SUPERBLOCK_OFFSETS = (0, 4 * KIB)

EMPTY = "empty"
BELUGAFS = "belugafs"
UNKNOWN = "unknown data"

# Btrfs keeps its superblock at 64 KiB, behind the first 64 KiB that hold all others.
HEAD_BYTES = 128 * KIB
TAIL_BYTES = 64 * KIB

# (offset, bytes, name). The order counts where more than one can match: a filesystem before the
# boot sector that it may carry.
_MAGICS: tuple[tuple[int, bytes, str], ...] = (
    (0x438, b"\x53\xef", "ext2/ext3/ext4 filesystem"),
    (0, b"XFSB", "XFS filesystem"),
    (0x10040, b"_BHRfS_M", "Btrfs filesystem"),
    (0x400, b"\x10\x20\xf5\xf2", "F2FS filesystem"),
    (0x400, b"\xe2\xe1\xf5\xe0", "EROFS filesystem"),
    (4 * KIB + 24, bytes.fromhex("c68573f64e1a45ca8265f57f48ba6d81"), "bcachefs filesystem"),
    (0, b"hsqs", "squashfs filesystem"),
    (0x8001, b"CD001", "ISO 9660 image"),
    (0, struct.pack("<Q", 0x87B282FF), "famfs filesystem"),
    (0, b"LUKS\xba\xbe", "LUKS encrypted volume"),
    (0x200, b"LABELONE", "LVM physical volume"),
    (4 * KIB, b"\xfc\x4e\x2b\xa9", "Linux software RAID member"),
    (4 * KIB - 10, b"SWAPSPACE2", "swap space"),
    (4 * KIB - 10, b"SWAP-SPACE", "swap space"),
    (0, b"BTT_ARENA_INFO", "NVDIMM sector (BTT) namespace"),
    (4 * KIB, b"BTT_ARENA_INFO", "NVDIMM sector (BTT) namespace"),
    (4 * KIB, b"NVDIMM_DAX_INFO", "NVDIMM namespace in devdax mode (its raw memory)"),
    (4 * KIB, b"NVDIMM_PFN_INFO", "NVDIMM namespace in fsdax mode (its raw memory)"),
    (0x200, b"EFI PART", "GPT partition table"),
    (4 * KIB, b"EFI PART", "GPT partition table"),
    (3, b"NTFS    ", "NTFS filesystem"),
    (3, b"EXFAT   ", "exFAT filesystem"),
    (54, b"FAT1", "FAT filesystem"),
    (82, b"FAT32   ", "FAT filesystem"),
    (0, b"\x7fELF", "ELF program or library"),
    (0, b"SQLite format 3\0", "SQLite database"),
    (16, b"\xde\xc0\xef\xbe", "LMDB database"),
    (0, b"GGUF", "GGUF model"),
    (0, b"\x89HDF\r\n\x1a\n", "HDF5 file"),
    (0, b"\x93NUMPY", "NumPy array"),
    (0, b"PK\x03\x04", "zip archive (or PyTorch checkpoint)"),
    (0, b"\x1f\x8b", "gzip data"),
    (0, b"\xfd7zXZ\0", "xz data"),
    (0, b"\x28\xb5\x2f\xfd", "zstd data"),
    (0, b"\x04\x22\x4d\x18", "lz4 data"),
    (0, b"BZh", "bzip2 data"),
    (0x101, b"ustar", "tar archive"),
    (0, b"QFI\xfb", "QCOW2 disk image"),
    (0x1FE, b"\x55\xaa", "MBR partition table or boot sector"),
)


def sniff(fd: int, info: PoolInfo) -> str:
    """Say what lies there: "empty" (all zeros), "belugafs", a name of something else ("XFS
    filesystem"), or "unknown data".

    The answer "empty" covers the first 128 KiB and the last 64 KiB. Reads at most that, through
    a mapping for devdax, where read(2) fails. Raises PoolError where it cannot be read.
    """
    size_bytes = max(info.file_bytes, info.size_bytes)  # with the tail that stays unused
    try:
        head = read_range(fd, info, 0, min(HEAD_BYTES, size_bytes))
        tail_offset = max(0, size_bytes - TAIL_BYTES)
        tail = read_range(fd, info, tail_offset, size_bytes - tail_offset)
    except (OSError, ValueError) as error:
        raise PoolError(
            f"{info.path} cannot be read: {error}; the memory or disk under it may be damaged",
            Exit.IO_ERROR,
        ) from error
    return classify(head, tail)


def classify(head: bytes, tail: bytes) -> str:
    """The same on bytes in hand: the first HEAD_BYTES and the last TAIL_BYTES."""
    if not any(head) and not any(tail):
        return EMPTY
    if head.startswith(SUPERBLOCK_MAGIC):
        return BELUGAFS
    foreign = _foreign(head, tail)
    if foreign is not None:
        return foreign
    # The second copy alone is a pool whose first superblock was hit, so after all others: a
    # filesystem made over an old pool may leave the copy standing.
    if any(head.startswith(SUPERBLOCK_MAGIC, offset) for offset in SUPERBLOCK_OFFSETS):
        return BELUGAFS
    return UNKNOWN


def require_pool(fd: int, info: PoolInfo) -> None:
    """Raise PoolError, with what was found and what to do, unless a belugafs pool lies there.

    Looks at the magic number only; what is behind it is checked by whoever decodes it.
    """
    found = sniff(fd, info)
    if found == BELUGAFS:
        return
    if found == EMPTY:
        raise PoolError(
            f"{info.path} holds no pool yet (all zeros); make one with: mkfs.belugafs {info.path}",
            Exit.EMPTY,
        )
    raise PoolError(
        f"{info.path} is not a belugafs pool, it holds: {found}; it was left untouched",
        Exit.FOREIGN,
    )


def _foreign(head: bytes, tail: bytes) -> str | None:
    for offset, magic, name in _MAGICS:
        if head.startswith(magic, offset):
            return name
    if _is_safetensors(head):
        return "safetensors model"
    if _is_pickle(head, tail):
        return "Python pickle (or old PyTorch checkpoint)"
    if any(tail.startswith(b"EFI PART", len(tail) - back) for back in (512, 4 * KIB)):
        return "GPT partition table (its copy at the end)"
    return "text" if _is_text(head) else None


def _is_safetensors(head: bytes) -> bool:
    """A 64-bit length of the header, at most 100 MB, and JSON."""
    if len(head) < 10 or head[8:9] != b"{":
        return False
    return bool(2 <= struct.unpack_from("<Q", head)[0] <= 100_000_000)


def _is_pickle(head: bytes, tail: bytes) -> bool:
    """Protocols 2 to 5 begin with their number and end with a full stop."""
    return len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5 and tail.endswith(b".")


def _is_text(head: bytes) -> bool:
    sample = head[: 4 * KIB].rstrip(b"\0")
    if not sample:
        return False
    try:
        text = sample.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(sample) - 3:  # a character cut by the end of the sample is fine
            return False
        text = sample[: error.start].decode("utf-8")
    return bool(text) and all(char.isprintable() or char in "\t\n\r\f\x1b" for char in text)

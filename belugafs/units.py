"""Sizes as people type and read them.

``K``, ``M``, ``G``, ``T``, ``P`` (alone or as ``KiB``, ``MiB``, ...) are powers of 1024, as in
every mkfs and in ``mount -o size=``; ``KB``, ``MB``, ... are powers of 1000, as in coreutils.
"""

import re
from fractions import Fraction

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40

# off_t is signed: no file, device or mapping can be larger.
SIZE_MAX_BYTES = (1 << 63) - 1

_PREFIXES = "KMGTP"
_PATTERN = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([KMGTP])(IB|B)?|B)?", re.IGNORECASE | re.ASCII)


def parse_size(text: str) -> int:
    """Turn ``8G``, ``512M``, ``1GiB``, ``1.5T`` or ``4096`` into bytes.

    A fraction of a byte is dropped. Raises ValueError, whose text is fit for a user, for
    anything else, zero and sizes beyond 2**63 - 1 included.
    """
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write it like 8G, 512M, 1.5T or 4096")
    number, prefix, suffix = match.groups()
    unit_bytes = 1
    if prefix is not None:
        base = 1000 if (suffix or "").upper() == "B" else 1024
        unit_bytes = base ** (_PREFIXES.index(prefix.upper()) + 1)
    size_bytes = int(Fraction(number) * unit_bytes)
    if size_bytes == 0:
        raise ValueError(f"{text!r} is a size of zero bytes")
    if size_bytes > SIZE_MAX_BYTES:
        raise ValueError(f"{text!r} is larger than any file can be (8 EiB)")
    return size_bytes


def format_size(size_bytes: int) -> str:
    """Write bytes for people: ``8 GiB``, ``7.81 GiB``, ``512 B``.

    At most two decimals, rounded down: free space is never overstated.
    """
    if size_bytes < 0:
        return "-" + format_size(-size_bytes)
    if size_bytes < KIB:
        return f"{size_bytes} B"
    exponent = min((size_bytes.bit_length() - 1) // 10, len(_PREFIXES))
    hundredths = size_bytes * 100 >> (10 * exponent)
    number = f"{hundredths // 100}.{hundredths % 100:02}".rstrip("0").rstrip(".")
    return f"{number} {_PREFIXES[exponent - 1]}iB"

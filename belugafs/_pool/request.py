"""What mkfs is asked for, and what it says that it made."""

from dataclasses import dataclass

from belugafs._pool.base import PoolInUse

# Limits of the format; the C core checks them again.
HOSTS_MAX = 16
LABEL_BYTES_MAX = 64
INODES_MAX = 2**32 - 1


@dataclass(frozen=True)
class Request:
    """What the command line asked for. Sizes in bytes; 0 inodes means the default."""

    path: str
    size_bytes: int | None = None
    max_size_bytes: int | None = None
    inodes: int = 0
    hosts: int = HOSTS_MAX
    label: bytes = b""
    sparse: bool = False
    force: int = 0
    numa_node: int | None = None
    """Of a directory pool."""

    def refuse_in_use(self, error: PoolInUse) -> None:
        """Raise it, with what would help, unless it was forced twice."""
        if self.force < 2:
            text = f"{error} (--force --force destroys it under its users)"
            raise PoolInUse(text, error.holders) from error


@dataclass(frozen=True)
class Summary:
    """What was made; also the output of ``--json``."""

    path: str
    kind: str
    uuid: str
    label: str
    size_bytes: int
    max_size_bytes: int
    data_bytes: int
    meta_bytes: int
    inodes: int
    hosts: int
    sparse: bool
    huge_pages: str
    numa_node: int | None
    notes: tuple[str, ...]
    next_command: str

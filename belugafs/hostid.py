"""Who this host is, to a pool: 16 bytes that stay the same over reboots, and 16 for the boot.

A host that comes back takes its former slot in the pool and cleans up after itself; a new boot
tells the others that whatever the former one held is gone. ``-o host=NAME`` makes several hosts
of one machine.
"""

import socket
import uuid
from pathlib import Path

_NAMESPACE = uuid.UUID("4d1d7d56-6c1b-4b0a-9d0e-6f6ad2b0c8a1")


def host_uuid(name: str = "") -> bytes:
    """From the machine id and a name. Containers often have no machine id: then the host
    name stands in, which is as stable as whoever starts them makes it."""
    return uuid.uuid5(_NAMESPACE, f"{_machine()}/{name}").bytes


def host_name(name: str = "") -> str:
    """The same for people."""
    return name or socket.gethostname()


def boot_id() -> bytes:
    """The kernel's random id of this boot. Raises OSError without /proc."""
    return uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).bytes


def _machine() -> str:
    try:
        machine = Path("/etc/machine-id").read_text().strip()
    except OSError:
        machine = ""
    return machine or socket.gethostname()

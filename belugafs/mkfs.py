"""``mkfs.belugafs``: make a pool in a file or on a DAX device. The command line; the work is in
:mod:`belugafs._pool.make`.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict

import click

from belugafs._pool.make import make_pool
from belugafs._pool.request import (
    HOSTS_MAX,
    INODES_MAX,
    LABEL_BYTES_MAX,
    Request,
    Summary,
)
from belugafs.command import (
    HELP_OPTIONS,
    Command,
    Terminated,
    bytes_bar,
    fail,
    json_option,
    say,
    size_value,
    terminable,
)
from belugafs.exits import Exit
from belugafs.units import format_size

_PROG = "mkfs.belugafs"
_EXAMPLES = [
    ("mkfs.belugafs --size 8G /dev/shm/beluga.pool", "8 GiB of this machine's memory"),
    ("mkfs.belugafs /dev/dax0.0", "all of a CXL memory device"),
    ("mkfs.belugafs --size 8G /mnt/huge/pool", "in a mounted hugetlbfs"),
    ("mkfs.belugafs --size 8G --numa 1 /var/beluga", "an empty directory: zero copy, one host"),
    ("mount -t belugafs /dev/shm/beluga.pool /mnt/beluga", "then use it"),
]

_KIND_NAMES = {
    "file": "regular file",
    "tmpfs": "file in memory (tmpfs)",
    "hugetlbfs": "file in huge pages (hugetlbfs)",
    "devdax": "DAX device",
    "directory": "directory (tmpfs), one file for each block",
}


def _summary_lines(summary: Summary) -> Iterator[str]:
    rows = [
        ("size", f"{format_size(summary.size_bytes)} ({summary.size_bytes} bytes)"),
        ("payload", f"{format_size(summary.data_bytes)} for blocks"),
        ("inodes", f"{summary.inodes} (files and directories at most)"),
        ("uuid", summary.uuid),
        ("kind", _KIND_NAMES[summary.kind] + (", sparse" if summary.sparse else "")),
        ("huge pages", summary.huge_pages),
    ]
    if summary.label:
        rows.insert(0, ("label", summary.label))
    if summary.numa_node is not None:
        rows.append(("NUMA node", str(summary.numa_node)))
    yield f"made a belugafs pool: {summary.path}"
    yield from (f"  {name:<11} {value}" for name, value in rows)
    yield from (f"note: {note}" for note in summary.notes)
    yield f"next: {summary.next_command}"


def _label(ctx: click.Context, param: click.Parameter, value: str) -> bytes:
    label = os.fsencode(value)
    if len(label) > LABEL_BYTES_MAX or b"\0" in label:
        raise click.BadParameter(f"a label has at most {LABEL_BYTES_MAX} bytes, and no NUL")
    return label


@click.command(
    name=_PROG,
    cls=Command,
    context_settings=HELP_OPTIONS,
    examples=_EXAMPLES,
)
@click.argument("pool", type=click.Path())
@click.option(
    "--size",
    metavar="SIZE",
    callback=size_value,
    help="Size of the pool: 8G, 512M, 1.5T (powers of 1024). Needed to make a new file; "
    "default for an existing file or device: all of it.",
)
@click.option(
    "--max-size",
    metavar="SIZE",
    callback=size_value,
    help="Keep room in the metadata to let the pool grow up to this size later. "
    "[default: the size]",
)
@click.option(
    "--inodes",
    type=click.IntRange(1, INODES_MAX),
    help="How many files and directories there can be at most. [default: by size]",
)
@click.option(
    "--hosts",
    type=click.IntRange(1, HOSTS_MAX),
    default=HOSTS_MAX,
    show_default=True,
    help="How many hosts can mount the pool at the same time.",
)
@click.option("-L", "--label", default="", callback=_label, help="A name of your choice.")
@click.option(
    "--numa",
    type=click.IntRange(0),
    metavar="NODE",
    help="Take the memory of a pool that is a directory from this NUMA node, such as one of CXL "
    "memory.",
)
@click.option(
    "--sparse",
    is_flag=True,
    help="Don't take the memory now. Quick, but first writes are slow, and fail if the memory "
    "is gone by then: for experiments.",
)
@click.option(
    "-f",
    "--force",
    count=True,
    help="Overwrite data that is there, an old pool too. Twice: even while the pool is mounted "
    "or open, under the feet of its users.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors and warnings.")
@json_option
@click.version_option(package_name="belugafs", prog_name=_PROG)
def main(
    pool: str,
    size: int | None,
    max_size: int | None,
    inodes: int | None,
    hosts: int,
    label: bytes,
    numa: int | None,
    sparse: bool,
    force: int,
    quiet: bool,
    as_json: bool,
) -> int:
    """Make a belugafs pool: the memory that holds an LLM's KV cache as files.

    POOL is a file to be made (in memory: /dev/shm/NAME), an existing file, a file in a mounted
    hugetlbfs, or a DAX device such as /dev/dax0.0. All of its memory is taken at once, so that
    it cannot run out later. A file gets mode 0600.

    Or POOL is an empty directory: a tmpfs of its own is mounted there (as root), with one file for
    each block, which programs that map files of the mount can have without a copy. It is one
    host's, and takes its memory as blocks come. After a reboot mounting it makes it again, empty.

    Nothing is overwritten unless --force is given.
    """
    request = Request(pool, size, max_size, inodes or 0, hosts, label, sparse, force, numa)
    summary: Summary | None = None
    try:
        with terminable(), bytes_bar("taking memory", shown=not quiet and not as_json) as progress:
            summary = make_pool(request, progress=progress, warn=_warn)
    except (KeyboardInterrupt, Terminated) as error:
        if summary is None:  # else it was all done
            if isinstance(error, Terminated):
                return fail(_PROG, "terminated; no pool was made", Exit.TERMINATED, as_json)
            return fail(_PROG, "interrupted; no pool was made", Exit.INTERRUPTED, as_json)
    if as_json:
        say(json.dumps({"ok": True, **asdict(summary)}))
    elif not quiet:
        for line in _summary_lines(summary):
            say(line)
    return Exit.OK


def _warn(message: str) -> None:
    click.echo(f"{_PROG}: WARNING: {message}", err=True)


if __name__ == "__main__":
    main()

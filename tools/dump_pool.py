#!/usr/bin/env python3
"""Prints the structure of a pool that nobody is changing. A developer's tool.

    tools/dump_pool.py POOL                 superblock, host slots, state, counters
    tools/dump_pool.py POOL --tree          every object with its path, extents and links
    tools/dump_pool.py POOL --pages         every metadata page the state reaches
    tools/dump_pool.py POOL --space         every run of granules that is not free
    tools/dump_pool.py POOL --page 17       one page, decoded
    tools/dump_pool.py POOL --object 3      one object slot, decoded
    tools/dump_pool.py POOL --offset 0x5000 what lies at an offset of the pool

It uses belugafs/format.py alone and nothing of the C core, reads only, and stops with the place
at the first thing that is not as docs/format.md says. To check a pool, use fsck.belugafs.
"""

import argparse
import mmap
import signal
import sys
from dataclasses import fields
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from belugafs import format as fmt

BODIES: dict[int, type[fmt.Struct]] = {
    fmt.Kind.ROOT: fmt.Root,
    fmt.Kind.RADIX: fmt.Radix,
    fmt.Kind.OBJ: fmt.Objs,
    fmt.Kind.HASH: fmt.Bucket,
    fmt.Kind.BLEAF: fmt.Leaf,
    fmt.Kind.BNODE: fmt.Node,
    fmt.Kind.MAP: fmt.Map,
    fmt.Kind.LOG: fmt.Log,
    fmt.Kind.REGION: fmt.Region,
    fmt.Kind.STAMP: fmt.Stamps,
    fmt.Kind.BLOB: fmt.Blob,
    fmt.Kind.SUMS: fmt.SumsPage,
}


def show(value: object) -> str:
    """A field for people: runs of zeros are left out."""
    if isinstance(value, bytes):
        return value.rstrip(b"\0").hex() or "0"
    if isinstance(value, fmt.Ptr):
        return str(value)
    if isinstance(value, fmt.Struct):
        inner = (f"{f.name}={show(getattr(value, f.name))}" for f in fields(value))
        return "{" + " ".join(x for x in inner if not x.endswith(("=0", "=0@0.0"))) + "}"
    if isinstance(value, tuple):
        items = [(i, show(v)) for i, v in enumerate(value)]
        return " ".join(f"[{i}]={v}" for i, v in items if v not in ("0", "{}", "0@0.0"))
    if isinstance(value, int) and value >= 1 << 32:
        return f"{value:#x}"
    return str(value)


def print_struct(value: fmt.Struct, indent: str = "  ") -> None:
    """One field a line."""
    for f in fields(value):
        text = show(getattr(value, f.name))
        if text not in ("", "0") or f.name in ("count", "mode"):
            print(f"{indent}{f.name:16} {text}")


def key_text(rec: fmt.Record) -> str:
    """A record in words."""
    try:
        kind = fmt.Rec(rec.kind).name
    except ValueError:
        kind = f"kind {rec.kind}"
    return f"{kind:6} {rec.low:8} {rec.k.b:#14x} {rec.k.c:#8x} -> {rec.x:#18x} {rec.y:#x}"


def summary(pool: fmt.PoolReader) -> None:
    """Superblock, hosts, state."""
    print("superblock")
    print_struct(pool.super)
    for slot in range(pool.super.nhosts):
        lines = []
        for index in range(fmt.LINES):
            state, line = pool.line(slot, index)
            if state is not fmt.LineState.ABSENT:
                name = fmt.Line(index).name if index in set(fmt.Line) else f"line {index}"
                words = " ".join(f"{w:x}" for w in line.w)
                lines.append(f"  {name:10} {words}{'' if state > 0 else '   DAMAGED'}")
        if lines:
            print(f"host slot {slot}")
            print("\n".join(lines))
        for row in range(pool.super.rows):
            value = pool.row(slot, row)
            if value is not None and value.state != fmt.RowState.FREE:
                print(
                    f"  row {row:6} {fmt.RowState(value.state).name} inode {value.ino:#x}"
                    f" version {value.version} size {value.size} seq {value.seq}"
                )
    ref, root = pool.state()
    print(f"state ({ref.term}, {ref.txn}): page {ref.page}, slot {ref.slot} line {ref.index}")
    print_struct(root)


def tree(pool: fmt.PoolReader) -> None:
    """Objects by slot."""
    names: dict[int, list[fmt.Entry]] = {}
    for entry in pool.entries():
        names.setdefault(entry.ino, []).append(entry)

    def path(ino: int, depth: int = 0) -> str:
        if ino == 1 or depth > 64 or ino not in names:
            return "" if ino == 1 else f"<{ino:#x}>"
        entry = names[ino][0]
        name = entry.name.hex() if entry.kind == fmt.EntryKind.KEY else repr(entry.name)[2:-1]
        return f"{path(entry.dir, depth + 1)}/{name}"

    for obj in pool.objects():
        state = fmt.State(obj.state).name.lower()
        print(
            f"slot {obj.slot} gen {obj.gen} {path(obj.ino) or '/'} mode {obj.mode:o}"
            f" nlink {obj.nlink} size {obj.size} {state} version {obj.version}"
        )
        for entry in names.get(obj.ino, []):
            private = f" private to host {entry.owner - 1}" if entry.owner else ""
            print(f"    entry in {entry.dir:#x} cookie {entry.cookie} {entry.name!r}{private}")
        if obj.fmt == 0o10:
            for overlay in (False, True):
                for e in pool.extents(obj, overlay=overlay):
                    place = fmt.gidx(e.addr) if e.addr else "hole"
                    print(
                        f"    {'overlay' if overlay else 'extent'} at file granule {e.granule}:"
                        f" granule {place}, {e.length}"
                    )
            if obj.nsums:
                bad = pool.bad_chunks(obj)
                print(f"    {obj.nsums} sums{f', WRONG: {bad}' if bad else ''}")
        if obj.fmt == 0o12:
            print(f"    -> {pool.readlink(obj)!r}")
        for name, value in pool.xattrs(obj).items():
            print(f"    {name.decode(errors='replace')} = {value[:64]!r}")
    for rec in pool.records():
        print(key_text(rec))


def one_page(pool: fmt.PoolReader, number: int) -> None:
    """A page, decoded by its kind, whether the state reaches it or not."""
    offset = pool.page_offset(number)
    raw = pool.read(offset, fmt.PAGE, "page")
    head = fmt.PageHead.decode(raw, offset=offset)
    good = head.csum == fmt.page_csum(raw, pool.super.incarnation)
    print(f"page {number} at {offset:#x}: checksum {'good' if good else 'WRONG'}")
    body = BODIES.get(head.kind, fmt.PageHead)
    value = body.decode(raw, offset=offset)
    if isinstance(value, fmt.Leaf):
        print_struct(value.h)
        for rec in value.r[: value.h.count]:
            print("  " + key_text(rec))
    else:
        print_struct(value)


def at_offset(pool: fmt.PoolReader, offset: int) -> None:
    """What lies there."""
    sb = pool.super
    hosts_end = sb.host_off + sb.nhosts * sb.host_stride
    meta_end = sb.meta_off + sb.meta_pages * fmt.PAGE
    if offset < 2 * fmt.PAGE:
        at = offset % fmt.PAGE
        field = next(f for f in fmt.Super.layout() if f.offset <= at < f.offset + f.size)
        print(f"superblock {'AB'[offset // fmt.PAGE]}, field {field.name}")
    elif sb.host_off <= offset < hosts_end:
        slot, at = divmod(offset - sb.host_off, sb.host_stride)
        rows = fmt.LINES * fmt.LINE + 8 * sb.ring_entries
        if at < fmt.LINES * fmt.LINE:
            print(f"host slot {slot}, line {at // fmt.LINE}")
        elif at < rows:
            print(f"host slot {slot}, touch ring entry {(at - fmt.LINES * fmt.LINE) // 8}")
        else:
            print(f"host slot {slot}, row {(at - rows) // 256}, copy {(at - rows) // 128 % 2}")
    elif sb.meta_off <= offset < meta_end:
        number = (offset - sb.meta_off) // fmt.PAGE
        use = pool.reachable().get(number, "not reached")
        print(f"metadata page {number} ({use}), byte {(offset - sb.meta_off) % fmt.PAGE}")
    elif sb.data_off <= offset < sb.data_off + sb.data_granules * fmt.GRANULE:
        granule = (offset - sb.data_off) // fmt.GRANULE
        use = [s for s in pool.space() if fmt.gidx(s.addr) <= granule < fmt.gidx(s.addr) + s.length]
        print(f"data granule {granule}: {use[0] if use else 'free'}")
    else:
        print("nobody's")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pool", type=Path)
    parser.add_argument("--tree", action="store_true", help="objects, entries, records")
    parser.add_argument("--pages", action="store_true", help="pages the state reaches")
    parser.add_argument("--space", action="store_true", help="granules that are not free")
    parser.add_argument("--page", type=lambda s: int(s, 0), help="decode one page")
    parser.add_argument("--object", type=lambda s: int(s, 0), help="decode one object slot")
    parser.add_argument("--offset", type=lambda s: int(s, 0), help="what lies there")
    args = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # ends quietly in `| head`
    with args.pool.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    try:
        pool = fmt.PoolReader(data)
        if args.page is not None:
            one_page(pool, args.page)
        elif args.object is not None:
            got = [o for o in pool.objects(free=True) if o.slot == args.object]
            if not got:
                print(f"object slot {args.object} was never used")
                return 1
            print_struct(got[0])
        elif args.offset is not None:
            at_offset(pool, args.offset)
        elif args.pages:
            for page, what in sorted(pool.reachable().items()):
                print(f"{page:8} {what}")
        elif args.space:
            for s in pool.space():
                print(
                    f"{fmt.gidx(s.addr):10} {s.length:8} {s.kind.name} inode {s.ino:#x}"
                    f" host {s.host} state {s.state}"
                )
        elif args.tree:
            tree(pool)
        else:
            summary(pool)
    except fmt.FormatError as error:
        print(f"{args.pool}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

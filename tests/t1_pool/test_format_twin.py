"""What the C core writes, read back by belugafs/format.py, which shares no code with it.

``tests/native/t_fsck --make`` writes a pool with something of everything and prints what the core
shows of it. Here the same pool is read by the Python reader: every structure must decode, what is
said twice must agree, and names, sizes and contents must be those that the core printed. Then
fsck's test of damage runs.
"""

import random
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from belugafs import format as fmt

NATIVE = Path(__file__).resolve().parents[1] / "native"
BINARY = NATIVE / "build" / "plain" / "t_fsck"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def binary() -> Path:
    """The test program, built by its Makefile."""
    made = subprocess.run(
        ["make", "-s", "-C", NATIVE, BINARY.relative_to(NATIVE)], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    return BINARY


@pytest.fixture(scope="module")
def made(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A pool, and what the core shows of it: path, inode, mode, links, size, hash of content."""
    path = tmp_path_factory.mktemp("twin") / "pool"
    out = subprocess.run([binary, "--make", path], check=True, capture_output=True, text=True)
    return path, out.stdout.splitlines()


@pytest.fixture(scope="module")
def pool(made: tuple[Path, list[str]]) -> fmt.PoolReader:
    return fmt.PoolReader(made[0].read_bytes())


def test_superblocks(pool: fmt.PoolReader) -> None:
    first, second = pool.super_copy(fmt.SB_OFF_A), pool.super_copy(fmt.SB_OFF_B)
    assert first == second
    assert first.label.rstrip(b"\0") == b"test"
    assert not any(first.pad1)
    assert first.dev[0].data_granules == first.data_granules
    assert all(not any(d.uuid) and not d.size_bytes for d in first.dev[1:])


def test_host_lines(pool: fmt.PoolReader) -> None:
    states = Counter(
        pool.line(slot, index)[0] for slot in range(pool.super.nhosts) for index in range(fmt.LINES)
    )
    assert states[fmt.LineState.DAMAGED] == 0
    assert states[fmt.LineState.VALID] > 4
    state, ident = pool.line(0, fmt.Line.IDENT)
    assert state is fmt.LineState.VALID
    assert ident.w[:3] == (1, 2, 7)
    assert ident.w[4] == fmt.Mount.CLEAN
    ref, _ = pool.state()
    assert ref.term % pool.super.nhosts == ref.slot
    # given back at the detach: the newer of the two grant lines is empty, nothing is pinned
    grants = [pool.line(0, i) for i in (fmt.Line.GRANT, fmt.Line.GRANT_B)]
    valid = [line.w for line_state, line in grants if line_state is fmt.LineState.VALID]
    assert max(valid, key=lambda w: w[2])[0] == 0
    assert pool.line(0, fmt.Line.PIN_A)[1].w[:4] == (0, 0, 0, 0)


def test_pages(pool: fmt.PoolReader) -> None:
    """Map = reached + waiting; nothing twice, nothing lost."""
    reached = set(pool.reachable())
    waiting = [e.page for e in pool.log()]
    assert len(waiting) == len(set(waiting))
    assert not reached & set(waiting)
    assert pool.map_bits() == reached | set(waiting)
    assert pool.root.pages_used == len(pool.map_bits())
    assert pool.root.pages_log == len(waiting)
    for e in pool.log():
        assert (e.bterm, e.btxn) < (e.fterm, e.ftxn) <= pool.state()[0].page.tag


def test_padding_is_zero(pool: fmt.PoolReader) -> None:
    kinds = {
        fmt.Kind.MAP: fmt.Map,
        fmt.Kind.OBJ: fmt.Objs,
        fmt.Kind.REGION: fmt.Region,
        fmt.Kind.STAMP: fmt.Stamps,
        fmt.Kind.BLEAF: fmt.Leaf,
        fmt.Kind.BNODE: fmt.Node,
        fmt.Kind.ROOT: fmt.Root,
    }
    for page in pool.reachable():
        raw = pool.read(pool.page_offset(page), fmt.PAGE)
        body = kinds.get(fmt.Kind(fmt.PageHead.decode(raw).kind))
        if body is not None:
            assert not any(body.decode(raw).pad), page  # type: ignore[attr-defined]


def test_names_and_contents(made: tuple[Path, list[str]], pool: fmt.PoolReader) -> None:
    listed = 0
    namespaces = {o.slot: o for o in pool.objects() if o.flags & fmt.ObjFlag.NSBLOCK}
    for line in made[1]:
        path, ino, mode, nlink, size, content = line.rsplit(" ", 5)
        if int(ino) >> 63:  # made up: a prefix of keys
            slot, level = int(ino) & 0xFFFF_FFFF, int(ino) >> 60 & 7
            prefix = bytes([int(ino) >> 52 & 255, int(ino) >> 44 & 255])[:level]
            keys = [e.name for e in pool.listdir(namespaces[slot].ino)]
            assert any(key.startswith(prefix) for key in keys), path
            assert path.endswith(prefix[-1:].hex())
            continue
        parts = path.strip("/").split("/")
        if parts[0] == "ns" and len(parts) == 4:
            namespace = pool.resolve("/ns")
            entry = pool.lookup(namespace.ino, bytes.fromhex(parts[3]), fmt.EntryKind.KEY)
            assert entry is not None
            obj = pool.obj(entry.ino)
            assert parts[3].startswith(parts[1] + parts[2])
        else:
            obj = pool.resolve(path)
        assert obj.ino == int(ino)
        assert obj.mode == int(mode, 8)
        if obj.fmt == 0o4:
            assert obj.nlink == 2 + obj.dir.subdirs
        else:
            assert obj.nlink == int(nlink)
        if obj.fmt == 0o10:
            assert obj.size == int(size)
            assert fmt.xxh3(pool.read_file(obj)) == int(content, 16), path
            assert pool.bad_chunks(obj) == []
            assert obj.nsums == -(-obj.size // pool.super.chunk_bytes)
        listed += 1
    assert listed == len(list(pool.entries()))


def test_said_twice(pool: fmt.PoolReader) -> None:
    """Entries, listings and links name each other."""
    entries = {(e.dir, e.cookie): e for e in pool.entries()}
    by_slot = {obj.slot: obj for obj in pool.objects()}
    linked = []
    for obj in by_slot.values():
        links = pool.links(obj)
        linked += [(directory, cookie) for directory, cookie, _ in links]
        for directory, cookie, value in links:
            assert entries[directory, cookie].ino == obj.ino
            assert entries[directory, cookie].hash == value
        if obj.fmt == 0o4:
            inside = pool.listdir(obj.ino)
            assert len(inside) == obj.dir.entries
            assert sum(e.type == 0o4 for e in inside) == obj.dir.subdirs
            cookies = [e.cookie for e in inside]
            if not obj.flags & fmt.ObjFlag.NSBLOCK:
                assert cookies == sorted(cookies)
    assert sorted(linked) == sorted(entries)
    assert max(cookie for _, cookie in entries) < pool.root.next_cookie


def test_free_slots(pool: fmt.PoolReader) -> None:
    root = pool.root
    every = {o.slot: o for o in pool.objects(free=True) if o.slot < root.slot_virgin}
    assert sorted(every) == list(range(1, root.slot_virgin))
    free = {slot for slot, obj in every.items() if not obj.mode}
    chain = []
    slot = root.free_head
    while slot:
        chain.append(slot)
        assert len(chain) <= len(free)
        slot = every[slot].next_free
    assert set(chain) == free
    assert not chain or chain[-1] == root.free_tail
    assert all(every[slot].gen > 0 for slot in free)
    assert root.slots_used == len(every) - len(free)


def test_space(pool: fmt.PoolReader) -> None:
    """Owned, in quarantine, bad: disjoint, and just what the region bits say."""
    space = pool.space()
    granules: set[int] = set()
    for s in space:
        run = set(range(fmt.gidx(s.addr), fmt.gidx(s.addr) + s.length))
        assert not run & granules
        granules |= run
    assert granules == pool.region_bits()
    owned = {
        (s.ino, g): s.state
        for s in space
        if s.kind is fmt.Rec.OWN
        for g in range(fmt.gidx(s.addr), fmt.gidx(s.addr) + s.length)
    }
    mapped = set()
    for obj in pool.objects():
        if obj.fmt == 0o10:
            extents = pool.extents(obj)
            assert sum(e.length for e in extents) == obj.granules
            for e in extents:
                mapped |= {
                    (obj.ino, g) for g in range(fmt.gidx(e.addr), fmt.gidx(e.addr) + e.length)
                }
    assert mapped == {key for key, state in owned.items() if state == fmt.Own.OBJ}
    assert pool.root.granules_used == len(owned)
    assert pool.root.granules_quar == sum(s.length for s in space if s.kind is fmt.Rec.QUAR)


def test_attributes_and_links(pool: fmt.PoolReader) -> None:
    small = pool.resolve("/small")
    assert pool.xattrs(small) == {b"user.a": b"value"}
    assert small.nlink == 3
    assert len(pool.links(small)) == 3
    directory = pool.xattrs(pool.resolve("/d"))
    assert len(directory[b"user.big"]) == 9000
    assert directory[b"user.b"] == b""
    assert pool.readlink(pool.resolve("/long")) == b"x" * 200


def test_damage_is_noticed(made: tuple[Path, list[str]], pool: fmt.PoolReader) -> None:
    """The reader's own checks: a page, a line, both superblocks."""
    data = bytearray(made[0].read_bytes())
    page = pool.root.bt.page
    data[pool.page_offset(page) + 100] ^= 1
    broken = fmt.PoolReader(bytes(data))
    with pytest.raises(fmt.FormatError, match=f"{pool.page_offset(page):#x}: page checksum"):
        list(broken.records())
    data = bytearray(made[0].read_bytes())
    ref = pool.state()[0]
    data[pool.line_offset(ref.slot, ref.index) + 8] ^= 1
    older = fmt.PoolReader(bytes(data)).state()[0]
    assert (older.term, older.txn) < (ref.term, ref.txn)
    data[0] ^= 1
    assert fmt.PoolReader(bytes(data)).super == pool.super_copy(fmt.SB_OFF_B)
    data[4096] ^= 1
    with pytest.raises(fmt.FormatError, match="superblock magic"):
        fmt.PoolReader(bytes(data))


def test_any_damage_is_a_format_error(made: tuple[Path, list[str]], pool: fmt.PoolReader) -> None:
    """Random bytes, half of the pages with a good checksum again: an answer or a FormatError."""
    rng = random.Random(1)
    sb = pool.super
    used = sorted(pool.reachable())
    good = made[0].read_bytes()
    told = 0
    for _ in range(25):
        data = bytearray(good)
        for _ in range(rng.choice((1, 1, 1, 8))):
            page = rng.choice(used)
            offset = sb.meta_off + page * fmt.PAGE
            for _ in range(rng.choice((1, 8, 100))):
                data[offset + rng.randrange(fmt.PAGE)] = rng.choice((0, 255, rng.randrange(256)))
            if rng.random() < 0.6:
                raw = bytes(data[offset : offset + fmt.PAGE])
                data[offset + 24 : offset + 32] = fmt.page_csum(raw, sb.incarnation).to_bytes(
                    8, "little"
                )
        damaged = fmt.PoolReader(bytes(data))
        parts = (
            damaged.reachable,
            damaged.map_bits,
            damaged.region_bits,
            damaged.log,
            damaged.space,
            lambda reader=damaged: list(reader.entries()),
            lambda reader=damaged: [
                (reader.bad_chunks(o) if o.fmt == 0o10 else reader.xattrs(o))
                for o in reader.objects()
            ],
            lambda reader=damaged: [reader.links(o) for o in reader.objects()],
            lambda reader=damaged: reader.listdir(1),
        )
        for part in parts:
            try:
                part()
            except fmt.FormatError:
                told += 1
    assert told > 15


def test_fsck_is_clean(binary: Path, made: tuple[Path, list[str]]) -> None:
    got = subprocess.run([binary, "--check", made[0]], capture_output=True, text=True)
    assert got.returncode == 0, got.stdout
    assert " 0 problems" in got.stdout.splitlines()[-1]


def test_fsck_against_damage(binary: Path) -> None:
    got = subprocess.run([binary, "--rounds", "1500"], capture_output=True, text=True)
    assert got.returncode == 0, got.stderr[-4000:]

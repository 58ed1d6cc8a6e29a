"""A mount against the kernel's own filesystem: the same random calls on a directory of the mount
and on one of tmpfs must have the same results, errnos, listings, contents and attributes."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD, _AT_SYMLINK_NOFOLLOW = -100, 0x100
NOREPLACE, EXCHANGE = 1, 2
UTIME_NOW, UTIME_OMIT = 0x3FFFFFFF, 0x3FFFFFFE

name_s = st.sampled_from(["a", "b", "c", "é\u0301"])
path_s = st.one_of(
    st.sampled_from(["a", "b", "c", "a/a", "a/b", "c/a", "c/b", "c/c", "a/a/b"]),
    st.lists(name_s, min_size=1, max_size=3).map("/".join),
)
# Around pages, chunks of checksums, requests; and far behind all of it.
offset_s = st.one_of(
    st.sampled_from([0, 1, PAGE - 1, PAGE, 3 * PAGE + 7, 1 << 18, (1 << 18) - 1, 1 << 40]),
    st.integers(0, 600_000),
)
length_s = st.one_of(
    st.sampled_from([0, 1, 511, PAGE, PAGE + 1, 1 << 18, 300_000]), st.integers(0, 20_000)
)
mode_s = st.sampled_from([0o644, 0o600, 0o777, 0o4755, 0o2755, 0o2745, 0o1777, 0])
open_flags_s = st.tuples(
    st.sampled_from([os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR]),
    st.sets(
        st.sampled_from(
            [
                os.O_CREAT,
                os.O_CREAT,
                os.O_EXCL,
                os.O_TRUNC,
                os.O_APPEND,
                os.O_DIRECT,
                os.O_NOFOLLOW,
                os.O_DIRECTORY,
                os.O_SYNC,
                os.O_NOATIME,
            ]
        ),
        max_size=4,
    ),
).map(lambda drawn: drawn[0] | sum(drawn[1]))
Stamps = dict[str, tuple[int, int, int]]  # mtime, ctime, inode
TICK_NS = 20_000_000

xattr_s = st.sampled_from(["user.a", "user.b" * 20, "trusted.c", "user."])


def _call(function: str, *arguments: Any) -> None:
    """A function of libc that Python has no name for. Raises OSError."""
    if getattr(_libc, function)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def renameat2(old: str, new: str, flags: int) -> None:
    names = os.fsencode(old), os.fsencode(new)
    _call("renameat2", _AT_FDCWD, names[0], _AT_FDCWD, names[1], flags)


def utimensat(path: str, access: tuple[int, int], modify: tuple[int, int], flags: int) -> None:
    _call("utimensat", _AT_FDCWD, os.fsencode(path), struct.pack("4q", *access, *modify), flags)


def outcome(call: Callable[[], Any]) -> Any:
    """The result, or the errno by name."""
    try:
        return call()
    except OSError as error:
        assert error.errno is not None
        return errno.errorcode[error.errno]


def same_size_of_a_hole(call: Callable[[], os.stat_result], size: int) -> bool:
    """tmpfs, other than ext4, leaves the times of a file without pages alone when it is truncated
    to the size that it has."""
    found = outcome(call)
    return isinstance(found, os.stat_result) and found.st_size == size and not found.st_blocks


class Handle:
    """One file, open on both sides."""

    def __init__(self, ours: int, theirs: int, path: str) -> None:
        self.fds = (ours, theirs)
        self.path = path

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


class BothSides(RuleBasedStateMachine):
    """Each rule makes one call on both sides; the invariant compares what it touched."""

    def __init__(
        self, mount: Path, twin: Path, numbers: Iterator[int], *, coarse: bool = False
    ) -> None:
        super().__init__()
        self.coarse = coarse
        number = next(numbers)
        self.tops = [str(side / f"run{number}") for side in (mount, twin)]
        for top in self.tops:
            os.mkdir(top)
            os.chmod(top, 0o755)
        self.handles: list[Handle] = []
        self.stamps: list[Stamps] | None = None

    @initialize()
    def begin(self) -> None:
        """So that sequences don't begin with a dozen ENOENT."""
        for top in self.tops:
            for directory in ("a", "a/a", "c"):
                os.mkdir(f"{top}/{directory}")
            for file in ("a/b", "a/a/b", "b", "c/c"):
                Path(f"{top}/{file}").write_bytes(b"begin" * 2000)
            os.link(f"{top}/b", f"{top}/c/b")
            os.symlink("../b", f"{top}/c/a")

    def both(self, call: Callable[[str], Any]) -> Any:
        """``call(top)`` on each side; the results are the same."""
        ours, theirs = (outcome(lambda top=top: call(top)) for top in self.tops)  # type: ignore[misc]
        assert ours == theirs, f"the mount says {ours!r}, tmpfs {theirs!r}"
        return ours

    def on(self, handle: Handle, call: Callable[[int], Any]) -> Any:
        """``call(fd)`` on each side."""
        ours, theirs = (outcome(lambda fd=fd: call(fd)) for fd in handle.fds)  # type: ignore[misc]
        assert ours == theirs, f"the mount says {ours!r}, tmpfs {theirs!r}"
        return ours

    # ---- names ----

    @rule(path=path_s, mode=mode_s)
    def mkdir(self, path: str, mode: int) -> None:
        self.both(lambda top: os.mkdir(f"{top}/{path}", mode))

    @rule(path=path_s)
    def rmdir(self, path: str) -> None:
        self.both(lambda top: os.rmdir(f"{top}/{path}"))

    @rule(path=path_s)
    def unlink(self, path: str) -> None:
        self.both(lambda top: os.unlink(f"{top}/{path}"))

    @rule(old=path_s, new=path_s, flags=st.sampled_from([0, 0, NOREPLACE, EXCHANGE, 3, 8]))
    def rename(self, old: str, new: str, flags: int) -> None:
        self.both(lambda top: renameat2(f"{top}/{old}", f"{top}/{new}", flags))

    @rule(old=path_s, new=path_s)
    def link(self, old: str, new: str) -> None:
        self.both(lambda top: os.link(f"{top}/{old}", f"{top}/{new}", follow_symlinks=False))

    @rule(aim=st.one_of(path_s, st.sampled_from([".", "x" * 300, "/nowhere"])), path=path_s)
    def symlink(self, aim: str, path: str) -> None:
        self.both(lambda top: os.symlink(aim, f"{top}/{path}"))
        self.both(lambda top: os.readlink(f"{top}/{path}"))

    @rule(
        path=path_s, kind=st.sampled_from([stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR])
    )
    def mknod(self, path: str, kind: int) -> None:
        self.both(lambda top: os.mknod(f"{top}/{path}", kind | 0o640, os.makedev(1, 3)))

    @rule(path=path_s)
    def look(self, path: str) -> None:
        self.both(lambda top: sorted(os.listdir(f"{top}/{path}")))
        self.both(lambda top: os.access(f"{top}/{path}", os.R_OK | os.X_OK))
        self.both(lambda top: self.attributes(os.stat(f"{top}/{path}")))

    # ---- attributes ----

    @rule(path=path_s, mode=mode_s)
    def chmod(self, path: str, mode: int) -> None:
        self.both(lambda top: os.chmod(f"{top}/{path}", mode))

    @rule(path=path_s, uid=st.sampled_from([-1, 0, 1000]), gid=st.sampled_from([-1, 0, 1000]))
    def chown(self, path: str, uid: int, gid: int) -> None:
        if (uid, gid) == (-1, -1):
            return  # whether that changes ctime is left open
        self.both(lambda top: os.lchown(f"{top}/{path}", uid, gid))

    @rule(
        path=path_s,
        access=st.sampled_from([(5, 7), (-3, 999_999_999), (0, UTIME_OMIT), (0, UTIME_NOW)]),
        modify=st.sampled_from([(1 << 32, 1), (0, 0), (0, UTIME_OMIT), (0, UTIME_NOW)]),
        flags=st.sampled_from([0, _AT_SYMLINK_NOFOLLOW]),
    )
    def utimens(
        self, path: str, access: tuple[int, int], modify: tuple[int, int], flags: int
    ) -> None:
        done = self.both(lambda top: utimensat(f"{top}/{path}", access, modify, flags))
        if done is None and access[1] < UTIME_OMIT:
            self.both(lambda top: os.stat(f"{top}/{path}", follow_symlinks=not flags).st_atime_ns)
        if done is None and modify[1] < UTIME_OMIT:
            self.both(lambda top: os.stat(f"{top}/{path}", follow_symlinks=not flags).st_mtime_ns)

    @rule(
        path=path_s,
        name=xattr_s,
        value=st.sampled_from([b"", b"v", b"w" * 3000]),
        flags=st.sampled_from([0, 0, os.XATTR_CREATE, os.XATTR_REPLACE]),
    )
    def setxattr(self, path: str, name: str, value: bytes, flags: int) -> None:
        self.both(lambda top: os.setxattr(f"{top}/{path}", name, value, flags))

    @rule(path=path_s, name=xattr_s)
    def xattrs(self, path: str, name: str) -> None:
        self.both(lambda top: os.getxattr(f"{top}/{path}", name))
        self.both(lambda top: sorted(os.listxattr(f"{top}/{path}")))

    @rule(path=path_s, name=xattr_s)
    def removexattr(self, path: str, name: str) -> None:
        self.both(lambda top: os.removexattr(f"{top}/{path}", name))

    @rule(path=path_s, size=offset_s)
    def truncate(self, path: str, size: int) -> None:
        if same_size_of_a_hole(lambda: os.stat(f"{self.tops[1]}/{path}"), size):
            return
        self.both(lambda top: os.truncate(f"{top}/{path}", size))

    # ---- open files ----

    @rule(path=path_s, flags=open_flags_s, mode=mode_s)
    def open(self, path: str, flags: int, mode: int) -> None:
        if len(self.handles) > 5 or self._may_block(path):
            return
        pair = [outcome(lambda top=top: os.open(f"{top}/{path}", flags, mode)) for top in self.tops]
        if all(isinstance(fd, int) for fd in pair):
            self.handles.append(Handle(*pair, path))
            return
        for fd in pair:
            if isinstance(fd, int):
                os.close(fd)
        assert pair[0] == pair[1], f"the mount says {pair[0]!r}, tmpfs {pair[1]!r}"

    def _may_block(self, path: str) -> bool:
        """FIFOs wait for another end, devices are nobody's business here."""
        with contextlib.suppress(OSError):
            return stat.S_IFMT(os.stat(f"{self.tops[1]}/{path}").st_mode) not in (
                stat.S_IFREG,
                stat.S_IFDIR,
            )
        return False

    def handle(self, data: st.DataObject) -> Handle:
        return data.draw(st.sampled_from(self.handles))

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        handle = self.handle(data)
        self.handles.remove(handle)
        handle.close()

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), offset=offset_s, length=length_s, byte=st.integers(1, 255))
    def pwrite(self, data: st.DataObject, offset: int, length: int, byte: int) -> None:
        content = bytes([byte]) * length
        self.on(self.handle(data), lambda fd: os.pwrite(fd, content, offset))

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), lengths=st.lists(length_s, max_size=3), byte=st.integers(1, 255))
    def writev(self, data: st.DataObject, lengths: list[int], byte: int) -> None:
        pieces = [bytes([byte ^ n]) * length for n, length in enumerate(lengths)]
        handle = self.handle(data)
        self.on(handle, lambda fd: os.writev(fd, pieces))
        self.on(handle, lambda fd: os.lseek(fd, 0, os.SEEK_CUR))

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), offset=offset_s, length=length_s)
    def pread(self, data: st.DataObject, offset: int, length: int) -> None:
        self.on(self.handle(data), lambda fd: os.pread(fd, length, offset))

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), length=length_s, whence=st.sampled_from([os.SEEK_SET, os.SEEK_END]))
    def seek_and_read(self, data: st.DataObject, length: int, whence: int) -> None:
        handle = self.handle(data)
        if stat.S_ISDIR(os.fstat(handle.fds[1]).st_mode):
            return  # cookies are each filesystem's own
        self.on(handle, lambda fd: os.lseek(fd, -5 if whence else 5, whence))
        self.on(handle, lambda fd: os.read(fd, length))

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), size=offset_s)
    def ftruncate(self, data: st.DataObject, size: int) -> None:
        handle = self.handle(data)
        if same_size_of_a_hole(lambda: os.fstat(handle.fds[1]), size):
            return
        self.on(handle, lambda fd: os.ftruncate(fd, size))

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), datasync=st.booleans())
    def fsync(self, data: st.DataObject, datasync: bool) -> None:
        self.on(self.handle(data), os.fdatasync if datasync else os.fsync)

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), flags=st.sampled_from([0, os.O_APPEND, os.O_DIRECT]))
    def setfl(self, data: st.DataObject, flags: int) -> None:
        self.on(self.handle(data), lambda fd: fcntl.fcntl(fd, fcntl.F_SETFL, flags))

    @precondition(lambda self: self.handles)
    @rule(
        data=st.data(), page=st.integers(0, 3), length=st.integers(1, 2 * PAGE), keep=st.booleans()
    )
    def store_by_mapping(self, data: st.DataObject, page: int, length: int, keep: bool) -> None:
        """Shared: read and write see it at once. Private: nobody does."""

        def store(fd: int) -> bytes:
            size = os.fstat(fd).st_size
            if not stat.S_ISREG(os.fstat(fd).st_mode) or size < page * PAGE + length:
                return b""
            flags = mmap.MAP_SHARED if keep else mmap.MAP_PRIVATE
            with mmap.mmap(fd, length, flags=flags, offset=page * PAGE) as mapping:
                mapping[length // 2 :] = b"m" * (length - length // 2)
                seen = os.pread(fd, length, page * PAGE)
                mapping.flush()
                return seen + mapping[:]

        self.on(self.handle(data), store)
        self.stamps = None  # when a store by mapping changes mtime is up to the filesystem

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), length=length_s, offset=offset_s, to=offset_s)
    def copy_file_range(self, data: st.DataObject, length: int, offset: int, to: int) -> None:
        source, target = self.handle(data), self.handle(data)
        if target.fds[0] == source.fds[0]:
            return
        pairs = zip(source.fds, target.fds, strict=True)
        ours, theirs = (
            outcome(lambda a=a, b=b: os.copy_file_range(a, b, length, offset, to))
            for a, b in pairs  # type: ignore[misc]
        )
        assert ours == theirs

    # ---- comparing ----

    def everything(self, top: str) -> Iterator[tuple[str, os.stat_result]]:
        """All paths below, without following links."""
        yield "", os.lstat(top)
        for above, names, files in os.walk(top):
            for name in sorted(names + files):
                path = f"{above}/{name}"
                yield path[len(top) :], os.lstat(path)

    @staticmethod
    def attributes(found: os.stat_result) -> dict[str, int]:
        shown = {
            key: getattr(found, f"st_{key}") for key in ("mode", "nlink", "uid", "gid", "rdev")
        }
        if not stat.S_ISDIR(found.st_mode):
            shown["size"] = found.st_size
        return shown

    @invariant()
    def same_tree(self) -> None:
        ours, theirs = (dict(self.everything(top)) for top in self.tops)
        assert {p: self.attributes(s) for p, s in ours.items()} == {
            p: self.attributes(s) for p, s in theirs.items()
        }
        for handle in self.handles:
            self.on(handle, lambda fd: self.attributes(os.fstat(fd)))
        before = self.stamps
        self.stamps = [
            {path: (at.st_mtime_ns, at.st_ctime_ns, at.st_ino) for path, at in side.items()}
            for side in (ours, theirs)
        ]
        if before is not None and FINE_TIMES:
            self.compare_changes(before, self.stamps)

    def compare_changes(self, before: list[Stamps], after: list[Stamps]) -> None:
        """The same mtimes and ctimes have changed on both sides."""
        for path in after[1].keys() & before[1].keys():
            # Another file under the name brings its own times, which tmpfs may have given twice.
            if any(new[path][2] != old[path][2] for old, new in zip(before, after, strict=True)):
                continue
            for which, name in enumerate(("mtime", "ctime")):
                ours, theirs = (
                    new[path][which] != old[path][which]
                    for old, new in zip(before, after, strict=True)
                )
                # tmpfs may use a time twice within a tick of its clock; ours says when it was, but
                # with passthrough, where it is that of the backing file, in a tmpfs
                later = after[0][path][which] - after[1][path][which]
                tick = later < TICK_NS if ours else self.coarse and -later < TICK_NS
                assert ours == theirs or tick, (
                    f"{name} of {path!r}: changed {ours}, on tmpfs {theirs}"
                )

    def teardown(self) -> None:
        for handle in self.handles:
            handle.close()
        compare_contents(self.tops[0], self.tops[1])


def compare_contents(ours: str, theirs: str) -> None:
    """All files, by name, with links and attributes."""
    for above, _, files in os.walk(theirs):
        for name in files:
            path = os.path.join(above, name)
            other = ours + path[len(theirs) :]
            found = os.lstat(path)
            if stat.S_ISLNK(found.st_mode):
                assert os.readlink(other) == os.readlink(path)
            if stat.S_ISREG(found.st_mode):
                compare_files(other, path, found.st_size)
                assert sorted(os.listxattr(other)) == sorted(os.listxattr(path))


def compare_files(ours: str, theirs: str, size_bytes: int) -> None:
    """Content, of a sparse file only where there may be something."""
    with open(ours, "rb", buffering=0) as one, open(theirs, "rb", buffering=0) as two:
        at = 0
        while at < size_bytes:
            try:
                at = os.lseek(two.fileno(), at, os.SEEK_DATA)
            except OSError:  # nothing but a hole from here on
                at = max(at, size_bytes - (1 << 20))
            assert os.pread(one.fileno(), 1 << 20, at) == os.pread(two.fileno(), 1 << 20, at)
            at += 1 << 20


# Long enough for a failure to be made small; without one, the first takes 20 s.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("unmounted_pool", [1 << 30], indirect=True)
@pytest.mark.parametrize("examples", [40, pytest.param(200, marks=pytest.mark.full_size)])
def test_a_mount_does_what_tmpfs_does(mounted_pool: Any, pool_dir: Path, examples: int) -> None:
    """Afterwards all of it is still there after a remount."""
    mount: Path = mounted_pool.path
    twin = pool_dir / "twin"
    twin.mkdir()
    numbers = itertools.count()
    passthrough = mounted_pool.passthrough
    umask = os.umask(0o022)
    try:
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            lambda: BothSides(mount, twin, numbers, coarse=passthrough),
            settings=settings(
                max_examples=examples,
                stateful_step_count=50,
                deadline=None,
                print_blob=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
        mounted_pool.remount()
        for run in sorted(os.listdir(twin)):
            compare_contents(str(mount / run), str(twin / run))
    finally:
        os.umask(umask)


def _fine_times() -> bool:
    """Whether tmpfs gives two changes in a row two times, if somebody looks in between."""
    path = Path(f"/dev/shm/belugafs-test-times{os.getpid()}")
    try:
        seen = set()
        for _ in range(20):
            path.write_bytes(b"x")
            seen.add(path.stat().st_mtime_ns)
        return len(seen) == 20
    except OSError:
        return False
    finally:
        path.unlink(missing_ok=True)


FINE_TIMES = _fine_times()

"""Make a pool: the work behind ``mkfs.belugafs``, without its command line.

The order is what makes it safe. Everything that can be refused is refused before anything is
changed; then the memory is taken, which changes no byte of what lies there; then the C core
zeroes the old superblocks first and writes the new ones last. A new file has no name until it is a
whole pool, so nothing, not even SIGKILL, leaves half a pool behind; where a filesystem cannot
do that, the file is unlinked on any error.
"""

import contextlib
import errno
import importlib
import os
import shlex
import time
import uuid
from collections.abc import Callable
from typing import Any

from belugafs._pool.make_directory import make_directory_pool
from belugafs._pool.request import Request, Summary
from belugafs.exits import Exit
from belugafs.pool import (
    BELUGAFS,
    EMPTY,
    GRANULE_BYTES,
    TAIL_BYTES,
    Allocation,
    OpenPool,
    PoolError,
    PoolInfo,
    PoolInUse,
    Progress,
    allocate_and_populate,
    lock_pool,
    open_pool,
    plan_new_pool,
    sniff,
    users_of,
    zero_range,
)
from belugafs.units import format_size

# Both superblocks: without them nothing takes a pool for one.
_SUPERBLOCKS_BYTES = 8192


def make_pool(
    request: Request,
    *,
    progress: Progress = lambda done_bytes, total_bytes: None,
    warn: Callable[[str], None] = lambda message: None,
) -> Summary:
    """Make a pool. Raises PoolError, and then nothing that looks like a pool was left.

    ``progress`` is called with bytes done and in all, ``warn`` with each sentence that must be
    seen before the work goes on.
    """
    if os.path.isdir(request.path):
        return make_directory_pool(request, _native(), warn)
    if request.numa_node is not None:
        raise PoolError(
            "--numa is for a pool that is a directory; a file is where its filesystem puts it, a "
            "DAX device where it is",
            Exit.USAGE,
        )
    try:
        pool = _open_existing(request, warn)
    except PoolError as error:
        if error.exit_code is not Exit.NOT_FOUND or os.path.lexists(request.path):
            raise
        return _make_new(request, error, progress)
    with pool:
        return _make_over(request, pool, progress, warn)


# ---- a new file -------------------------------------------------------------------------------


def _make_new(request: Request, missing: PoolError, progress: Progress) -> Summary:
    # The plan first: for /dev/dax9.9 the device is what is missing, not the option.
    info = plan_new_pool(request.path, request.size_bytes or 0)
    if request.size_bytes is None:
        raise PoolError(
            f"{request.path} does not exist; to make it, give its size: "
            f"mkfs.belugafs --size 8G {shlex.quote(request.path)}",
            Exit.USAGE,
        ) from missing
    _check_size(request, info.size_bytes)
    with _NewFile(request.path) as new:
        lock_pool(new.fd, info, "exclusive")
        summary = _fill(request, new.fd, info, info.size_bytes, progress)
        new.commit()
        return summary


class _NewFile:
    """A file, mode 0600, that gets its name by commit() and is gone without it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._directory = os.path.dirname(path) or "."
        self._named = False
        try:
            self.fd = self._create()
        except PermissionError as error:
            raise PoolError(
                f"no permission to make a file in {self._directory}", Exit.PERMISSION
            ) from error
        except FileExistsError as error:
            raise self._exists() from error
        except OSError as error:
            code = Exit.PERMISSION if error.errno == errno.EROFS else Exit.IO_ERROR
            raise PoolError(f"{path} cannot be made: {error.strerror}", code) from error
        os.fchmod(self.fd, 0o600)  # whatever the umask takes away

    def _create(self) -> int:
        with contextlib.suppress(OSError):  # not every filesystem has it
            flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
            return os.open(self._directory, flags, 0o600)
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o600)
        self._named = True
        return fd

    def _exists(self) -> PoolError:
        return PoolError(
            f"{self.path} was made by somebody else in the meantime (or is a link to nothing); "
            "look at it and try again",
            Exit.IN_USE,
        )

    def commit(self) -> None:
        """Give the file its name, durably. Raises PoolError if the name is taken."""
        if not self._named:
            # linkat follows the link in /proc to the nameless file only if a directory
            # descriptor is passed.
            proc_fd = os.open("/proc/self/fd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.link(str(self.fd), self.path, src_dir_fd=proc_fd, follow_symlinks=True)
            except FileExistsError as error:
                raise self._exists() from error
            except OSError as error:
                raise PoolError(
                    f"{self.path} cannot be named: {error.strerror}", Exit.IO_ERROR
                ) from error
            finally:
                os.close(proc_fd)
        self._named = False  # from now on it stays
        directory_fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # filesystems in memory may not have it
                os.fsync(directory_fd)
        finally:
            os.close(directory_fd)

    def __enter__(self) -> "_NewFile":
        return self

    def __exit__(self, *exc: object) -> None:
        if self._named:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
        os.close(self.fd)


# ---- over something that is there -------------------------------------------------------------


def _open_existing(request: Request, warn: Callable[[str], None]) -> OpenPool:
    """Open with the exclusive lock; without it if forced twice."""
    try:
        return open_pool(request.path, lock="exclusive", check_space=False)
    except PoolInUse as error:
        request.refuse_in_use(error)
        warn(f"{error}: forced, so the mount will fail and its blocks are lost")
        return open_pool(request.path, lock=None, check_space=False)


def _make_over(
    request: Request, pool: OpenPool, progress: Progress, warn: Callable[[str], None]
) -> Summary:
    info = pool.info
    size_bytes = _size_over(request, info)
    _check_size(request, size_bytes)
    _check_users(request, pool, warn)
    content = sniff(pool.fd, info)
    _check_content(request, pool, content, warn)
    former_bytes = os.fstat(pool.fd).st_size
    writing = False

    def before() -> None:
        nonlocal writing
        writing = True

    try:
        summary = _fill(request, pool.fd, info, size_bytes, progress, before)
        if content not in (EMPTY, BELUGAFS):
            # What names a foreign content at its end (a second GPT) goes as well, from the
            # empty data range; the C core has overwritten the beginning.
            end = max(info.file_bytes, info.size_bytes)
            start = max(end - TAIL_BYTES, summary.meta_bytes)
            if start < end:
                zero_range(pool.fd, info, start, end - start)
        if request.size_bytes is not None and info.kind != "devdax":
            os.ftruncate(pool.fd, size_bytes)
        return summary
    except BaseException as error:
        refused = isinstance(error, PoolError) and error.exit_code is Exit.GEOMETRY
        if writing and not refused:
            warn(f"what {pool.path} held before is lost, and it is no pool now")
            with contextlib.suppress(OSError):  # the first error is the one to report
                zero_range(pool.fd, info, 0, min(_SUPERBLOCKS_BYTES, size_bytes))
        if info.kind != "devdax" and os.fstat(pool.fd).st_size > former_bytes:
            os.ftruncate(pool.fd, former_bytes)
        raise


def _size_over(request: Request, info: PoolInfo) -> int:
    if request.size_bytes is None:
        if info.kind != "devdax" and info.file_bytes == 0:
            raise PoolError(
                f"{info.path} is an empty file; give a size: "
                f"mkfs.belugafs --size 8G {shlex.quote(info.path)}",
                Exit.USAGE,
            )
        return info.size_bytes
    if info.kind == "devdax" and request.size_bytes > info.size_bytes:
        raise PoolError(
            f"--size {format_size(request.size_bytes)} is more than {info.path} has: "
            f"{format_size(info.size_bytes)} ({info.size_bytes} bytes); without --size all of "
            "it is used",
            Exit.TOO_LARGE,
        )
    if info.kind == "devdax":
        unit_bytes = max(info.page_bytes, 2 << 20)
    else:
        unit_bytes = info.page_bytes if info.kind == "hugetlbfs" else 4096
    return request.size_bytes - request.size_bytes % unit_bytes


def _check_size(request: Request, size_bytes: int) -> None:
    if size_bytes == 0:
        raise PoolError(
            f"{request.path} is too small for a pool (less than one page); give a larger --size",
            Exit.TOO_SMALL,
        )
    if request.max_size_bytes is not None and request.max_size_bytes < size_bytes:
        raise PoolError(
            f"--max-size {format_size(request.max_size_bytes)} is less than the size of the "
            f"pool, {format_size(size_bytes)}",
            Exit.USAGE,
        )


def _check_users(request: Request, pool: OpenPool, warn: Callable[[str], None]) -> None:
    """Who has it open without a lock: an engine that outlived its daemon, a virtual machine."""
    users = users_of(pool.fd, pool.info)
    if not users:
        return
    message = f"{pool.path} is open in process {', '.join(map(str, users))}"
    if request.force < 2:
        raise PoolInUse(
            f"{message}; end that first (--force --force overwrites it all the same)", users
        )
    warn(f"{message}: forced, so what it reads there from now on is not its own data")


def _check_content(
    request: Request, pool: OpenPool, content: str, warn: Callable[[str], None]
) -> None:
    if content == EMPTY:
        return
    path = pool.path
    if content != BELUGAFS:
        if not request.force:
            raise PoolError(
                f"{path} holds: {content}; it was left untouched (--force overwrites it)",
                Exit.FOREIGN,
            )
        warn(f"overwriting what {path} holds: {content}")
        return
    old = _peek(pool)
    what = "a belugafs pool" + _old_pool(old)
    if not request.force:
        raise PoolError(
            f"{path} holds {what} already; to use it: mount -t belugafs {shlex.quote(path)} "
            "/mnt/beluga (--force makes a new pool there, and all of its blocks are lost)",
            Exit.HOLDS_POOL,
        )
    if old.get("hosts_live") and request.force < 2:
        raise PoolInUse(
            f"{path} holds {what}, mounted by {old['hosts_live']} hosts; unmount it there first "
            "(--force --force destroys it under its users)"
        )
    warn(f"overwriting {what} on {path}")


def _old_pool(old: dict[str, Any]) -> str:
    parts = []
    label = bytes(old.get("label", b"")).rstrip(b"\0").decode("utf-8", "replace")
    if label:
        parts.append(f"label {label!r}")
    if "uuid" in old:
        parts.append(f"uuid {uuid.UUID(bytes=bytes(old['uuid']))}")
    if "created_s" in old:
        parts.append(f"made {time.strftime('%Y-%m-%d %H:%M', time.localtime(old['created_s']))}")
    if "blocks" in old:
        parts.append(f"{old['blocks']} blocks")
    if "used_bytes" in old:
        parts.append(f"{format_size(int(old['used_bytes']))} in use")
    return f" ({', '.join(parts)})" if parts else ""


def _peek(pool: OpenPool) -> dict[str, Any]:
    """What the C core can tell of an old pool without mounting it: its superblock, and maybe
    blocks, used_bytes, hosts_live. Nothing where the pool is damaged, or of another version:
    that is no reason to stop."""
    try:
        peek = getattr(_native(), "peek", None)
        return {} if peek is None else dict(peek(pool.fd, pool.info.size_bytes) or {})
    except Exception:
        return {}


# ---- common to both ---------------------------------------------------------------------------


def _native() -> Any:
    """The C core, loaded late: ``--help`` and every refusal work without it."""
    try:
        return importlib.import_module("belugafs._native")
    except ImportError as error:
        raise PoolError(
            f"the C core of belugafs cannot be loaded ({error}); in a checkout build it with: "
            "make build",
            Exit.UNSUPPORTED,
        ) from error


def _fill(
    request: Request,
    fd: int,
    info: PoolInfo,
    size_bytes: int,
    progress: Progress,
    before: Callable[[], None] = lambda: None,
) -> Summary:
    """Take the memory, then write the pool. ``before`` runs between the two.

    Relied on in the C core: it refuses numbers that don't fit (which becomes GEOMETRY) before
    its first store, then zeroes both old superblocks, and writes the new ones last.
    """
    native = _native()
    allocation = allocate_and_populate(
        fd, info, size_bytes, progress, request.sparse, ignore_memory=request.force > 0
    )
    pool_uuid = uuid.uuid4()
    max_size_bytes = request.max_size_bytes or size_bytes
    before()
    try:
        made = native.mkfs(
            fd,
            size_bytes,
            max_size_bytes=max_size_bytes,
            inodes=request.inodes,
            hosts=request.hosts,
            label=request.label,
            uuid=pool_uuid.bytes,
            page_bytes=info.page_bytes,
        )
    except (ValueError, OverflowError, OSError) as error:
        raise _core_error(request, native, size_bytes, error) from error
    if info.kind != "devdax":  # which has nothing to write back to, and answers EINVAL
        try:
            os.fsync(fd)
        except OSError as error:
            raise PoolError(f"{request.path} cannot be written: {error}", Exit.IO_ERROR) from error
    return Summary(
        path=request.path,
        kind=info.kind,
        uuid=str(pool_uuid),
        label=request.label.decode("utf-8", "replace"),
        size_bytes=size_bytes,
        max_size_bytes=max_size_bytes,
        data_bytes=int(made["data_granules"]) * GRANULE_BYTES,
        meta_bytes=int(made["data_off"]),
        inodes=int(made["inodes"]),
        hosts=int(made["nhosts"]),
        sparse=request.sparse,
        huge_pages=_huge_pages(info, allocation),
        numa_node=info.numa_node,
        notes=_notes(request, info),
        next_command=f"mount -t belugafs {shlex.quote(os.path.abspath(request.path))} /mnt/beluga",
    )


def _core_error(request: Request, native: Any, size_bytes: int, error: Exception) -> PoolError:
    """Tell "these numbers don't fit" from "the medium fails": both may be an OSError."""
    refusals = (errno.EINVAL, errno.ENOSPC, errno.ERANGE, errno.EOVERFLOW)
    if isinstance(error, OSError) and not (
        isinstance(error, getattr(native, "CoreError", ())) and error.errno in refusals
    ):
        return PoolError(f"{request.path} cannot be written: {error}", Exit.IO_ERROR)
    reason = error.strerror if isinstance(error, OSError) else error
    return PoolError(
        f"{request.path} of {format_size(size_bytes)} cannot hold such a pool: {reason}",
        Exit.GEOMETRY,
    )


def _huge_pages(info: PoolInfo, allocation: Allocation) -> str:
    if allocation.populated_bytes == 0 and info.huge not in (None, "never"):
        return "at first use"
    if allocation.huge_fraction > 0.99:
        return "yes"
    return f"in part ({allocation.huge_fraction:.0%})" if allocation.huge_fraction > 0 else "no"


def _notes(request: Request, info: PoolInfo) -> tuple[str, ...]:
    if not request.sparse or info.kind == "devdax":
        return info.notes
    sparse = (
        "sparse: memory is taken at first use, which is slow, and where the filesystem is full "
        "by then writing fails"
    )
    return (*info.notes, sparse)

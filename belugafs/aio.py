"""The library's calls for programs that run on trio: each that can wait is awaited here.

    async with await belugafs.aio.connect(mount_point) as pool:
        ns = await pool.namespace("llama")
        with await ns.read(keys) as blocks:
            ...

A call runs in a thread of trio's, so that others go on meanwhile; what it takes and gives is what
the call of the same name in :mod:`belugafs.client` does. Blocks, once leased, are those of the
ordinary library: their views wait for nothing.

Cancelled, a call that only reads is left behind, and what it still leases is given back as it
arrives. One that changes something is waited for all the same: it reads the caller's memory, and
whether it was done would not be known.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

import trio

from belugafs import client
from belugafs.watch import EVERY_S, LeaseLost, PoolGone

P = ParamSpec("P")
R = TypeVar("R")

_READING = frozenset({"match", "exists", "read", "read_files", "get", "check"})
"""What may be left behind when it is cancelled."""


async def connect(path: str | os.PathLike[str], **options: Any) -> Pool:
    """As :func:`belugafs.connect`: the same options, the same errors."""
    run = functools.partial(client.connect, path, **options)
    return Pool(await trio.to_thread.run_sync(run))


def _twin(
    method: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Any, P], Awaitable[R]]:
    """The same call, awaited."""
    leave = method.__name__ in _READING

    @functools.wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        run = functools.partial(method, self.sync, *args, **kwargs)
        return _twin_of(await trio.to_thread.run_sync(run, abandon_on_cancel=leave))

    return call


class Twin:
    """An object of the library whose calls are awaited. What it has beside calls is as it was.

    ``sync`` is that object. Calls that a class below doesn't name are twins as well.
    """

    def __init__(self, sync: Any) -> None:
        self.sync = sync

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    else:

        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(name)
            of_class = inspect.getattr_static(type(self.sync), name, None)
            if inspect.isfunction(of_class):
                return functools.partial(_twin(of_class), self)
            return getattr(self.sync, name)

    # What is in a sequence is the library's own: its views wait for nothing.
    def __len__(self) -> int:
        return len(self.sync)

    def __getitem__(self, index: Any) -> Any:
        return self.sync[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.sync)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<belugafs.aio {self.sync!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        # Also on the way out of a cancelled scope: what is left open is left open for good.
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self.sync.__exit__, *error)


class Namespace(Twin):
    """Of :class:`belugafs.Namespace`. From `Pool.namespace`."""

    sync: client.Namespace

    match = _twin(client.Namespace.match)
    exists = _twin(client.Namespace.exists)
    read = _twin(client.Namespace.read)
    get = _twin(client.Namespace.get)
    get_into = _twin(client.Namespace.get_into)


class Pool(Twin):
    """Of :class:`belugafs.Pool`. From :func:`connect`."""

    sync: client.Pool

    read_files = _twin(client.Pool.read_files)
    check = _twin(client.Pool.check)
    close = _twin(client.Pool.close)

    if TYPE_CHECKING:

        async def namespace(
            self, name: str, *, identity: Any = None, create: bool = False
        ) -> Namespace:
            """As `belugafs.Pool.namespace`."""

    else:
        namespace = _twin(client.Pool.namespace)

    def watch(self, *args: Any, **kwargs: Any) -> Any:
        """`belugafs.Pool.watch` calls from a thread: here, await `gone`."""
        raise TypeError("await gone() instead of watch()")

    async def gone(self, *, every_s: float = EVERY_S) -> LeaseLost | PoolGone:
        """Return, with the error that says why, when what is leased doesn't stand any more. Looks
        every ``every_s`` seconds.

        Raises:
            OSError: the pool was closed.
        """
        while True:
            try:
                await self.check()
            except (LeaseLost, PoolGone) as error:
                return error
            except OSError:
                if self.sync.closed:
                    raise
            await trio.sleep(every_s)


_TWINS: dict[type, type[Twin]] = {client.Namespace: Namespace, client.Pool: Pool}


def _twin_of(result: Any) -> Any:
    """A twin of what has calls that wait: a pool, a namespace, what is committed later."""
    kind = type(result)
    if kind in _TWINS:
        return _TWINS[kind](result)
    return Twin(result) if callable(getattr(kind, "commit", None)) else result

"""As much of CuPy and of the CUDA runtime as the mover uses, on the CPU and in stream order.

Nothing runs before somebody waits: what is put into a stream is run when an event is waited for, so
that memory given back too early, or work put into the wrong stream, shows. Kernels are the GPU's
own code, compiled for the CPU. Tables must then still be there: a kernel that finds one gone fails.
"""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from belugafs.kernels import _copy


class Stream:
    _numbers = itertools.count(0x1000, 0x10)

    def __init__(self, fake: FakeCuda, ptr: int | None = None) -> None:
        self.fake = fake
        self.ptr = next(self._numbers) if ptr is None else ptr
        self.queue: list[Callable[[], None]] = []
        fake.streams[self.ptr] = self

    def __enter__(self) -> Stream:
        self.fake.current.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.fake.current.pop()

    def synchronize(self) -> None:
        while self.queue:
            self.queue.pop(0)()


class Event:
    def __init__(self, **_: Any) -> None:
        self.done = False

    def record(self, stream: Stream) -> None:
        self.stream = stream
        stream.queue.append(lambda: setattr(self, "done", True))

    def synchronize(self) -> None:
        while not self.done:
            self.stream.queue.pop(0)()


def _parameters(kind: str) -> list[int]:
    """Bytes of each parameter of a kernel, as transfer.cu declares it."""
    source = _copy.cuda_source()[1].replace("\\\n", " ")
    found = re.search(rf"define BFK_{kind.upper()}.*?void name\((.*?)\)", source, re.S)
    assert found
    sizes = {"bfk_u32": 4, "bfk_u64": 8}
    declared = [" ".join(text.split()) for text in found.group(1).split(",")]
    return [8 if "*" in text else sizes[text.split()[0]] for text in declared]


class _Streams:
    """``cupy.cuda.Stream``: makes one, or finds somebody else's."""

    def __init__(self, fake: FakeCuda) -> None:
        self.fake = fake

    def __call__(self, **_: Any) -> Stream:
        return Stream(self.fake)

    def from_external(self, foreign: Any) -> Stream:
        return self.fake.streams[foreign.__cuda_stream__()[1]]


class FakeCuda:
    """``cupy``: to be given to the mover; ``runtime``: in place of Cudart."""

    def __init__(self, *, batch: bool = True, pointer_shift: int = 0) -> None:
        self.streams: dict[int, Stream] = {}
        self.current: list[Stream] = []
        self.current.append(Stream(self, 0))
        self.live: dict[int, int] = {}
        self.launched: list[str] = []
        self.copies: list[tuple[int, int, int]] = []
        self.registered: dict[int, int] = {}
        self.has_batch = batch
        self.pointer_shift = pointer_shift
        self._held: list[Any] = []
        self.runtime: Any = self
        cuda = SimpleNamespace(
            Event=Event,
            Stream=_Streams(self),
            get_elapsed_time=lambda begin, end: 1.0,
            alloc_pinned_memory=self._pinned,
            get_current_stream=lambda: self.current[-1],
        )
        self.cupy = SimpleNamespace(
            cuda=cuda, RawModule=self._module, asarray=self._asarray, zeros=self._zeros
        )

    # ---- CuPy ----

    def _pinned(self, nbytes: int) -> Any:
        raw = np.zeros(nbytes + 16, np.uint8)
        self._held.append(raw)  # never freed: what is given back is known to be, not unmapped
        address = raw.ctypes.data + -raw.ctypes.data % 16
        live = self.live
        live[address] = nbytes

        def gone(array: Any) -> None:
            del live[ctypes.addressof(array)]

        members = {"__del__": gone, "ptr": property(ctypes.addressof)}
        return type("Pinned", (ctypes.c_ubyte * nbytes,), members).from_address(address)

    def _asarray(self, array: np.ndarray[Any, Any]) -> Any:
        memory = self._pinned(array.nbytes)
        np.frombuffer(memory, np.uint8)[:] = array.reshape(-1)
        there = np.frombuffer(memory, np.uint8)
        return SimpleNamespace(data=memory, get=lambda: there.copy())

    def _zeros(self, shape: Any, dtype: Any) -> Any:
        there = np.zeros(shape, dtype)
        data = SimpleNamespace(ptr=there.ctypes.data)
        face = there.__array_interface__
        return SimpleNamespace(
            data=data, nbytes=there.nbytes, held=there, __cuda_array_interface__=face
        )

    def _module(self, code: str, options: tuple[str, ...]) -> Any:
        assert "#include" not in code.replace('#include "', ""), "NVRTC has no include path"
        assert 'extern "C"' in code
        assert options
        return SimpleNamespace(get_function=self._function)

    def _function(self, name: str) -> Callable[..., None]:
        def launch(grid: tuple[int], block: tuple[int], args: tuple[Any, ...]) -> None:
            # A GPU takes the arguments' bytes as they are: a wrong size shifts all that follow.
            kind = name.rpartition("_")[2]
            assert [value.dtype.itemsize for value in args] == _parameters(kind), name
            workers = grid[0] * block[0] // 32
            to_pool = "gather_write" in name
            self.launched.append(name)
            pointers = {"pieces": (0,), "paged": (0, 2, 4)}[kind]

            def run() -> None:
                for at in pointers:
                    assert any(0 <= int(args[at]) - a < n for a, n in self.live.items()), (
                        f"table {at} of {name} was given back before the kernel ran"
                    )
                twin = _copy.twin_paged if "paged" in name else _copy.twin_pieces
                twin(*map(int, args), to_pool, workers, 32)

            self.current[-1].queue.append(run)

        return launch

    # ---- the runtime ----

    def host_register(self, address: int, nbytes: int, flags: int) -> None:
        self.registered[address] = nbytes

    def host_unregister(self, address: int) -> None:
        del self.registered[address]

    def device_pointer(self, address: int) -> int:
        return address + self.pointer_shift

    def memcpy_async(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        self.copies.append((dst, src, nbytes))
        self.streams[stream].queue.append(lambda: ctypes.memmove(dst, src, nbytes) and None)

    def memcpy_batch_async(self, dst: Any, src: Any, nbytes: Any, stream: int) -> None:
        assert stream not in (0, 1, 2), "CUDA refuses a batch in a default stream"
        self.launched.append("batch")
        for to, start, n in zip(dst.tolist(), src.tolist(), nbytes.tolist(), strict=True):
            self.memcpy_async(to, start, n, stream)

"""Pool memory and the CUDA runtime, against a stand-in library that keeps errors as CUDA does."""

import ctypes
import mmap
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from belugafs import pinning
from belugafs.kernels import cudart
from belugafs.kernels.cudart import CudaError, CudaMissing, Cudart
from belugafs.kernels.layout import PIECE
from belugafs.kernels.registration import (
    CHUNK_BYTES_MAX,
    PoolRegistration,
    RegistrationError,
)

GIB = 1 << 30
BASE = 1 << 40
"""Of a mapping that isn't there: nobody looks into it."""


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    folder = tmp_path_factory.mktemp("cudart")

    def build(version: int) -> Path:
        path = folder / f"libcudart-{version}.so"
        if not path.exists():
            source = Path(__file__).with_name("fake_cudart.c")
            define = f"-DVERSION={version}"
            subprocess.run(["gcc", "-shared", "-fPIC", define, "-o", path, source], check=True)
        return path

    return build


@pytest.fixture
def fake(built: Callable[[int], Path], tmp_path: Path) -> Callable[..., Cudart]:
    """A library of its own for each test: it has a state."""
    return lambda version=13000: Cudart(str(shutil.copy(built(version), tmp_path)))


def at(*offsets: int) -> np.ndarray:
    return np.array([BASE + offset for offset in offsets], np.uint64)


def test_chunks_are_registered_at_their_first_touch_and_once(fake) -> None:
    runtime = fake()
    pool = PoolRegistration(runtime, BASE, 10 * GIB + 4096, chunk_bytes=GIB)
    count = runtime._lib.fake_count
    assert count() == 0
    pool.ensure(at(5), 100)
    pool.ensure(at(GIB - 1), 1)
    assert count() == 1
    pool.ensure(at(3 * GIB - 1), 2)  # the last byte of one chunk, the first of the next
    assert count() == 3
    pool.ensure(at(0, 2 * GIB, 9 * GIB), np.array([1, 1, GIB + 4096], np.uint64))
    assert count() == 5
    assert pool.registered_bytes == 4 * GIB + 4096  # the last one is short
    pool.ensure(at(), 5)
    pool.close()
    assert count() == 0
    with pytest.raises(RegistrationError, match="was closed"):
        pool.ensure(at(5), 100)


def test_no_call_is_longer_than_64_gib(fake) -> None:
    runtime = fake()
    pool = PoolRegistration(runtime, BASE, 1000 * GIB, chunk_bytes=CHUNK_BYTES_MAX)
    pool.ensure(at(0), 1000 * GIB)
    assert runtime._lib.fake_count() == 16
    runtime._lib.fake_longest.restype = ctypes.c_size_t
    assert runtime._lib.fake_longest() == 64 * GIB
    for wrong in (CHUNK_BYTES_MAX + 4096, 0, 5000):
        with pytest.raises(ValueError, match="at most 64 GiB"):
            PoolRegistration(runtime, BASE, GIB, chunk_bytes=wrong)
    with pytest.raises(ValueError, match="starts on a page"):
        PoolRegistration(runtime, BASE + 1, GIB)


@pytest.mark.parametrize("offset", [-1, 4 * GIB - 5, 5 * GIB])
def test_outside_of_the_mapping(fake, offset: int) -> None:
    runtime = fake()
    pool = PoolRegistration(runtime, BASE, 4 * GIB)
    with pytest.raises(ValueError, match="outside of the mapping"):
        pool.ensure(at(offset), 6)
    assert runtime._lib.fake_count() == 0


def test_a_failure_says_what_to_do_and_leaves_no_error_behind(fake) -> None:
    runtime = fake()
    pool = PoolRegistration(runtime, BASE, 4 * GIB)
    runtime._lib.fake_fail_next(2)
    with pytest.raises(RegistrationError, match=r"cudaErrorMemoryAllocation \(2\).*ulimit -l"):
        pool.ensure(at(0), 1)
    assert runtime._lib.fake_last() == 0
    assert pool.registered_bytes == 0
    pool.ensure(at(0), 1)  # it can be tried again
    assert pool.registered_bytes == GIB


def test_what_somebody_else_registered_is_used_and_not_given_back(fake) -> None:
    runtime = fake()
    runtime.host_register(BASE, 2 * GIB, 0)
    pool = PoolRegistration(runtime, BASE, 4 * GIB)
    pool.ensure(at(5), 5)
    assert pool.registered_bytes == 0
    assert runtime._lib.fake_last() == 0
    pool.close()
    assert runtime._lib.fake_count() == 1


def test_a_chunk_that_somebody_else_registered_in_part_is_refused(fake) -> None:
    runtime = fake()
    runtime.host_register(BASE + 4096, 4096, 0)
    pool = PoolRegistration(runtime, BASE, 4 * GIB)
    with pytest.raises(RegistrationError, match="one place only"):
        pool.ensure(at(5), 5)
    assert runtime._lib.fake_last() == 0


def test_flags(fake) -> None:
    runtime = fake()
    for options, flags in (({}, 3), ({"readonly": True}, 11), ({"io_memory": True}, 7)):
        with PoolRegistration(runtime, BASE, GIB, **options) as pool:
            pool.ensure(at(0), 1)
            assert runtime._lib.fake_flags() == flags


def test_close_gives_all_back_and_tells_the_first_error(fake) -> None:
    runtime = fake()
    pool = PoolRegistration(runtime, BASE, 3 * GIB)
    pool.ensure(at(0), 3 * GIB)
    runtime.host_unregister(BASE + GIB)
    with pytest.raises(CudaError, match="713"):
        pool.close()
    assert runtime._lib.fake_count() == 0


def test_many_threads_register_a_chunk_once(fake) -> None:
    """The stand-in refuses a chunk that is registered twice; that would be somebody else's."""
    runtime = fake()
    pool = PoolRegistration(runtime, BASE, 40 * GIB)
    start = threading.Barrier(4)

    def touch() -> None:
        start.wait()
        for chunk in range(40):
            pool.ensure(at(chunk * GIB), 1)

    threads = [threading.Thread(target=touch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.registered_bytes == 40 * GIB


def test_pieces_are_cut_where_a_chunk_ends() -> None:
    pool = PoolRegistration(None, BASE, 1 << 20, chunk_bytes=4096)  # type: ignore[arg-type]
    pieces = np.array([(100, BASE, 4096), (7, BASE + 4000, 9000), (1, BASE + 8192, 1)], PIECE)
    assert pool.split(pieces).tolist() == [
        (100, BASE, 4096),
        (7, BASE + 4000, 96),
        (103, BASE + 4096, 4096),
        (4199, BASE + 8192, 4096),
        (8295, BASE + 12288, 712),
        (1, BASE + 8192, 1),
    ]
    assert pieces["nbytes"].tolist() == [4096, 9000, 1]


@pytest.mark.parametrize("version", [12080, 12090, 13000, 13010])
def test_a_batch_of_copies(fake, version: int) -> None:
    """CUDA 13 took one argument away from the call."""
    runtime = fake(version)
    assert runtime.has_batch
    source = np.arange(1000, dtype=np.uint8)
    target = np.zeros(1000, np.uint8)
    starts = np.array([0, 500, 900], np.uint64)
    sizes = np.array([100, 1, 100], np.uint64)
    runtime.memcpy_batch_async(
        target.ctypes.data + starts, source.ctypes.data + starts, sizes, stream=77
    )
    want = np.zeros(1000, np.uint8)
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        want[start : start + size] = source[start : start + size]
    np.testing.assert_array_equal(target, want)
    runtime.memcpy_batch_async(starts[:0], starts[:0], sizes[:0], stream=77)
    with pytest.raises(CudaError, match="cudaMemcpyBatchAsync: cudaErrorOther"):
        runtime.memcpy_batch_async(starts, starts, sizes, stream=2)
    assert runtime._lib.fake_last() == 0


def test_before_cuda_12_8_there_is_no_batch(fake) -> None:
    assert not fake(12060).has_batch


def test_one_copy(fake) -> None:
    runtime = fake()
    assert runtime.device_count() == 1
    target = bytearray(b"....")
    place = (ctypes.c_char * 4).from_buffer(target)
    source = ctypes.create_string_buffer(b"abcd")
    runtime.memcpy_async(ctypes.addressof(place), ctypes.addressof(source), 3, 5)
    assert target == b"abc."


def test_no_library(monkeypatch) -> None:
    monkeypatch.setenv("BELUGAFS_CUDART", "/nowhere/libcudart.so")
    with pytest.raises(CudaMissing, match="BELUGAFS_CUDART"):
        Cudart()


def test_the_real_library_without_a_gpu() -> None:
    """A runtime that finds no driver or no device says so. (Then it says so to everything,
    cudaGetLastError too: that errors are cleared is shown with the stand-in.)"""
    try:
        runtime = Cudart()
    except CudaMissing as missing:
        pytest.skip(str(missing))
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("there is a GPU: tests/t7_gpu has more")
    with pytest.raises(CudaError, match="cudaGetDeviceCount: cudaError") as caught:
        runtime.device_count()
    assert caught.value.code in (35, 100)
    with pytest.raises(CudaError, match="cudaHostRegister"):
        runtime.host_register(BASE, 4096, 0)


SIZES = """
#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdio.h>
/* the call as this version declares it */
typedef cudaError_t call(void *const *, const void *const *, const size_t *, size_t,
                         struct cudaMemcpyAttributes *, size_t *, size_t, cudaStream_t);
int main(void)
{
#if CUDART_VERSION >= 13000
    call *same = cudaMemcpyBatchAsync;
    (void)same;
#endif
    typedef struct cudaMemcpyAttributes a;
    printf("%zu %zu %zu %zu %zu %d %d %d %d %d", sizeof(a), offsetof(a, srcAccessOrder),
           offsetof(a, srcLocHint), offsetof(a, dstLocHint), offsetof(a, flags),
           cudaMemcpySrcAccessOrderStream, cudaMemcpyDefault, cudaHostRegisterReadOnly,
           cudaErrorHostMemoryAlreadyRegistered, cudaErrorHostMemoryNotRegistered);
    return 0;
}
"""


def test_the_structs_are_those_of_cudas_header(tmp_path: Path) -> None:
    include = os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/include"
    if not shutil.which("nvcc") or not os.path.exists(f"{include}/cuda_runtime_api.h"):
        pytest.skip("no CUDA toolkit here: its header can't be compared with")
    source, program = tmp_path / "sizes.c", tmp_path / "sizes"
    source.write_text(SIZES)
    # Only declared: the program calls nothing of the runtime.
    build = ["gcc", "-Wall", "-Werror", f"-I{include}", source, "-o", program]
    subprocess.run([*build, "-Wl,--unresolved-symbols=ignore-all"], check=True)
    found = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    struct = cudart.CopyAttributes
    names = ("srcAccessOrder", "srcLocHint", "dstLocHint", "flags")
    ours = [ctypes.sizeof(struct), *(getattr(struct, name).offset for name in names)]
    ours += [
        cudart._ORDER_STREAM,
        cudart._KIND_DEFAULT,
        cudart.REGISTER_READ_ONLY,
        cudart.ERROR_ALREADY_REGISTERED,
        cudart.ERROR_NOT_REGISTERED,
    ]
    assert [int(word) for word in found.split()] == ours


def test_whether_memory_can_be_pinned_is_asked_of_the_gpu_where_there_is_one(
    built: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = str(shutil.copy(built(13000), tmp_path))
    monkeypatch.setenv("BELUGAFS_CUDART", library)
    assert pinning.pin(BASE, 4096) == pinning.Pin(True, "cudaHostRegister", "can be pinned")
    state = ctypes.CDLL(library)
    assert state.fake_count() == 0  # and let go
    state.fake_fail_next(2)
    found = pinning.pin(BASE, 4096)
    assert (found.works, found.how) == (False, "cudaHostRegister")
    assert "out of memory" in found.text
    assert state.fake_last() == 0  # nobody else hears of it
    monkeypatch.setenv("BELUGAFS_CUDART", str(tmp_path / "none"))
    with mmap.mmap(-1, 1 << 16) as memory:
        assert pinning.pin(pinning.address_of(memory), 1 << 16).how == "io_uring"

"""The shape of a model's cache, and of an engine's pages."""

import numpy as np
import pytest

from belugafs.kernels import Layout, LayoutError, PagedCache
from belugafs.kernels.layout import Blocks

LLAMA_8B = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "torch_dtype": "bfloat16",
}
MLA = {
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "dtype": "bfloat16",
}


def test_sizes_of_a_block() -> None:
    layout = Layout(64, 2, 5, 128, 16, 2)
    assert (layout.chunks, layout.chunk_bytes) == (128, 20 << 10)
    assert layout.block_bytes == 5 << 19


@pytest.mark.parametrize(
    ("config", "options", "want"),
    [
        (LLAMA_8B, {}, (32, 2, 8, 128, 16, 2)),
        (LLAMA_8B, {"dtype_bytes": 1}, (32, 2, 8, 128, 16, 1)),
        (LLAMA_8B, {"tensor_parallel": 4}, (32, 2, 2, 128, 16, 2)),
        (LLAMA_8B, {"tensor_parallel": 16}, (32, 2, 1, 128, 16, 2)),
        ({**LLAMA_8B, "head_dim": 64}, {}, (32, 2, 8, 64, 16, 2)),
        ({**LLAMA_8B, "num_key_value_heads": None}, {}, (32, 2, 32, 128, 16, 2)),
        ({"text_config": LLAMA_8B}, {}, (32, 2, 8, 128, 16, 2)),
        (MLA, {}, (61, 1, 1, 576, 16, 2)),
        (MLA, {"tensor_parallel": 8}, (61, 1, 1, 576, 16, 2)),
        (
            {"n_layer": 12, "n_head": 12, "n_embd": 768, "torch_dtype": "torch.float32"},
            {},
            (12, 2, 12, 64, 16, 4),
        ),
    ],
)
def test_from_a_models_config(config, options, want) -> None:
    assert Layout.from_config(config, block_tokens=16, **options) == Layout(*want)


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ({}, {"dtype_bytes": 2}, "num_hidden_layers or n_layer"),
        ({**LLAMA_8B, "torch_dtype": "float4"}, {}, "float4: say dtype_bytes"),
        (LLAMA_8B, {"tensor_parallel": 3}, "can't be shared"),
        (LLAMA_8B, {"block_tokens": 0}, "block_tokens is 0"),
    ],
)
def test_a_config_that_does_not_say(config, options, message) -> None:
    with pytest.raises(LayoutError, match=message):
        Layout.from_config(config, **{"block_tokens": 16, **options})


SMALL = Layout(layers=2, kv=2, heads=3, head_dim=8, block_tokens=8, dtype_bytes=2)


def test_pieces_of_vllms_cache_are_whole_chunks() -> None:
    """One tensor a layer, pages of a block's size: a piece for each layer's K and V."""
    tensors = [np.zeros((2, 10, 8, 3, 8), np.float16) for _ in range(2)]
    cache = PagedCache.from_tensors(SMALL, tensors, "kpthd")
    transfer = cache.transfer([7], Blocks(np.array([4096], np.uint64), SMALL.block_bytes))
    assert cache.order == "lkthd"
    assert transfer.pieces.tolist() == [
        (tensor.ctypes.data + (kv * 10 + 7) * 384, 4096 + (layer * 2 + kv) * 384, 384)
        for layer, tensor in enumerate(tensors)
        for kv in range(2)
    ]


def test_neighbouring_pages_are_one_piece() -> None:
    """A token-slot cache whose slots follow each other is as good as a page."""
    tensors = [np.zeros((40, 3, 8), np.float16) for _ in range(4)]
    cache = PagedCache.from_tensors(SMALL, tensors, "phd")
    blocks = Blocks(np.array([0], np.uint64), SMALL.block_bytes)
    assert len(cache.transfer(np.arange(5, 13), blocks).pieces) == 4
    assert len(cache.transfer([5, 6, 7, 8, 20, 21, 22, 23], blocks).pieces) == 8


def test_neighbouring_blocks_keep_their_own_pieces() -> None:
    """Blocks one behind the other in the pool, of pages one behind the other in the cache."""
    layout = Layout(1, 1, 3, 8, 8, 2)
    cache = PagedCache.from_tensors(layout, [np.zeros((10, 8, 3, 8), np.float16)], "pthd")
    blocks = Blocks(np.array([0, layout.block_bytes], np.uint64), layout.block_bytes)
    transfer = cache.transfer([4, 5], blocks)
    assert transfer.counts.tolist() == [1, 1]
    assert transfer.pieces["nbytes"].tolist() == [layout.block_bytes] * 2


def test_the_order_of_a_block_tells_caches_apart() -> None:
    def order(shape: tuple[int, ...], axes: str) -> str:
        return PagedCache.from_tensors(SMALL, [np.zeros(shape, np.float16)] * 2, axes).order

    assert order((2, 10, 8, 3, 8), "kpthd") == "lkthd"
    assert order((10, 2, 4, 3, 8), "pkthd") == "lkthd"
    assert order((2, 10, 3, 8, 8), "kphtd") == "lkhtd"
    assert order((2, 10, 3, 4, 8), "kphtd") == "lkp4htd"
    assert order((2, 10, 3, 8), "kphd") == "lkthd"


@pytest.mark.parametrize(
    ("shape", "axes", "message"),
    [
        ((2, 10, 8, 3, 8), "kpthx", "of the letters"),
        ((2, 8, 3, 8), "kthd", "with p"),
        ((10, 8, 3, 8), "kpthd", "doesn't have the axes"),
        ((2, 10, 8, 4, 8), "kpthd", "expected .2, 10, 8, 3, 8."),
        ((2, 10, 3, 3, 8), "kpthd", "whole pages of 3"),
        ((2, 10, 8, 8), "kptd", "no h"),
        ((10, 8, 3, 8), "pthd", "2 tensors with axes 'pthd': expected 4"),
    ],
)
def test_tensors_that_are_not_the_models(shape, axes, message) -> None:
    with pytest.raises(LayoutError, match=message):
        PagedCache.from_tensors(SMALL, [np.zeros(shape, np.float16)] * 2, axes)


def test_tensors_of_another_type_or_order() -> None:
    good = np.zeros((2, 10, 8, 3, 8), np.float16)
    with pytest.raises(LayoutError, match="4 bytes an element"):
        PagedCache.from_tensors(SMALL, [good, good.astype(np.float32)], "kpthd")
    with pytest.raises(LayoutError, match="differently"):
        other = np.zeros((2, 10, 3, 8, 8), np.float16).swapaxes(2, 3)
        PagedCache.from_tensors(SMALL, [good, other], "kpthd")
    with pytest.raises(LayoutError, match="reversed"):
        PagedCache.from_tensors(SMALL, [good, good[:, ::-1]], "kpthd")
    with pytest.raises(LayoutError, match="repeats itself"):
        PagedCache.from_tensors(SMALL, [np.broadcast_to(good[:, :1], good.shape)] * 2, "kpthd")
    with pytest.raises(LayoutError, match="list is no array"):
        PagedCache.from_tensors(SMALL, [[1], [2]], "kpthd")


def test_pages_and_blocks_that_do_not_fit() -> None:
    cache = PagedCache.from_tensors(SMALL, [np.zeros((2, 10, 4, 3, 8), np.float16)] * 2, "kpthd")
    blocks = Blocks(np.array([0, 4096], np.uint64), SMALL.block_bytes)
    with pytest.raises(IndexError, match="page 10 is not in the cache, which has 10 pages"):
        cache.transfer([0, 1, 2, 10], blocks)
    with pytest.raises(IndexError, match="page -1"):
        cache.transfer([0, 1, 2, -1], blocks)
    with pytest.raises(LayoutError, match="3 pages for 2 blocks of 2"):
        cache.transfer([0, 1, 2], blocks)
    with pytest.raises(LayoutError, match="integers"):
        cache.transfer([0.0, 1.0, 2.0, 3.0], blocks)
    with pytest.raises(LayoutError, match="blocks of 100 bytes: this model's have 1536"):
        cache.transfer([0, 1, 2, 3], Blocks(blocks.addresses, 100))
    with pytest.raises(LayoutError, match="different sizes"):
        Blocks.of([bytearray(5), bytearray(6)])


def test_a_tensor_with_a_data_pointer_needs_no_framework() -> None:
    """torch tensors say address and strides by methods, strides in elements."""

    class Torchlike:
        def __init__(self, array: np.ndarray) -> None:
            self.array, self.shape = array, array.shape

        def data_ptr(self) -> int:
            return self.array.ctypes.data

        def element_size(self) -> int:
            return self.array.itemsize

        def stride(self) -> tuple[int, ...]:
            return tuple(n // self.array.itemsize for n in self.array.strides)

    arrays = [np.zeros((2, 10, 8, 6, 8), np.float16)[:, :, :, ::2] for _ in range(2)]
    plain = PagedCache.from_tensors(SMALL, arrays, "kpthd")
    torchlike = PagedCache.from_tensors(SMALL, [Torchlike(a) for a in arrays], "kpthd")
    assert plain.parts.tolist() == torchlike.parts.tolist()

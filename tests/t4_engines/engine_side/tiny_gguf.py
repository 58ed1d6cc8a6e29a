"""A small Llama checkpoint for llama.cpp: random weights from a fixed seed, one token per byte.

usage: tiny_gguf.py OUT.gguf

4 layers, 4 KV heads of 64, F16: 4096 bytes of KV cache per token. Needs numpy and gguf.
"""

from __future__ import annotations

import sys

import gguf
import numpy as np

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 4, 512, 8, 4, 64, 8192
SPECIAL = ["<s>", "</s>", "<unk>"]


def byte_alphabet() -> list[str]:
    """The 256 characters that stand for bytes in GPT-2's vocabulary."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in visible)
    moved = {byte: 256 + at for at, byte in enumerate(others)}
    return [chr(moved.get(byte, byte)) for byte in range(256)]


def main() -> None:
    (out,) = sys.argv[1:]
    vocabulary = [*SPECIAL, *byte_alphabet()]
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_name("tiny-random")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(2 * HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_vocab_size(len(vocabulary))
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(vocabulary)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if token in SPECIAL else normal for token in vocabulary])
    # The format wants at least one merge; these two bytes never stand together in text.
    writer.add_token_merges([f"{vocabulary[3]} {vocabulary[4]}"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)

    random = np.random.default_rng(20172)

    def matrix(rows: int, columns: int) -> np.ndarray:
        # Wide enough that the layers, not the embeddings, decide the next token.
        return (random.standard_normal((rows, columns)) * 0.12).astype(np.float16)

    def norm(name: str) -> None:
        writer.add_tensor(name, np.ones(HIDDEN, np.float32))

    # Tokens that aren't printable ASCII get zeros, and so are never the most likely one.
    embedding = matrix(len(vocabulary), HIDDEN)
    for number, token in enumerate(vocabulary):
        if token in SPECIAL or not (token.isascii() and token.isprintable()):
            embedding[number] = 0
    writer.add_tensor("token_embd.weight", embedding)
    norm("output_norm.weight")
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        norm(f"{block}.attn_norm.weight")
        norm(f"{block}.ffn_norm.weight")
        shapes = {
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_gate": (2 * HIDDEN, HIDDEN),
            "ffn_up": (2 * HIDDEN, HIDDEN),
            "ffn_down": (HIDDEN, 2 * HIDDEN),
        }
        for name, shape in shapes.items():
            writer.add_tensor(f"{block}.{name}.weight", matrix(*shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()

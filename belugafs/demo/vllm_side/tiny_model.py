"""Make a small Llama checkpoint with random weights and a tokenizer of one token per byte.

usage: tiny_model.py OUT_DIR

4 layers, 4 KV heads of 64, float32: 8192 bytes of KV cache per token, 1 MiB for the CPU
backend's block of 128 tokens. float32, because a cached prefix is computed in other batches
than a fresh one: in bfloat16 the difference can be enough to change a greedy token. Needs
torch, transformers and tokenizers; no network.
"""

from __future__ import annotations

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<s>", "</s>", "<unk>"]
MAX_TOKENS = 8192


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE without a single merge, so the number of tokens is the number of bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=MAX_TOKENS,
    )


def make_model() -> LlamaForCausalLM:
    """The same weights every time: the seed is fixed."""
    torch.manual_seed(20172)
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=MAX_TOKENS,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=True,
        # Wide enough that the layers, not the tied embeddings, decide the next token.
        initializer_range=0.12,
    )
    return LlamaForCausalLM(config)


def main() -> None:
    (out,) = sys.argv[1:]
    make_tokenizer().save_pretrained(out)
    model = make_model()
    model.save_pretrained(out)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{out}: {parameters / 1e6:.1f} M parameters")


if __name__ == "__main__":
    main()

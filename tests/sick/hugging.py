"""Hugging Face's models, small."""

from __future__ import annotations

import transformers
from torch import nn

from sick.case import DIM, VOCAB

__all__ = ["gemma2", "gpt2", "llama", "t5"]

transformers.logging.set_verbosity_error()


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        n_layer=2, n_embd=DIM, n_head=2, vocab_size=VOCAB, n_positions=16, bos_token_id=0, eos_token_id=1
    )
    return transformers.GPT2LMHeadModel(config)


_SIZES = {
    "hidden_size": DIM,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCAB,
    "max_position_embeddings": 32,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


def llama() -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_SIZES))


def gemma2() -> nn.Module:
    return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**_SIZES))


def t5() -> nn.Module:
    config = transformers.T5Config(
        d_model=DIM, d_kv=8, d_ff=32, num_layers=2, num_heads=2, vocab_size=VOCAB, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)

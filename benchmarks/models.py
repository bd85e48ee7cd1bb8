"""Whole Transformers: a training step and decoding, against torch's, Hugging Face's and x-transformers'."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from x_transformers import Decoder, TransformerWrapper

import normkit as nk
from normkit.bench.cells import Call, Cell

__all__ = ["candidates", "cells"]

VOCAB, PROMPT, NEW = 512, 32, 96


@dataclass(frozen=True)
class Size:
    dim: int
    depth: int
    heads: int
    batch: int
    length: int

    @property
    def hidden(self) -> int:
        """Of swiglu: as many weights as the two layers of 4 · dim."""
        return 8 * self.dim // 3 // 8 * 8


SIZES = {size.dim: size for size in (Size(256, 6, 4, 8, 256), Size(768, 4, 12, 2, 512))}


def cells(quick: bool) -> list[Cell]:
    """Shapes are (dim, depth, batch, length). Nothing is compiled."""
    sizes = list(SIZES.values())[: 1 if quick else 2]
    return [
        Cell("models", op, way, (s.dim, s.depth, s.batch, s.length), compiled=False)
        for op in ("LM, LayerNorm", "LM, RMSNorm")
        for way in ("training step", "decoding")
        for s in sizes
    ]


def candidates(cell: Cell) -> dict[str, Call]:
    torch.manual_seed(0)
    size = SIZES[cell.shape[0]]
    made = _with_layer_norm(size) if cell.op == "LM, LayerNorm" else _with_rms_norm(size)
    if cell.way == "decoding":
        prompt = torch.randint(VOCAB, (1, PROMPT))
        ours, theirs = made["ours"].eval(), made["hf"].eval()
        config = transformers.GenerationConfig(
            max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0
        )
        mask = torch.ones_like(prompt)
        weights = [w for name, w in ours.named_parameters() if w.ndim == 2 and "position" not in name]
        tokens = {w.shape[1]: torch.randn(1, w.shape[1]) for w in weights}

        def read_weights() -> None:
            """What no model can do without: every weight once a token, by the kernel that decoding uses."""
            for _ in range(NEW):
                for weight in weights:
                    nk.kernels.linear(tokens[weight.shape[1]], weight, None)

        return {
            "weights": read_weights,
            "ours": lambda: ours.generate(prompt, NEW),
            "hf": lambda: theirs.generate(prompt, attention_mask=mask, generation_config=config),
        }
    ids = torch.randint(VOCAB, (size.batch, size.length))
    return {name: _step(model.train(), ids) for name, model in made.items()}


def _step(model: nn.Module, ids: Tensor) -> Call:
    """Forward, loss, backward."""

    def step() -> None:
        with torch.enable_grad():
            logits = model(ids)
            logits = getattr(logits, "logits", logits)
            F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        model.zero_grad()

    return step


def _with_layer_norm(size: Size) -> dict[str, nn.Module]:
    common = {
        "vocab": VOCAB,
        "dim": size.dim,
        "depth": size.depth,
        "heads": size.heads,
        "context": size.length,
    }
    return {
        "ours": nk.LanguageModel(**common, positions="learned"),
        "eager": _TorchModel(size),
        "hf": transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=VOCAB,
                n_embd=size.dim,
                n_layer=size.depth,
                n_head=size.heads,
                n_positions=size.length,
                activation_function="gelu",
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                bos_token_id=0,
                eos_token_id=0,
            )
        ),
        "x": _x_transformer(size),
    }


def _with_rms_norm(size: Size) -> dict[str, nn.Module]:
    common = {
        "vocab": VOCAB,
        "dim": size.dim,
        "depth": size.depth,
        "heads": size.heads,
        "context": size.length,
    }
    return {
        "ours": nk.LanguageModel(**common, norm="rms", activation="swiglu", hidden=size.hidden, bias=False),
        "hf": transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=VOCAB,
                hidden_size=size.dim,
                intermediate_size=size.hidden,
                num_hidden_layers=size.depth,
                num_attention_heads=size.heads,
                max_position_embeddings=size.length,
                tie_word_embeddings=True,
                bos_token_id=0,
                eos_token_id=0,
            )
        ),
        "x": _x_transformer(
            size,
            use_rmsnorm=True,
            rotary_pos_emb=True,
            ff_glu=True,
            ff_swish=True,
            ff_mult=size.hidden / size.dim,
            ff_no_bias=True,
        ),
    }


def _x_transformer(size: Size, **options: object) -> nn.Module:
    head = {"heads": size.heads, "attn_dim_head": size.dim // size.heads, "attn_flash": True}
    layers = Decoder(dim=size.dim, depth=size.depth, **head, **options)
    absolute = not options.get("rotary_pos_emb", False)
    return TransformerWrapper(
        num_tokens=VOCAB,
        max_seq_len=size.length,
        use_abs_pos_emb=absolute,
        attn_layers=layers,
        tie_embedding=True,
    )


class _TorchModel(nn.Module):
    """The same from nn.TransformerEncoder, Pre-LN."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            size.dim, size.heads, 4 * size.dim, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.token, self.position = nn.Embedding(VOCAB, size.dim), nn.Embedding(size.length, size.dim)
        self.encoder = nn.TransformerEncoder(
            layer, size.depth, nn.LayerNorm(size.dim), enable_nested_tensor=False
        )
        self.head = nn.Linear(size.dim, VOCAB, bias=False)
        self.head.weight = self.token.weight
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(size.length))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token(ids) + self.position.weight[: ids.shape[1]]
        return self.head(self.encoder(x, mask=self.mask, is_causal=True))

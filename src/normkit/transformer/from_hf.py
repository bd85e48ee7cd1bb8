"""Weights of Hugging Face models: what each family calls things, as data.

Only ``model.config`` and ``model.state_dict()`` are read, so transformers need not be there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normkit.errors import user_error

__all__ = ["FAMILIES", "convert"]

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}


@dataclass(frozen=True)
class Family:
    """How to read one family of models.

    ``names``: ours -> theirs, several where theirs are parts of ours; ``{}`` is the layer. ``unlike``:
    settings that change what is computed and that we do not have, and whether this config has them.
    """

    model: str  # which of ours
    options: Callable[[Any], dict[str, Any]]
    names: dict[str, tuple[str, ...]]
    unlike: Callable[[Any], dict[str, bool]]
    ignored: str = r"$^"  # theirs that are no weights of ours
    transposed: str = r"$^"  # theirs that are stored as (in, out)


def _gpt2(c: Any) -> dict[str, Any]:
    return {
        "vocab": c.vocab_size,
        "dim": c.n_embd,
        "depth": c.n_layer,
        "heads": c.n_head,
        "hidden": c.n_inner or 4 * c.n_embd,
        "context": c.n_positions,
        "eps": c.layer_norm_epsilon,
        "activation": _activation(c.activation_function),
        "positions": "learned",
        "dropout": _dropout(c.resid_pdrop, c.embd_pdrop, c.attn_pdrop),
    }


def _llama(c: Any) -> dict[str, Any]:
    return {
        "vocab": c.vocab_size,
        "dim": c.hidden_size,
        "depth": c.num_hidden_layers,
        "heads": c.num_attention_heads,
        "kv_heads": c.num_key_value_heads,
        "head_dim": getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads,
        "hidden": c.intermediate_size,
        "context": c.max_position_embeddings,
        "norm": "rms_after_cast",
        "eps": c.rms_norm_eps,
        "activation": "swiglu",
        "rope_theta": float(_rope(c).get("rope_theta", getattr(c, "rope_theta", 10000.0))),
        "bias": False,
        "qk_norm": c.model_type == "qwen3",
        "tied": bool(c.tie_word_embeddings),
    }


def _bert(c: Any) -> dict[str, Any]:
    return {
        "vocab": c.vocab_size,
        "dim": c.hidden_size,
        "depth": c.num_hidden_layers,
        "heads": c.num_attention_heads,
        "hidden": c.intermediate_size,
        "context": c.max_position_embeddings,
        "placement": "post",
        "eps": c.layer_norm_eps,
        "activation": _activation(c.hidden_act),
        "positions": "learned",
        "embedding_norm": True,
        "token_types": c.type_vocab_size,
        "dropout": _dropout(c.hidden_dropout_prob, c.attention_probs_dropout_prob),
    }


def _both(ours: str, theirs: str) -> dict[str, tuple[str, ...]]:
    return {f"{ours}.{p}": (f"{theirs}.{p}",) for p in ("weight", "bias")}


BLOCK = "stack.blocks.{}."
GPT2 = {
    "embedding.token.weight": ("wte.weight",),
    "embedding.position.weight": ("wpe.weight",),
    **_both(BLOCK + "attention.pre", "h.{}.ln_1"),
    **_both(BLOCK + "attention.fn.qkv", "h.{}.attn.c_attn"),
    **_both(BLOCK + "attention.fn.output", "h.{}.attn.c_proj"),
    **_both(BLOCK + "feed_forward.pre", "h.{}.ln_2"),
    **_both(BLOCK + "feed_forward.fn.input", "h.{}.mlp.c_fc"),
    **_both(BLOCK + "feed_forward.fn.output", "h.{}.mlp.c_proj"),
    **_both("stack.final.norm", "ln_f"),
    "head.weight": ("wte.weight",),
}
LLAMA = {
    "embedding.token.weight": ("embed_tokens.weight",),
    BLOCK + "attention.pre.weight": ("layers.{}.input_layernorm.weight",),
    BLOCK + "attention.fn.qkv.weight": tuple(f"layers.{{}}.self_attn.{p}_proj.weight" for p in "qkv"),
    BLOCK + "attention.fn.output.weight": ("layers.{}.self_attn.o_proj.weight",),
    BLOCK + "feed_forward.pre.weight": ("layers.{}.post_attention_layernorm.weight",),
    BLOCK + "feed_forward.fn.input.weight": tuple(f"layers.{{}}.mlp.{p}_proj.weight" for p in ("gate", "up")),
    BLOCK + "feed_forward.fn.output.weight": ("layers.{}.mlp.down_proj.weight",),
    "stack.final.norm.weight": ("norm.weight",),
    "head.weight": ("lm_head.weight", "embed_tokens.weight"),
}
QWEN3 = {
    **LLAMA,
    BLOCK + "attention.fn.query_norm.weight": ("layers.{}.self_attn.q_norm.weight",),
    BLOCK + "attention.fn.key_norm.weight": ("layers.{}.self_attn.k_norm.weight",),
}
BERT = {
    "embedding.token.weight": ("embeddings.word_embeddings.weight",),
    "embedding.position.weight": ("embeddings.position_embeddings.weight",),
    "embedding.kind.weight": ("embeddings.token_type_embeddings.weight",),
    **_both("embedding.norm", "embeddings.LayerNorm"),
    **{
        BLOCK + f"attention.fn.qkv.{p}": tuple(
            f"encoder.layer.{{}}.attention.self.{part}.{p}" for part in ("query", "key", "value")
        )
        for p in ("weight", "bias")
    },
    **_both(BLOCK + "attention.fn.output", "encoder.layer.{}.attention.output.dense"),
    **_both(BLOCK + "attention.post", "encoder.layer.{}.attention.output.LayerNorm"),
    **_both(BLOCK + "feed_forward.fn.input", "encoder.layer.{}.intermediate.dense"),
    **_both(BLOCK + "feed_forward.fn.output", "encoder.layer.{}.output.dense"),
    **_both(BLOCK + "feed_forward.post", "encoder.layer.{}.output.LayerNorm"),
}


def _unlike_llama(c: Any) -> dict[str, bool]:
    return {
        "rope_type": _rope(c).get("rope_type", "default") != "default",
        "attention_bias": bool(getattr(c, "attention_bias", False)),
        "mlp_bias": bool(getattr(c, "mlp_bias", False)),
        "hidden_act": c.hidden_act != "silu",
        "use_sliding_window": bool(getattr(c, "use_sliding_window", False)),
    }


FAMILIES: dict[str, Family] = {
    "gpt2": Family(
        "LanguageModel",
        _gpt2,
        GPT2,
        lambda c: {
            "scale_attn_by_inverse_layer_idx": bool(c.scale_attn_by_inverse_layer_idx),
            "scale_attn_weights=False": not c.scale_attn_weights,
            "tie_word_embeddings=False": not c.tie_word_embeddings,
        },
        ignored=r".*\.attn\.(masked_)?bias$|lm_head\.weight$",
        transposed=r".*\.(c_attn|c_proj|c_fc)\.weight$",
    ),
    "llama": Family(
        "LanguageModel", _llama, LLAMA, _unlike_llama, ignored=r".*rotary_emb.*|lm_head\.weight$"
    ),
    "qwen3": Family(
        "LanguageModel", _llama, QWEN3, _unlike_llama, ignored=r".*rotary_emb.*|lm_head\.weight$"
    ),
    "bert": Family(
        "Encoder",
        _bert,
        BERT,
        lambda c: {
            "is_decoder": bool(getattr(c, "is_decoder", False)),
            "position_embedding_type": getattr(c, "position_embedding_type", "absolute") != "absolute",
        },
        ignored=r"pooler\.|cls\.|.*position_ids$|.*token_type_ids$",
    ),
}
PREFIXES = ("model.", "transformer.", "bert.")


def convert(theirs: nn.Module, ours: str, build: Callable[..., Any]) -> Any:
    """``build(**options)`` with the weights of a Hugging Face model."""
    config = getattr(theirs, "config", None)
    kind = getattr(config, "model_type", None)
    known = sorted(name for name, family in FAMILIES.items() if family.model == ours)
    if kind not in known:
        raise user_error(
            f"{ours}.from_hf got a {type(theirs).__name__}"
            + (f" of model_type {kind!r}." if kind else ", which has no config.model_type."),
            expected=f"a model that is loaded, of {', '.join(known)}",
        )
    family = FAMILIES[kind]
    other = [name for name, has in family.unlike(config).items() if has]
    if other:
        raise user_error(
            f"This {kind} has {', '.join(other)}.", expected="a model without: we compute no such thing"
        )
    options = family.options(config)
    weights = {_plain(name): value for name, value in theirs.state_dict().items()}
    example = next(iter(weights.values()))
    with torch.device(example.device):
        model = build(**options).to(example.dtype)
    found, used = _translate(family, weights, model, options.get("tied", True))
    left = [n for n in weights if n not in used and not re.match(family.ignored, n)]
    if left:
        raise user_error(f"This {kind} has weights that are unknown: {', '.join(left[:3])}.", expected="none")
    model.load_state_dict(found)
    return model.train(theirs.training)


def _translate(
    family: Family, weights: dict[str, Tensor], model: nn.Module, tied: bool
) -> tuple[dict[str, Tensor], set[str]]:
    found, used = {}, set()
    for ours in model.state_dict():
        layer = re.search(r"blocks\.(\d+)\.", ours)
        key = ours if layer is None else ours.replace(f"blocks.{layer[1]}.", "blocks.{}.", 1)
        names = [name.format(layer[1] if layer else "") for name in family.names[key]]
        if key == "head.weight" and len(names) > 1:  # a head of its own, or the embedding's
            names = names[1:] if tied else names[:1]
        missing = [name for name in names if name not in weights]
        if missing:
            raise user_error(
                f"The model has no weight {missing[0]}.", expected="all that its config describes"
            )
        parts = [weights[n].T if re.match(family.transposed, n) else weights[n] for n in names]
        found[ours] = torch.cat(parts)
        used.update(names)
    return found, used


def _plain(name: str) -> str:
    return next((name.removeprefix(p) for p in PREFIXES if name.startswith(p)), name)


def _rope(config: Any) -> dict[str, Any]:
    """Called rope_parameters from transformers 5 on, rope_scaling before."""
    found = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return dict(found)


def _dropout(*rates: float) -> float:
    """The one rate that we have, if it is the same everywhere."""
    return float(rates[0]) if len(set(rates)) == 1 else 0.0


def _activation(name: str) -> str:
    if name not in ACTIVATIONS:
        raise user_error(
            f"The model has the activation {name!r}.", expected=f"one of {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]

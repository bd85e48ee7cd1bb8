"""Everything that describes a Transformer, as one value."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from normkit import checks
from normkit.errors import user_error
from normkit.placement.norm_factory import NORMS, NormFactory
from normkit.placement.table import PlacementLike, placement_at

__all__ = ["ACTIVATIONS", "POSITIONS", "Config", "configure"]

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu", "swiglu")
POSITIONS = ("rotary", "learned", "sinusoidal", "none")


@dataclass(frozen=True)
class Config:
    """The sizes and choices of a Transformer.

    Args:
        vocab: how many tokens there are; None for an Encoder that reads embeddings alone.
        dim, depth, heads: features of the stream, number of layers, heads of attention.
        kv_heads: heads of keys and values, fewer than ``heads`` for grouped queries.
        head_dim: features of a head; ``dim / heads`` if left out.
        hidden: features inside of the feed-forward; 4 · dim if left out, 8/3 · dim for swiglu.
        context: the longest sequence.
        placement: where the norms stand: a name, a Placement, or a function (layer, depth, kind).
        norm: which norm: a name, or anything that builds one from ``dim``; ``eps`` if it is to have another.
        positions: "rotary", "learned", "sinusoidal" or "none".
        rope_theta: the base of rotary frequencies.
        activation: "gelu", "gelu_tanh", "relu", "silu" or "swiglu".
        bias: whether linear layers have one.
        qk_norm: normalise queries and keys of every head.
        parallel: attention and feed-forward side by side, from one norm.
        dropout: of attention weights, of what a sublayer adds, and of embeddings.
        tied: the output projection is the embedding.
        embedding_norm: a norm right after the embeddings (BERT).
        token_types: how many kinds of segment have an embedding of their own (BERT).
        checkpoint: recompute each layer in the backward, to save memory.
    """

    vocab: int | None
    dim: int = 256
    depth: int = 6
    heads: int = 4
    kv_heads: int | None = None
    head_dim: int | None = None
    hidden: int | None = None
    context: int = 1024
    placement: PlacementLike = "pre"
    norm: NormFactory = "layer"
    eps: float | None = None
    positions: str = "rotary"
    rope_theta: float = 10000.0
    activation: str = "gelu"
    bias: bool = True
    qk_norm: bool = False
    parallel: bool = False
    dropout: float = 0.0
    tied: bool = True
    embedding_norm: bool = False
    token_types: int = 0
    checkpoint: bool = False

    def __post_init__(self) -> None:
        for name in ("vocab", "dim", "depth", "heads", "kv_heads", "head_dim", "hidden", "context"):
            value = getattr(self, name)
            optional = name in ("vocab", "kv_heads", "head_dim", "hidden")
            if not (optional and value is None) and (type(value) is not int or value < 1):
                raise user_error(f"{name}= got {value!r}.", expected="an integer of at least 1")
        checks.one_of(self.activation, ACTIVATIONS, what="activation=")
        checks.one_of(self.positions, POSITIONS, what="positions=")
        if isinstance(self.norm, str):
            checks.one_of(self.norm, NORMS, what="norm=")
        if self.eps is not None and self.norm in ("dyt", "none"):
            raise user_error(f"eps= came with norm={self.norm!r}.", expected="a norm that has one")
        for kind in ("attention", "feed_forward"):
            placement_at(self.placement, 1, self.depth, kind)
        if not (isinstance(self.dropout, int | float) and 0 <= self.dropout < 1):
            raise user_error(f"dropout= got {self.dropout!r}.", expected="a number from 0 to below 1")
        for name, value in (("rope_theta", self.rope_theta), ("eps", self.eps)):
            if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
                raise user_error(f"{name}= got {value!r}.", expected="a number above 0")
        if type(self.token_types) is not int or self.token_types < 0:
            raise user_error(f"token_types= got {self.token_types!r}.", expected="an integer of at least 0")
        if self.head_dim is None and self.dim % self.heads:
            divisors = [str(h) for h in range(1, self.dim + 1) if self.dim % h == 0 and h <= 4 * self.heads]
            raise user_error(
                f"dim={self.dim} is not divisible by heads={self.heads}.",
                expected="heads of equal size",
                fix=f"choose heads among {', '.join(divisors)}, or give head_dim.",
            )
        if self.heads % self.key_heads:
            raise user_error(
                f"heads={self.heads} is not divisible by kv_heads={self.kv_heads}.",
                expected="the same number of query heads for each head of keys and values",
            )
        if self.positions == "rotary" and self.head_size % 2:
            raise user_error(
                f"head_dim={self.head_size} is odd.", expected="an even number: rotary positions turn pairs"
            )

    @property
    def head_size(self) -> int:
        """Features of a head."""
        return self.head_dim or self.dim // self.heads

    @property
    def key_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def ffn_dim(self) -> int:
        """Features inside of the feed-forward; for swiglu a multiple of 8, for speed."""
        if self.hidden is not None:
            return self.hidden
        return (8 * self.dim // 3 + 7) // 8 * 8 if self.activation == "swiglu" else 4 * self.dim

    @property
    def norm_factory(self) -> NormFactory:
        """What builds the norms."""
        if self.eps is None:
            return self.norm
        return partial(NORMS[self.norm] if isinstance(self.norm, str) else self.norm, eps=self.eps)  # type: ignore[call-arg]  # of a norm that has one


def configure(options: dict[str, Any]) -> Config:
    """A Config from keyword arguments; an unknown name gets the closest one."""
    names = [field.name for field in dataclasses.fields(Config)]
    for name in options:
        checks.one_of(name, names, what="a Transformer's options:")
    if "vocab" not in options:
        raise user_error(
            "A Transformer got no vocab=.",
            expected="the number of tokens",
            fix="vocab=256, or vocab=None for an Encoder that reads embeddings.",
        )
    return Config(**options)

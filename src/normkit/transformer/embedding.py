"""Tokens in, vectors out: what the three models begin with."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from normkit.errors import refusal
from normkit.placement.choice import apply_norm, make_norm
from normkit.transformer.config import Config
from normkit.transformer.positions import sinusoids

__all__ = ["Embedding"]


class Embedding(nn.Module):
    """The sum of what is known of a token: which one it is, where it stands, of which type it is.

    Shape: (B, T) whole numbers -> (B, T, dim). With sinusoids the embedding is scaled by sqrt(dim), as in
    Vaswani et al. 2017.
    """

    waves: Tensor | None

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.vocab, self.context = config.vocab, config.context
        self.token = nn.Embedding(config.vocab, config.dim)
        self.position = nn.Embedding(config.context, config.dim) if config.positions == "learned" else None
        self.kind = nn.Embedding(config.token_types, config.dim) if config.token_types else None
        waves = sinusoids(config.context, config.dim) if config.positions == "sinusoidal" else None
        self.register_buffer("waves", waves, persistent=False)
        self.scale = math.sqrt(config.dim) if waves is not None else 1.0
        self.norm = make_norm(config.maker, config.dim) if config.embedding_norm else None
        self.dropout = nn.Dropout(config.dropout) if config.dropout else None
        for table in (self.token, self.position, self.kind):
            if table is not None:
                nn.init.normal_(table.weight, std=0.02 if waves is None else config.dim**-0.5)

    def check(self, ids: Tensor, mask: Tensor | None = None, past: int = 0) -> None:
        """Whole numbers of a known token, not too many of them, and a mask that fits."""
        if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
            got = (
                f"{ids.dtype} of shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
            )
            raise refusal(f"A Transformer got {got}.", expected="whole numbers of shape (batch, length)")
        length = past + ids.shape[1]
        if length > self.context:
            raise refusal(
                f"A Transformer got a sequence of {length} tokens.",
                expected=f"at most context={self.context}",
                fix=f"cut it, or build the model with context={length}.",
            )
        if mask is not None and (mask.dtype != torch.bool or mask.shape != (ids.shape[0], length)):
            raise refusal(
                f"mask got {mask.dtype} of shape {tuple(mask.shape)}.",
                expected=f"torch.bool of shape {(ids.shape[0], length)}, True for real tokens",
            )
        if torch.compiler.is_compiling() or not ids.is_cpu or ids.numel() == 0:  # a GPU would have to wait
            return
        low, high = (int(v) for v in torch.aminmax(ids))
        if low < 0 or high >= self.vocab:
            raise refusal(
                f"A Transformer got token {low if low < 0 else high}.",
                expected=f"0 to {self.vocab - 1}, as vocab={self.vocab}",
            )

    def forward(
        self, ids: Tensor, positions: Tensor, types: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        x: Tensor = self.token(ids)
        if self.waves is not None:
            x = x * self.scale + self.waves[positions]
        if self.position is not None:
            x = x + self.position(positions)
        if self.kind is not None:
            x = x + self.kind(torch.zeros_like(ids) if types is None else types)
        if self.norm is not None:
            x = apply_norm(self.norm, x, mask)
        return x if self.dropout is None else self.dropout(x)

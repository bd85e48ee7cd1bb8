"""Tokens in, vectors out: what the three models begin with. Vectors may also come from outside."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from normkit.errors import user_error
from normkit.placement.norm_factory import apply_norm, make_norm
from normkit.transformer.config import Config
from normkit.transformer.positions import sinusoid_table

__all__ = ["Embedding"]


class Embedding(nn.Module):
    """The sum of what is known of a token: which one it is, where it stands, of which type it is.

    Shape: (B, T) integers -> (B, T, dim). With sinusoids the embedding is scaled by sqrt(dim), as in
    Vaswani et al. 2017. Vectors (B, T, dim) are taken as they are, in place of what the table has.
    """

    sinusoids: Tensor | None

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.vocab, self.dim, self.context = config.vocab, config.dim, config.context
        self.token = None if config.vocab is None else nn.Embedding(config.vocab, config.dim)
        self.position = nn.Embedding(config.context, config.dim) if config.positions == "learned" else None
        self.kind = nn.Embedding(config.token_types, config.dim) if config.token_types else None
        sinusoids = sinusoid_table(config.context, config.dim) if config.positions == "sinusoidal" else None
        self.register_buffer("sinusoids", sinusoids, persistent=False)
        self.scale = math.sqrt(config.dim) if sinusoids is not None else 1.0
        self.norm = make_norm(config.norm_factory, config.dim) if config.embedding_norm else None
        self.dropout = nn.Dropout(config.dropout) if config.dropout else None
        for table in (self.token, self.position, self.kind):
            if table is not None:
                nn.init.normal_(table.weight, std=0.02 if sinusoids is None else config.dim**-0.5)

    def _apply(self, fn, recurse=True):  # type: ignore[no-untyped-def]  # torch's own has no types
        """A table that had no memory yet is made where it gets some."""
        empty = self.sinusoids is not None and self.sinusoids.is_meta
        result = super()._apply(fn, recurse)
        if empty and self.sinusoids is not None and not self.sinusoids.is_meta:
            self.sinusoids = sinusoid_table(self.context, self.dim).to(self.sinusoids)
        return result

    def check(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        past: int = 0,
        *,
        segments: Tensor | None = None,
        types: Tensor | None = None,
        vectors: bool = False,
    ) -> Tensor:
        """Whole numbers of a known token, not too many, and companions that fit; returned as int64.

        With ``vectors``, embeddings (B, T, dim) are taken too, and returned as they are.
        """
        embedded = vectors and _is_embedded(ids, self.vocab, self.dim)
        if not embedded:
            _whole(ids, "A Transformer", None, self.vocab, f"vocab={self.vocab}")
        length = past + ids.shape[1]
        if length > self.context:
            raise user_error(
                f"A Transformer got a sequence of {length} tokens.",
                expected=f"at most context={self.context}",
                fix=f"cut it, or build the model with context={length}.",
            )
        shape = (ids.shape[0], length)
        if mask is not None and not (
            isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.shape == shape
        ):
            got = (
                f"{mask.dtype} of shape {tuple(mask.shape)}"
                if isinstance(mask, Tensor)
                else type(mask).__name__
            )
            raise user_error(
                f"mask got {got}.", expected=f"torch.bool of shape {shape}, True for real tokens"
            )
        if segments is not None:
            if past:
                raise user_error("segments= came with a cache.", expected="the one or the other")
            _whole(segments, "segments=", ids.shape[:2], None, "")
        if types is not None:
            if self.kind is None:
                raise user_error(
                    "types= came to a model without token_types.", expected="token_types= when it is built"
                )
            count = self.kind.num_embeddings
            _whole(types, "types=", ids.shape[:2], count, f"token_types={count}")
        return ids if embedded else ids.long()

    def forward(
        self, ids: Tensor, positions: Tensor, types: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        embedded = self.token is None or ids.is_floating_point()
        x: Tensor = ids if embedded else self.token(ids)  # type: ignore[misc]  # a table, if not embedded
        if self.sinusoids is not None:
            x = (x if embedded else x * self.scale) + self.sinusoids[positions]
        if self.position is not None:
            x = x + self.position(positions)
        if self.kind is not None:
            x = x + self.kind(positions.new_zeros(ids.shape[:2]) if types is None else types)
        if self.norm is not None:
            x = apply_norm(self.norm, x, mask)
        return x if self.dropout is None else self.dropout(x)


def _is_embedded(x: Tensor, vocab: int | None, dim: int) -> bool:
    """Embeddings, (B, T, dim); False for what may be ids. Neither, or ids without a table, is an error."""
    if isinstance(x, Tensor) and x.is_floating_point() and x.ndim == 3 and x.shape[-1] == dim:
        return True
    got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
    wanted = f"floating-point embeddings of shape (batch, length, {dim})"
    if vocab is None:
        raise user_error(
            f"An Encoder with vocab=None got {got}.",
            expected=wanted,
            fix="embed it first, for example with a Linear layer, or give the Encoder a vocab= for ids.",
        )
    if isinstance(x, Tensor) and not x.is_floating_point() and x.ndim == 2:
        return False
    raise user_error(f"An Encoder got {got}.", expected=f"integers of shape (batch, length), or {wanted}")


def _whole(ids: Tensor, who: str, shape: torch.Size | None, count: int | None, limit: str) -> None:
    """Whole numbers from 0 to below ``count``."""
    kinds = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    if (
        not isinstance(ids, Tensor)
        or ids.ndim != 2
        or ids.dtype not in kinds
        or ids.shape != (shape or ids.shape)
    ):
        got = f"{ids.dtype} of shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
        wanted = "(batch, length)" if shape is None else str(tuple(shape))
        raise user_error(f"{who} got {got}.", expected=f"integers of shape {wanted}")
    if count is None or torch.compiler.is_compiling() or not ids.is_cpu or ids.numel() == 0:
        return  # a GPU would have to wait for the answer
    low, high = (int(v) for v in torch.aminmax(ids))
    if low < 0 or high >= count:
        what = "token " if shape is None else ""
        raise user_error(
            f"{who} got {what}{low if low < 0 else high}.", expected=f"0 to {count - 1}, as {limit}"
        )

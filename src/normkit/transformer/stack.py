"""Layers one after the other: a block is two or three residual sublayers, a stack is blocks and an end."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from normkit.errors import user_error
from normkit.placement import FinalNorm, Residual, Stream, placement_at
from normkit.placement.table import PlacementLike
from normkit.transformer.attention import Attention
from normkit.transformer.cache import Cache
from normkit.transformer.config import Config
from normkit.transformer.feed_forward import FeedForward
from normkit.transformer.positions import Rotary, token_positions

__all__ = ["Block", "Stack"]


class Parallel(nn.Module):
    """Attention and feed-forward side by side: A(x) + F(x). Reference: GPT-J; Chowdhery et al. 2022,
    arXiv:2204.02311."""

    def __init__(self, attention: Attention, feed_forward: FeedForward) -> None:
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward
        self.inner = tuple({*attention.inner, *feed_forward.inner})

    def initialise(self, gain: float = 1.0) -> None:
        self.attention.initialise(gain)
        self.feed_forward.initialise(gain)

    def forward(self, x: Tensor, *, mask: Tensor | None = None, **reading: Any) -> Tensor:
        y: Tensor = self.attention(x, mask=mask, **reading) + self.feed_forward(x, mask=mask)
        return y


class Block(nn.Module):
    """One layer: attention, attention to an encoder if there is one, feed-forward."""

    def __init__(self, config: Config, placement: PlacementLike, layer: int, crosses: bool = False) -> None:
        super().__init__()
        self.layer = layer

        def residual(fn: nn.Module, kind: str) -> Residual:
            place: dict[str, Any] = {
                "layer": layer + 1,
                "depth": config.depth,
                "kind": kind,
                "dropout": config.dropout,
            }
            return Residual(fn, config.dim, placement, config.norm_factory, **place)

        def attention(kind: str) -> Attention:
            return Attention(
                config.dim,
                config.heads,
                kv_heads=config.kv_heads,
                head_dim=config.head_dim,
                bias=config.bias,
                norm=config.norm_factory,
                qk_norm=config.qk_norm,
                inner=placement_at(placement, layer + 1, config.depth, kind).inner,
                dropout=config.dropout,
            )

        feed_forward = FeedForward(
            config.dim,
            config.ffn_dim,
            activation=config.activation,
            bias=config.bias,
            norm=config.norm_factory,
            inner=placement_at(placement, layer + 1, config.depth, "feed_forward").inner,
        )
        own = attention("attention")
        self.attention = residual(Parallel(own, feed_forward) if config.parallel else own, "attention")
        self.cross = residual(attention("cross_attention"), "cross_attention") if crosses else None
        self.feed_forward = None if config.parallel else residual(feed_forward, "feed_forward")

    def forward(
        self,
        stream: Stream,
        mask: Tensor | None,
        reading: dict[str, Any],
        crossing: dict[str, Any] | None = None,
    ) -> Stream:
        """``reading`` and ``crossing`` are what attention is told, to these tokens and to an encoder's."""
        stream = self.attention(stream, mask=mask, layer=self.layer, **reading)
        if self.cross is not None and crossing is not None:
            stream = self.cross(stream, mask=mask, layer=self.layer, **crossing)
        if self.feed_forward is not None:
            stream = self.feed_forward(stream, mask=mask)
        return stream


class Stack(nn.Module):
    """Blocks, and what a placement ends with.

    Shape: (B, T, dim) -> the same.
    """

    def __init__(
        self, config: Config, placement: PlacementLike, *, causal: bool, crosses: bool = False
    ) -> None:
        super().__init__()
        self.causal, self.checkpoint = causal, config.checkpoint
        self.blocks = nn.ModuleList(Block(config, placement, k, crosses) for k in range(config.depth))
        rules = [r.placement for r in self.blocks.modules() if isinstance(r, Residual)]
        if len({rule.dual for rule in rules}) > 1:
            raise user_error(
                "Some sublayers have a second stream, some have not.", expected="dual= in all, or none"
            )
        if config.checkpoint and next(self.blocks.buffers(), None) is not None:
            raise user_error(
                "checkpoint=True came with a norm that keeps running statistics.",
                expected="a norm without: computed twice, it would count every batch twice",
            )
        self.final = FinalNorm(config.dim, rules[-1], config.norm_factory)
        rotary = config.positions == "rotary"
        self.rotary = Rotary(config.head_size, config.context, config.rope_theta) if rotary else None

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
        cache: Cache | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """
        Args:
            mask: True for real tokens, (B, T); with a cache, for all tokens so far.
            positions: of the tokens, (T,) or (B, T). If left out, they are counted: from the first real
                token, anew in every segment, and on from what is in the cache.
            segments: which sequence each token belongs to; only those of the same one see each other.
            memory, memory_mask: an encoder's output, and which of its tokens are real.
        """
        past = 0 if cache is None else cache.length
        new = mask if mask is None else mask[:, past:]
        reading: dict[str, Any] = {
            "allowed": _allowed(x.shape[1], past, mask, segments, self.causal, x.device),
            "causal": self.causal,
            "cache": cache,
        }
        if self.rotary is not None:
            if positions is None:
                positions = self._counted(x, past, mask, segments)
            reading["angles"] = self.rotary(positions)
        crossing: dict[str, Any] | None = None
        if memory is not None:
            seen = None if memory_mask is None else memory_mask[:, None, None]
            crossing = {"memory": memory, "allowed": seen, "memory_mask": memory_mask, "cache": cache}
        stream = Stream(x)
        for block in self.blocks:
            if self.checkpoint and self.training and torch.is_grad_enabled():
                stream = checkpoint(block, stream, new, reading, crossing, use_reentrant=False)
            else:
                stream = block(stream, new, reading, crossing)
        if cache is not None:
            cache.advance(x.shape[1])
        return self.final(stream, new)

    def _counted(self, x: Tensor, past: int, mask: Tensor | None, segments: Tensor | None) -> Tensor:
        """The positions of tokens of which nobody has said any."""
        assert self.rotary is not None
        length = past + x.shape[1]
        if length > self.rotary.context:
            raise user_error(
                f"A Stack got a sequence of {length} tokens.",
                expected=f"at most context={self.rotary.context}",
                fix=f"cut it, or build the model with context={length}.",
            )
        return token_positions(x.shape[1], past, mask, segments, x.device)


def _allowed(
    length: int, past: int, mask: Tensor | None, segments: Tensor | None, causal: bool, device: torch.device
) -> Tensor | None:
    """True where a token may read, (B or 1, 1, T, S); None if the causal rule says it all, or nothing does.

    Padding may read itself: a softmax over nothing would be NaN, and a NaN would spread in the backward.
    """
    plain = mask is None and segments is None
    if plain and (not causal or past == 0 or length == 1):
        return None
    rows = torch.arange(past, past + length, device=device)[:, None]
    columns = torch.arange(past + length, device=device)[None]
    allowed = (columns <= rows)[None] if causal else None
    if mask is not None:
        allowed = mask[:, None] if allowed is None else allowed & mask[:, None]
        allowed = allowed | (rows == columns)
    if segments is not None:
        same = segments[:, :, None] == segments[:, None]
        allowed = same if allowed is None else allowed & same
    assert allowed is not None
    return allowed[:, None]

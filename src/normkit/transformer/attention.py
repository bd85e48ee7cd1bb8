"""Attention: every token reads from those it may see.

Shapes are named by their letters: B batch, T tokens, S tokens that are read from, H query heads, K heads of
keys and values, D features of a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normkit.placement.choice import Maker, apply_norm, make_norm
from normkit.transformer.cache import Cache
from normkit.transformer.linear import Linear
from normkit.transformer.positions import turn

__all__ = ["Attention"]


class Attention(nn.Module):
    r"""Multi-head attention through torch's ``scaled_dot_product_attention``.

        y = output( softmax(q kᵀ / sqrt(D)) v ),   (q, k, v) = qkv(x)

    Shape: (B, T, dim) -> (B, T, dim).

    Args:
        dim, heads: features of the stream, number of heads.
        kv_heads: heads of keys and values; each serves several query heads.
        head_dim: features of a head; ``dim / heads`` if left out.
        norm: what ``qk_norm`` and ``inner`` norms are.
        qk_norm: normalise queries and keys of every head.
        inner: norms that a placement puts inside: "output", "qkv", "heads".

    References: Vaswani et al. 2017, arXiv:1706.03762; grouped queries: Ainslie et al. 2023, arXiv:2305.13245;
    QK-norm: Henry et al. 2020, arXiv:2010.04245.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        norm: Maker = "layer",
        qk_norm: bool = False,
        inner: tuple[str, ...] = (),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.size = size = head_dim or dim // heads
        self.inner, self.dropout = inner, dropout
        self.qkv = Linear(dim, (heads + 2 * self.kv_heads) * size, bias)
        self.output = Linear(heads * size, dim, bias)
        every = "qkv" in inner
        self.query_norm = make_norm(norm, size) if every or qk_norm else None
        self.key_norm = make_norm(norm, size) if every or qk_norm else None
        self.value_norm = make_norm(norm, size) if every else None
        self.inner_norm = make_norm(norm, heads * size) if "output" in inner else None
        self.head_scale = nn.Parameter(torch.ones(heads)) if "heads" in inner else None

    def initialise(self, gain: float = 1.0) -> None:
        """Xavier's; values and output times ``gain``. Biases are 0."""
        query, key, value = self.qkv.weight.detach().split(self._widths)
        for weight, own in ((query, 1.0), (key, 1.0), (value, gain), (self.output.weight, gain)):
            nn.init.xavier_normal_(weight, own)
        for bias in (self.qkv.bias, self.output.bias):
            if bias is not None:
                nn.init.zeros_(bias)

    @property
    def _widths(self) -> list[int]:
        return [self.heads * self.size, self.kv_heads * self.size, self.kv_heads * self.size]

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        allowed: Tensor | None = None,
        causal: bool = False,
        angles: tuple[Tensor, Tensor] | None = None,
        cache: Cache | None = None,
        layer: int = 0,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """
        Args:
            memory: read from these tokens instead of ``x``, an encoder's output.
            allowed: True where a token (B or 1, 1, T, S) may read; with it, ``causal`` is not looked at.
            angles: of rotary positions.
            cache, layer: keys and values so far, and which of its layers this is.
            mask, memory_mask: real tokens (B, T) and (B, S), for norms whose statistics go across tokens.
        """
        query, key, value = self._project(x, memory, cache, layer, mask, memory_mask)
        if angles is not None:
            query, key = turn(query, angles), turn(key, angles)
        if cache is not None and memory is None:
            key, value = cache.append(layer, key, value)
        y = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=allowed,
            is_causal=causal and allowed is None and query.shape[-2] > 1,
            dropout_p=self.dropout if self.training else 0.0,
            enable_gqa=self.heads != self.kv_heads,
        )
        if self.head_scale is not None:
            y = y * self.head_scale[:, None, None]
        y = y.transpose(1, 2).flatten(2)
        if self.inner_norm is not None:
            y = apply_norm(self.inner_norm, y, mask)
        return self.output(y)

    def _project(
        self,
        x: Tensor,
        memory: Tensor | None,
        cache: Cache | None,
        layer: int,
        mask: Tensor | None,
        memory_mask: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q of shape BHTD, k and v of shape BKSD."""
        widths = self._widths
        if memory is None:
            query, key, value = self.qkv(x).split(widths, -1)
            memory_mask = mask
        else:
            both = [widths[0], 2 * widths[1]]
            weights = self.qkv.weight.split(both)
            biases = (None, None) if self.qkv.bias is None else self.qkv.bias.split(both)
            query = F.linear(x, weights[0], biases[0])
            if cache is not None and layer in cache.crossed:
                return self._heads(query, self.heads, self.query_norm, mask), *cache.crossed[layer]
            key, value = F.linear(memory, weights[1], biases[1]).split(widths[1:], -1)
        query = self._heads(query, self.heads, self.query_norm, mask)
        key = self._heads(key, self.kv_heads, self.key_norm, memory_mask)
        value = self._heads(value, self.kv_heads, self.value_norm, memory_mask)
        if cache is not None and memory is not None:
            cache.crossed[layer] = key, value
        return query, key, value

    def _heads(self, x: Tensor, heads: int, norm: nn.Module | None, mask: Tensor | None) -> Tensor:
        split = x.unflatten(-1, (heads, self.size))  # BTHD
        if norm is None:
            return split.transpose(1, 2)
        if norm.takes_mask:  # statistics across tokens: every head of a token is one more of them
            flat = None if mask is None else mask.repeat_interleave(heads, 1)
            return apply_norm(norm, split.flatten(1, 2), flat).unflatten(1, (-1, heads)).transpose(1, 2)
        return apply_norm(norm, split).transpose(1, 2)

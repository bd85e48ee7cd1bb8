"""Attention: every token reads from those it may see.

Shapes are named by their letters: B batch, T tokens, S tokens that are read from, H query heads, K heads of
keys and values, D features of a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normkit.placement.norm_factory import NormFactory, apply_norm, make_norm, takes_mask
from normkit.transformer.cache import Cache
from normkit.transformer.linear import project
from normkit.transformer.positions import apply_rotary

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
        norm: NormFactory = "layer",
        qk_norm: bool = False,
        inner: tuple[str, ...] = (),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.size = size = head_dim or dim // heads
        self.inner, self.dropout = inner, dropout
        self.qkv = nn.Linear(dim, (heads + 2 * self.kv_heads) * size, bias)
        self.output = nn.Linear(heads * size, dim, bias)
        all_three = "qkv" in inner
        self.query_norm = make_norm(norm, size) if all_three or qk_norm else None
        self.key_norm = make_norm(norm, size) if all_three or qk_norm else None
        self.value_norm = make_norm(norm, size) if all_three else None
        self.inner_norm = make_norm(norm, heads * size) if "output" in inner else None
        self.head_scale = nn.Parameter(torch.ones(heads)) if "heads" in inner else None

    def initialise(self, gain: float = 1.0) -> None:
        """Xavier's; values and output times ``gain``. Biases are 0."""
        sizes = [heads * self.size for heads in (self.heads, self.kv_heads, self.kv_heads)]
        query, key, value = self.qkv.weight.detach().split(sizes)
        for weight, own in ((query, 1.0), (key, 1.0), (value, gain), (self.output.weight, gain)):
            nn.init.xavier_normal_(weight, own)
        for bias in (self.qkv.bias, self.output.bias):
            if bias is not None:
                nn.init.zeros_(bias)

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
        if memory is None:
            query, key, value = self._own(x, angles, mask)
        else:
            query, key, value = self._across(x, memory, cache, layer, mask, memory_mask)
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
        return project(self.output, y)

    def _own(
        self, x: Tensor, angles: tuple[Tensor, Tensor] | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q of shape BHTD, k and v of shape BKTD, of the tokens themselves."""
        heads, kv_heads = self.heads, self.kv_heads
        qkv = project(self.qkv, x).view(x.shape[0], x.shape[1], heads + 2 * kv_heads, self.size)
        if self.query_norm is not None:
            query, key, value = qkv.split((heads, kv_heads, kv_heads), 2)
            query = _normed(self.query_norm, query, mask)
            key = _normed(self.key_norm, key, mask)
            qkv = torch.cat([query, key, _normed(self.value_norm, value, mask)], 2)
        qkv = qkv.transpose(1, 2)
        if angles is None:
            query, key, value = qkv.split((heads, kv_heads, kv_heads), 1)
            return query, key, value
        both, value = qkv.split((heads + kv_heads, kv_heads), 1)
        query, key = apply_rotary(both, angles).split((heads, kv_heads), 1)  # in one go
        return query, key, value

    def _across(
        self,
        x: Tensor,
        memory: Tensor,
        cache: Cache | None,
        layer: int,
        mask: Tensor | None,
        memory_mask: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same with keys and values of an encoder's output, which a cache keeps."""
        query = self._heads(self._part(x, 0), self.query_norm, mask)
        if cache is not None and layer in cache.crossed:
            return query, *cache.crossed[layer]
        key, value = self._part(memory, 1).chunk(2, -1)
        key = self._heads(key, self.key_norm, memory_mask)
        value = self._heads(value, self.value_norm, memory_mask)
        if cache is not None:
            cache.crossed[layer] = key, value
        return query, key, value

    def _part(self, x: Tensor, part: int) -> Tensor:
        """Queries (0), or keys and values (1), of ``x``."""
        sizes = [self.heads * self.size, 2 * self.kv_heads * self.size]
        if type(self.qkv) is not nn.Linear:  # quantised, or with an adapter: it gives all of them
            return self.qkv(x).split(sizes, -1)[part]
        bias = None if self.qkv.bias is None else self.qkv.bias.split(sizes)[part]
        return F.linear(x, self.qkv.weight.split(sizes)[part], bias)

    def _heads(self, x: Tensor, norm: nn.Module | None, mask: Tensor | None) -> Tensor:
        return _normed(norm, x.unflatten(-1, (-1, self.size)), mask).transpose(1, 2)


def _normed(norm: nn.Module | None, x: Tensor, mask: Tensor | None) -> Tensor:
    """A norm of every head, (B, T, heads, D). Where statistics go across tokens, each head is one more."""
    if norm is None:
        return x
    if not takes_mask(norm):
        return apply_norm(norm, x)
    heads = x.shape[2]
    flat = None if mask is None else mask.repeat_interleave(heads, 1)
    return apply_norm(norm, x.flatten(1, 2), flat).unflatten(1, (-1, heads))

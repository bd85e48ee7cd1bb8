"""Where a token stands: turned pairs, a learned vector, or sinusoids of many lengths."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["Rotary", "apply_rotary", "runs", "sinusoid_table", "token_positions"]


class Rotary(nn.Module):
    r"""Turn each pair of features of queries and keys by an angle that grows with the position.

        (a, b) -> (a cos(p f) - b sin(p f), b cos(p f) + a sin(p f)),   f = theta^(-2i/d)

    Pairs are (i, i + d/2), as in Llama.

    Reference: Su et al. 2021, arXiv:2104.09864.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, size: int, context: int, theta: float = 10000.0) -> None:
        super().__init__()
        self.size, self.context, self.theta = size, context, theta
        cos, sin = self._tables()
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def _tables(self) -> tuple[Tensor, Tensor]:
        """In float32, as the models were trained whose weights are read: exact angles would be others.

        The sine of the first half is negated, so that turning is two products and a roll.
        """
        steps = torch.arange(0, self.size, 2).float() / self.size
        angles = torch.arange(self.context).float()[:, None] * (1.0 / self.theta**steps)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)

    def _apply(self, fn, recurse=True):  # type: ignore[no-untyped-def]  # torch's own has no types
        """A model in half precision keeps its angles: bfloat16 cannot tell position 257 from 258."""
        empty = self.cos.is_meta
        result = super()._apply(fn, recurse)
        if self.cos.dtype in (torch.float16, torch.bfloat16) or (empty and not self.cos.is_meta):
            self.cos, self.sin = (t.to(self.cos.device) for t in self._tables())
        return result

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines for (T,) or (B, T), ready to broadcast over heads: (..., 1, T, size)."""
        return self.cos[positions].unsqueeze(-3), self.sin[positions].unsqueeze(-3)


def apply_rotary(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """x of shape (B, heads, T, size)."""
    cos, sin = angles
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin).to(x.dtype)


def sinusoid_table(context: int, dim: int) -> Tensor:
    """The table of Vaswani et al. 2017: sines in even features, cosines in odd ones."""
    steps = torch.exp(torch.arange(0, dim, 2, dtype=torch.float64) * (-math.log(10000.0) / dim))
    angles = torch.arange(context, dtype=torch.float64)[:, None] * steps
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)[:, :dim].float()


def token_positions(
    length: int, past: int, mask: Tensor | None, segments: Tensor | None, device: torch.device
) -> Tensor:
    """The position of every token: counted from the first real one, and anew in every segment."""
    if segments is not None:
        real = torch.ones_like(segments) if mask is None else mask.long()
        before = real.cumsum(-1) - real
        return before - torch.where(_starts(segments), before, 0).cummax(-1).values
    if mask is not None:
        return (mask.long().cumsum(-1) - 1).clamp_min(0)[:, past:]
    return torch.arange(past, past + length, device=device)


def runs(segments: Tensor) -> Tensor:
    """Neighbours with the same number are one sequence; the number may come again for another one."""
    return _starts(segments).cumsum(-1)


def _starts(segments: Tensor) -> Tensor:
    starts = torch.ones_like(segments, dtype=torch.bool)
    starts[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return starts

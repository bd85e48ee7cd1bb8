"""Mean and variance of groups, exact for any mean, any magnitude, any mask and any number of processes.

With two constants, a ``shift`` close to the mean and a ``scale`` that is a power of two,

    d     = scale * (x - shift)           exact in floating point where x is close to shift
    mean  = E[d]                          tiny: it corrects what rounding left in shift
    var   = E[d²] - mean²                 no cancellation, for the same reason
    x_hat = (d - mean) / sqrt(var + scale² * eps)

x_hat depends on neither constant, so no gradient flows through them, and gradients are as exact as the
output. All of it runs in float32 or wider, in differentiable torch operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from normkit.kernels.collectives import all_reduce_sum

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["Moments", "moments", "valid", "widen", "widest"]


class Moments(NamedTuple):
    """The statistics of every group, in the units of ``d``. Reduced axes have size 1."""

    centered: Tensor
    mean: Tensor | float
    var: Tensor
    shift: Tensor | float
    scale: Tensor | float
    n: Tensor | int  # how many values

    def x_hat(self, eps: float) -> Tensor:
        # eps shrinks with the numbers; should nothing of it be left, a constant group must still give 0.
        eps_d = eps * self.scale * self.scale
        if isinstance(self.scale, Tensor):
            eps_d = eps_d + (self.scale < 1).to(self.var.dtype) * torch.finfo(self.var.dtype).tiny
        # Not times rsqrt: its derivative, the third power, overflows where eps_d is tiny.
        return self.centered / torch.sqrt(self.var + eps_d)

    def batch_mean(self) -> Tensor:
        return torch.as_tensor(self.shift + self.mean / self.scale)

    def unbiased_var(self) -> Tensor:
        """In the widest dtype: what it is averaged into may hold more than the dtype of the input does."""
        wide = widest(self.var.device)
        n = self.n.to(wide) if isinstance(self.n, Tensor) else self.n
        return self.var.to(wide) / self.scale / self.scale * (n / _at_least_1(n - 1))


def moments(
    x: Tensor,
    axes: Sequence[int],
    *,
    center: bool = True,
    mask: Tensor | None = None,
    group: ProcessGroup | None = None,
    eps: float = 1e-5,
) -> Moments:
    """The moments over ``axes``, of the valid values alone, over all processes of ``group``.

    ``center=False`` takes the second moment about 0, for RMSNorm. ``eps`` is what will be added to the
    variance: if that is nothing, small numbers are enlarged, whose squares would vanish.
    """
    x = valid(widen(x), mask)
    fixed = x.detach()
    count: Tensor | int = math.prod([x.shape[a] for a in axes])
    if mask is not None:
        count = _sum(mask.expand(x.shape), axes)
    peak = _peak(fixed, axes)
    if not center:
        scale = _scale(peak, x.dtype, eps)
        d = x * scale
        return Moments(d, 0.0, _accurate_sum(d * d, axes) / _at_least_1(count), 0.0, scale, count)

    # In float64 the mean of equal numbers is that number, and a constant group gives 0. There is no wider
    # dtype for the sum of float64 itself, which may overflow: it is taken of smaller numbers.
    shrink = 2.0**-40 if x.dtype == torch.float64 else 1.0
    first = _sum(fixed * shrink if shrink < 1 else fixed, axes, widest(x.device))
    if group is not None:  # the sum of all peaks bounds the numbers as well as the largest peak does
        parts = [
            torch.as_tensor(p, device=x.device).to(first.dtype).expand_as(first) for p in (count, first, peak)
        ]
        count, first, peak = all_reduce_sum(torch.stack(parts), group).unbind()
        count = count.to(x.dtype)  # float64 would spread to everything that is divided by it
    n = _at_least_1(count)
    shift, scale = (first / n / shrink).to(x.dtype), _scale(peak, x.dtype, eps)
    d = valid(x * scale - shift * scale, mask)
    sums: Sequence[Tensor] = [_accurate_sum(d, axes), _accurate_sum(d * d, axes)]
    if group is not None:
        sums = all_reduce_sum(torch.stack(list(sums)), group).unbind()
    mean = sums[0] / n
    return Moments(valid(d - mean, mask), mean, sums[1] / n - mean * mean, shift, scale, count)


def valid(x: Tensor, mask: Tensor | None) -> Tensor:
    """Zero the padding. Its gradient is zero too, even where it holds NaN."""
    return x if mask is None else torch.where(mask, x, 0)


def widen(x: Tensor) -> Tensor:
    """The dtype that everything is computed in: float32, or the tensor's own where that is wider."""
    return x.to(torch.float32 if torch.finfo(x.dtype).bits < 32 else x.dtype)


def widest(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64


def _sum(x: Tensor, axes: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    return x.sum(list(axes), keepdim=True, dtype=dtype) if axes else x.to(dtype or x.dtype)


def _accurate_sum(x: Tensor, axes: Sequence[int]) -> Tensor:
    """On a CPU torch adds up strided numbers one after the other, which costs float32 its last digits."""
    if not x.is_cpu or x.is_complex():
        return _sum(x, axes)
    return _sum(x, axes, widest(x.device)).to(x.dtype)


def _peak(x: Tensor, axes: Sequence[int]) -> Tensor:
    """The largest magnitude of every group; 0 for a group of nothing, which has none."""
    if not axes or x.numel() == 0:
        return _sum(x.abs(), axes)
    if x.is_complex():
        return x.abs().amax(list(axes), keepdim=True)
    return torch.maximum(x.amax(list(axes), keepdim=True).abs(), x.amin(list(axes), keepdim=True).abs())


def _scale(peak: Tensor, dtype: torch.dtype, eps: float) -> Tensor:
    """1 for ordinary numbers; for large ones the power of two that keeps their squares from overflowing."""
    finfo = torch.finfo(dtype)
    limit = finfo.max**0.25
    scale = (2.0 ** torch.floor(torch.log2(limit / peak))).clamp_max(
        1 if eps > finfo.tiny**0.75 else limit**3
    )
    # nothing to keep where the peak is infinite, nothing to enlarge where it is 0
    return torch.where((scale == 0) | (peak == 0), 1, scale).to(_real(dtype))


def _real(dtype: torch.dtype) -> torch.dtype:
    return dtype.to_real() if dtype.is_complex else dtype


def _at_least_1(count: Tensor | int) -> Tensor | int:
    return count.clamp_min(1) if isinstance(count, Tensor) else max(count, 1)

"""The reference backend: plain torch, and *the* definition that every other backend is tested against.

One function holds the mathematics. With a constant ``shift`` close to the mean,

    d     = x - shift                     exact in floating point where x is close to shift
    mean  = E[d]                          tiny: it corrects what rounding left in shift
    var   = E[d²] - mean²                 no cancellation, for the same reason
    x_hat = (d - mean) / sqrt(var + eps)
    y     = x_hat * weight + bias

The result does not depend on ``shift``, so no gradient flows through it. All of it runs in float32 or
wider, and only differentiable torch operations are used: gradients of any order, vmap, jvp, compile,
export and DTensor follow from torch. Arguments have been checked by ``normkit.functional``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from normkit.kernels.collectives import all_reduce_sum

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "batch_norm",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "normalize",
    "refuses",
    "rms_norm",
    "widen",
]


def refuses(op: str, x: Tensor, **call: object) -> str | None:
    """Why this backend cannot take a call: the reference takes every one."""
    return None


def normalize(
    x: Tensor,
    *,
    axes: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    center: bool = True,
    mask: Tensor | None = None,
) -> Tensor:
    """Normalise over ``axes``. ``weight``, ``bias`` and ``mask`` broadcast against ``x``."""
    x_hat = _moments(x, axes, center=center, mask=mask).x_hat(eps)
    return _affine(x_hat, weight, bias, mask).to(x.dtype)


def layer_norm(
    x: Tensor, *, axes: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    return normalize(
        x, axes=axes, weight=_along(axes, x.ndim, weight), bias=_along(axes, x.ndim, bias), eps=eps
    )


def rms_norm(
    x: Tensor,
    *,
    axes: Sequence[int],
    weight: Tensor | None,
    eps: float,
    zero_centered_weight: bool = False,
    multiply: str = "before_cast",
) -> Tensor:
    x_hat = _moments(x, axes, center=False).x_hat(eps)
    weight = _along(axes, x.ndim, weight)
    if weight is not None and multiply == "after_cast":
        return x_hat.to(x.dtype) * (1 + weight if zero_centered_weight else weight)
    if weight is not None and zero_centered_weight:
        weight = 1 + weight.to(x_hat.dtype)
    return _affine(x_hat, weight).to(x.dtype)


def group_norm(
    x: Tensor,
    *,
    num_groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    axis: int = 1,
    mask: Tensor | None = None,
) -> Tensor:
    """Split the channels, normalise each group, and put them together again."""

    def split(value: Tensor, at: int) -> Tensor:
        return value.unflatten(at, (num_groups, value.shape[at] // num_groups))

    channels = (axis, axis + 1)
    y = normalize(
        split(x, axis),
        axes=[i for i in range(1, x.ndim + 1) if i != axis],
        weight=None if weight is None else _along(channels, x.ndim + 1, split(weight, 0)),
        bias=None if bias is None else _along(channels, x.ndim + 1, split(bias, 0)),
        eps=eps,
        mask=None if mask is None else split(mask.expand(x.shape), axis),
    )
    return y.flatten(*channels)


def batch_norm(
    x: Tensor,
    *,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float | Tensor,
    eps: float,
    axis: int = 1,
    mask: Tensor | None = None,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """The output uses the biased variance; the running variance is fed with the unbiased one."""
    if training:
        moments = _moments(x, _all_but(axis, x.ndim), mask=mask, group=process_group)
        _update(running_mean, moments.mean, moments.count, momentum)
        _update(running_var, moments.unbiased_var, moments.count, momentum)
    else:
        moments = _known(x, running_mean, running_var, axis, mask)
    return _per_channel(x, moments, weight, bias, eps, axis, mask)


def instance_norm(
    x: Tensor,
    *,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    use_input_stats: bool,
    momentum: float | Tensor,
    eps: float,
    axis: int = 1,
    mask: Tensor | None = None,
) -> Tensor:
    """Running statistics follow the average, over instances, of the mean and the unbiased variance."""
    if use_input_stats:
        moments = _moments(x, _all_but(axis, x.ndim)[1:], mask=mask)
        seen = None if mask is None else moments.count > 0  # an instance of padding alone has no statistics
        for running, value in ((running_mean, moments.mean), (running_var, moments.unbiased_var)):
            average = _moments(value, [0], mask=seen)
            _update(running, average.mean, average.count, momentum)
    else:
        moments = _known(x, running_mean, running_var, axis, mask)
    return _per_channel(x, moments, weight, bias, eps, axis, mask)


def add_layer_norm(x: Tensor, *, residual: Tensor, **call: Any) -> tuple[Tensor, Tensor]:
    """The sum is rounded to its dtype before it is normalised: fused or not, the numbers are the same."""
    total = x + residual
    return layer_norm(total, **call).to(x.dtype), total


def add_rms_norm(x: Tensor, *, residual: Tensor, **call: Any) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, **call).to(x.dtype), total


class _Moments(NamedTuple):
    """The statistics of every group, and the input with their mean taken off."""

    centered: Tensor
    mean: Tensor
    var: Tensor
    count: Tensor | int

    def x_hat(self, eps: float) -> Tensor:
        return self.centered * torch.rsqrt(self.var + eps)

    @property
    def unbiased_var(self) -> Tensor:
        return self.var * (self.count / _at_least_1(self.count - 1))


def _moments(
    x: Tensor,
    axes: Sequence[int],
    *,
    center: bool = True,
    mask: Tensor | None = None,
    group: ProcessGroup | None = None,
) -> _Moments:
    """Take the moments over ``axes``, of the valid values alone, over all processes of ``group``."""
    x = _valid(widen(x), mask)

    def total(*values: Tensor) -> Sequence[Tensor]:
        sums = [v.sum(axes, keepdim=True) if axes else v for v in values]
        return sums if group is None else all_reduce_sum(torch.stack(sums), group).unbind()

    count: Tensor | int = math.prod([x.shape[a] for a in axes])
    if mask is not None or group is not None:
        valid = torch.ones_like(x, dtype=torch.bool) if mask is None else mask.expand(x.shape)
        (count,) = total(valid)
    n = _at_least_1(count)

    if not center:
        (sum_xx,) = total(x * x)
        return _Moments(x, torch.zeros_like(sum_xx), sum_xx / n, count)

    fixed = x.detach()
    (first,) = total(fixed)
    # A second look, because the mean of equal numbers can miss them by a rounding: a constant group gives 0.
    (second,) = total(_valid(fixed - first / n, mask))
    shift = first / n + second / n
    d = _valid(x - shift, mask)
    sum_d, sum_dd = total(d, d * d)
    mean = sum_d / n
    return _Moments(_valid(d - mean, mask), shift + mean, sum_dd / n - mean * mean, count)


def _known(
    x: Tensor, mean: Tensor | None, var: Tensor | None, axis: int, mask: Tensor | None
) -> _Moments:
    """The moments of evaluation: the running ones."""
    mean, var = _along((axis,), x.ndim, mean), _along((axis,), x.ndim, var)
    assert mean is not None
    assert var is not None
    x = widen(x)
    return _Moments(_valid(x - mean.to(x.dtype), mask), mean, var.to(x.dtype), count=0)


def _per_channel(
    x: Tensor,
    moments: _Moments,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    axis: int,
    mask: Tensor | None,
) -> Tensor:
    weight, bias = _along((axis,), x.ndim, weight), _along((axis,), x.ndim, bias)
    return _affine(moments.x_hat(eps), weight, bias, mask).to(x.dtype)


def _affine(
    x_hat: Tensor, weight: Tensor | None, bias: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """Parameters are widened first, so that their gradients are summed in the wide dtype too."""
    y = x_hat if weight is None else x_hat * widen(weight)
    return _valid(y if bias is None else y + widen(bias), mask)


def _update(
    running: Tensor | None, value: Tensor, count: Tensor | int, momentum: float | Tensor
) -> None:
    """Move a running statistic towards ``value``, except where there was nothing to see."""
    if running is None or (isinstance(count, int) and count == 0):
        return
    with torch.no_grad():
        old, new = widen(running), value.reshape(running.shape)
        moved = (1 - momentum) * old + momentum * new
        if isinstance(count, Tensor):
            moved = torch.where(count.reshape(-1) > 0, moved, old)
        running.copy_(moved)


def _valid(x: Tensor, mask: Tensor | None) -> Tensor:
    """Zero the padding. Its gradient is zero too, even where it holds NaN."""
    return x if mask is None else torch.where(mask, x, 0)


def widen(x: Tensor) -> Tensor:
    """The dtype that everything is computed in: float32, or the input's own where that is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _at_least_1(count: Tensor | int) -> Tensor | int:
    return count.clamp_min(1) if isinstance(count, Tensor) else max(count, 1)


def _all_but(axis: int, ndim: int) -> list[int]:
    return [i for i in range(ndim) if i != axis]


def _along(axes: Sequence[int], ndim: int, parameter: Tensor | None) -> Tensor | None:
    """View a parameter so that its axes lie along ``axes`` of an input with ``ndim`` axes."""
    if parameter is None or list(axes) == list(range(ndim - parameter.ndim, ndim)):
        return parameter
    shape = [1] * ndim
    for axis, size in zip(axes, parameter.shape, strict=True):
        shape[axis] = size
    return parameter.reshape(shape)

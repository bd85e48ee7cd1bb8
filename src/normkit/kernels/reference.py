"""The reference backend: plain torch, and *the* definition that every other backend is tested against.

    y = x_hat * weight + bias

where x_hat comes from ``moments``, which holds the mathematics; each norm says over which axes to take them.
Gradients of any order, vmap, jvp, compile, export and DTensor follow from torch. Arguments have been checked
by ``normkit.functional``: axes count from the front, a mask broadcasts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from normkit.kernels.moments import Moments, moments, valid, widen, widest

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
    "rms_norm",
]


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
    x_hat = moments(x, axes, center=center, mask=mask, eps=eps).x_hat(eps)
    return affine(x_hat, weight, bias, mask).to(x.dtype)


def layer_norm(
    x: Tensor, *, axes: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    return normalize(
        x, axes=axes, weight=along(axes, x.ndim, weight), bias=along(axes, x.ndim, bias), eps=eps
    )


def rms_norm(
    x: Tensor,
    *,
    axes: Sequence[int],
    weight: Tensor | None,
    eps: float,
    zero_centered_weight: bool = False,
    multiply: str = "before_cast",
    dtype: torch.dtype | None = None,
) -> Tensor:
    """``dtype`` is what the result is cast to, and what "before" and "after" refer to: that of ``x``."""
    dtype = x.dtype if dtype is None else dtype
    x_hat = moments(x, axes, center=False, eps=eps).x_hat(eps)
    weight = along(axes, x.ndim, weight)
    if weight is not None and multiply == "after_cast":
        gain = 1 + weight if zero_centered_weight else weight
        y = widen(x_hat.to(dtype)) * widen(gain)  # one rounding, as in a product of narrow numbers
        return y.to(torch.promote_types(dtype, gain.dtype))
    if weight is not None and zero_centered_weight:
        weight = 1 + weight.to(torch.promote_types(weight.dtype, x_hat.dtype))  # a weight near -1 cancels
    return affine(x_hat, weight).to(dtype)


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
        weight=None if weight is None else along(channels, x.ndim + 1, split(weight, 0)),
        bias=None if bias is None else along(channels, x.ndim + 1, split(bias, 0)),
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
    momentum: float | None,
    eps: float,
    axis: int = 1,
    mask: Tensor | None = None,
    process_group: ProcessGroup | None = None,
    num_batches_tracked: Tensor | None = None,
) -> Tensor:
    """The output uses the biased variance; the running variance is fed with the unbiased one."""
    if training:
        stats = moments(x, all_but(axis, x.ndim), mask=mask, group=process_group)
        weight_of_batch = count_batch(num_batches_tracked, stats.n, momentum)
        update(running_mean, stats.batch_mean, stats.n > 0, weight_of_batch)
        update(running_var, stats.unbiased_var, stats.n > 1, weight_of_batch)
    else:
        stats = _running(x, running_mean, running_var, axis, mask)
    return _per_channel(x, stats, weight, bias, eps, axis, mask)


def instance_norm(
    x: Tensor,
    *,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    axis: int = 1,
    mask: Tensor | None = None,
) -> Tensor:
    """Running statistics follow the average, over instances, of the mean and the unbiased variance."""
    if use_input_stats:
        stats = moments(x, all_but(axis, x.ndim)[1:], mask=mask, eps=eps)
        # An instance of padding alone has no mean to contribute, and one of a single value no variance.
        update(running_mean, stats.batch_mean, stats.n > 0, momentum, average=True)
        update(running_var, stats.unbiased_var, stats.n > 1, momentum, average=True)
    else:
        stats = _running(x, running_mean, running_var, axis, mask)
    return _per_channel(x, stats, weight, bias, eps, axis, mask)


def add_layer_norm(x: Tensor, *, residual: Tensor, **call: Any) -> tuple[Tensor, Tensor]:
    """The sum is rounded to its dtype before it is normalised: fused or not, the numbers are the same."""
    total = x + residual
    return layer_norm(total, **call).to(x.dtype), total


def add_rms_norm(x: Tensor, *, residual: Tensor, **call: Any) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, dtype=x.dtype, **call), total


def known(x: Tensor, mean: Tensor, var: Tensor, mask: Tensor | None) -> Moments:
    """The moments of evaluation: given ones, which broadcast against ``x``."""
    x = widen(x)
    return Moments(valid(x - mean.to(x.dtype), mask), mean, var.to(x.dtype), shift=0.0, scale=1.0, n=0)


def _running(x: Tensor, mean: Tensor | None, var: Tensor | None, axis: int, mask: Tensor | None) -> Moments:
    mean, var = along((axis,), x.ndim, mean), along((axis,), x.ndim, var)
    assert mean is not None
    assert var is not None
    return known(x, mean, var, mask)


def _per_channel(
    x: Tensor,
    stats: Moments,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    axis: int,
    mask: Tensor | None,
) -> Tensor:
    weight, bias = along((axis,), x.ndim, weight), along((axis,), x.ndim, bias)
    return affine(stats.x_hat(eps), weight, bias, mask).to(x.dtype)


def affine(
    x_hat: Tensor, weight: Tensor | None, bias: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """Parameters are widened first, so that their gradients are summed in the wide dtype too."""
    x_hat = valid(x_hat, mask)  # a group that holds NaN has it in its padding as well
    y = x_hat if weight is None else x_hat * widen(weight)
    return y if bias is None else valid(y + widen(bias), mask)


@torch.no_grad()
def count_batch(counter: Tensor | None, n: Tensor | int, momentum: float | None) -> float | Tensor:
    """Count a batch that is not all padding; how much it weighs: momentum, or 1/k for the plain average."""
    if counter is not None:
        counter.add_((n > 0).any() if isinstance(n, Tensor) else 1)
    if momentum is not None:
        return momentum
    assert counter is not None
    return counter.clamp_min(1).to(widest(counter.device)).reciprocal()


@torch.no_grad()
def update(
    running: Tensor | None,
    statistic: Callable[[], Tensor],
    known: Tensor | bool,
    momentum: float | Tensor,
    *,
    average: bool = False,
) -> None:
    """Move a running statistic towards that of the input, or its average over samples, where it is known."""
    if running is None:
        return
    value = statistic()
    if average:
        stats = moments(value, [0], mask=known if isinstance(known, Tensor) else None)
        value, known = stats.batch_mean(), stats.n > 0
    if not (isinstance(known, Tensor) or known):
        return
    old, new = widen(running), value.reshape(running.shape)
    moved = (1 - momentum) * old + momentum * new
    running.copy_(torch.where(known.reshape(-1), moved, old) if isinstance(known, Tensor) else moved)


@torch.no_grad()
def move_running(
    running_mean: Tensor, running_var: Tensor, stats: Tensor, share: float | Tensor, *, average: bool = False
) -> None:
    """Move both towards the (mean, variance, count) of every channel, or of every instance of it."""
    mean, var, count = stats.unbind()
    unbiased = var * count / (count - 1).clamp_min(1)
    update(running_mean, lambda: mean, count > 0, share, average=average)
    update(running_var, lambda: unbiased, count > 1, share, average=average)


def all_but(axis: int, ndim: int) -> list[int]:
    return [i for i in range(ndim) if i != axis]


def along(axes: Sequence[int], ndim: int, parameter: Tensor | None) -> Tensor | None:
    """View a parameter so that its axes lie along ``axes`` of an input with ``ndim`` axes."""
    if parameter is None or list(axes) == list(range(ndim - parameter.ndim, ndim)):
        return parameter
    shape = [1] * ndim
    for axis, size in zip(axes, parameter.shape, strict=True):
        shape[axis] = size
    return parameter.reshape(shape)

"""Every grouping but that of the last axes: which five sizes describe it to the kernels, and its gradient.

The kernels see dense memory as (k0, r1, k2, r3, i): one mean for each (k0, k2), over r1, r3 and i. Parameters
lie along (k2, r3), the channels; or along r1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from normkit.kernels import reference
from normkit.kernels.cpu import rows
from normkit.kernels.cpu.eager import MODULE as _EAGER
from normkit.kernels.cpu.library import operator

__all__ = ["Plan", "is_dense", "memory_order", "norm", "plan", "plan_channels"]

# What may lie in each of the five: kept or reduced, and whether parameters lie along it.
_ALONG_CHANNELS = ("k", "r", "K", "R", "r")
_ALONG_ROWS = ("k", "R", "k", "", "")
_NO_PARAMETERS = ("k", "r", "k", "", "r")
_NEIGHBOURS = ("k", "", "", "", "r")  # rows, but for a mask


class Plan(NamedTuple):
    """How a norm is handed to the kernels, and what it is in the reference's words."""

    sizes: tuple[int, int, int, int, int]
    order: tuple[int, ...] | None  # the axes as they lie in memory; None: copy it, into their own order
    axes: tuple[int, ...]  # that share one mean
    along: tuple[int, ...]  # that parameters lie along, as they lie in memory
    channels: tuple[int, ...]  # along k2 and r3: a mask may not vary there
    on_rows: bool = False  # parameters along r1
    split: tuple[int, int] | None = None  # (axis, number of groups): axes count from a tensor split like this


def plan_channels(x: Tensor, axis: int, *, over_batch: bool, num_groups: int | None = None) -> Plan:
    """BatchNorm, InstanceNorm, GroupNorm: channels at ``axis``, in any layout, the common ones not copied."""
    rest = [a for a in range(1, x.ndim) if a != axis]
    contiguous = x.is_contiguous()
    last = not contiguous and _is_dense_in(x, (0, *rest, axis))
    make = _plan_channels if is_compiling() else _kept_plan  # a size that is a symbol cannot be kept
    return make(x.shape, axis, contiguous, last, over_batch, num_groups)


def _plan_channels(
    shape: Sequence[int], axis: int, contiguous: bool, last: bool, over_batch: bool, num_groups: int | None
) -> Plan:
    ndim = len(shape)
    rest = [a for a in range(1, ndim) if a != axis]
    if last:
        order: tuple[int, ...] | None = (0, *rest, axis)
        outer, inner = math.prod([shape[a] for a in rest]), 1
    else:
        order = tuple(range(ndim)) if contiguous else None
        outer, inner = math.prod([shape[a] for a in rest if a < axis]), math.prod(shape[axis + 1 :])
    n, channels = shape[0], shape[axis]
    if num_groups is not None:
        sizes = (n, outer, num_groups, channels // num_groups, inner)
        axes = tuple(a for a in range(1, ndim + 1) if a != axis)
        return Plan(sizes, order, axes, (axis, axis + 1), (axis,), split=(axis, num_groups))
    if over_batch:
        return Plan((1, n * outer, channels, 1, inner), order, (0, *rest), (axis,), (axis,))
    return Plan((n, outer, channels, 1, inner), order, tuple(rest), (axis,), (axis,))


_kept_plan = functools.lru_cache(maxsize=256)(_plan_channels)


def plan(x: Tensor, axes: Sequence[int], along: Sequence[int]) -> Plan | str:
    """Any norm over ``axes`` with parameters along the axes ``along``, or why the kernels cannot do it."""
    natural = tuple(range(x.ndim))
    order = memory_order(x)
    found = _plan_in(x, order, axes, along) if order is not None else None
    if found is None and order != natural:
        found = _plan_in(x, natural, axes, along)
        found = found and found._replace(order=None)
    return found or "shared axes, kept axes and axes with parameters alternate too often in memory"


def _plan_in(x: Tensor, order: tuple[int, ...], axes: Sequence[int], along: Sequence[int]) -> Plan | None:
    labels: list[str] = []
    members: list[list[int]] = []
    for axis in order:
        if x.shape[axis] == 1:
            continue
        label = "r" if axis in axes else "k"
        label = label.upper() if axis in along else label
        if labels and labels[-1] == label:
            members[-1].append(axis)
        else:
            labels.append(label)
            members.append([axis])
    for form in (_ALONG_CHANNELS, _ALONG_ROWS) if along else (_NEIGHBOURS, _NO_PARAMETERS):
        places = _fit(labels, form)
        if places is None:
            continue
        sizes = [1, 1, 1, 1, 1]
        for place, own in zip(places, members, strict=True):
            sizes[place] = math.prod([x.shape[a] for a in own])
        k0, r1, k2, r3, i = sizes
        return Plan(
            (k0, r1, k2, r3, i),
            order,
            tuple(axes),
            tuple(a for a in order if a in along),
            tuple(a for place, own in zip(places, members, strict=True) if place in (2, 3) for a in own),
            on_rows=form is _ALONG_ROWS,
        )
    return None


def is_dense(x: Tensor) -> bool:
    return memory_order(x) is not None


def memory_order(x: Tensor) -> tuple[int, ...] | None:
    """The axes from the outermost to the innermost, if together they fill one block of memory."""
    if x.is_contiguous():
        return tuple(range(x.ndim))
    strides = x.stride()
    order = tuple(sorted(range(x.ndim), key=lambda axis: -strides[axis]))
    return order if _is_dense_in(x, order) else None


def _is_dense_in(x: Tensor, order: Sequence[int]) -> bool:
    shape, strides, step = x.shape, x.stride(), 1
    for axis in reversed(order):
        if shape[axis] != 1:
            if strides[axis] != step:
                return False
            step = step * shape[axis]
    return True


def _fit(labels: Sequence[str], form: Sequence[str]) -> tuple[int, ...] | None:
    """Places for all labels, in order: as far to the right as they go, where passes over memory are long."""
    places: list[int] = []
    place = len(form)
    for label in reversed(labels):
        place -= 1
        while place >= 0 and form[place] != label:
            place -= 1
        if place < 0:
            return None
        places.append(place)
    return tuple(reversed(places))


def norm(
    x: Tensor,
    planned: Plan,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    center: bool = True,
    mask: Tensor | None = None,
    mean: Tensor | None = None,
    var: Tensor | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The output, and (mean, variance, count) of every group.

    Parameters are flat, in the order of memory; ``mean`` and ``var`` are given ones, of every channel.
    """
    if planned.order is None:
        x = x.contiguous()
    mask = None if mask is None else _flat_mask(mask, x, planned)
    if out is not None:
        call = (*planned.sizes, weight, bias, planned.on_rows, mask, mean, var, eps, center)
        return out, operator("groups_out")(x, *call, out)
    if _EAGER is not None and not is_compiling():
        call = (*planned.sizes, weight, bias, planned.on_rows, mask, mean, var, eps, center)
        return _EAGER.groups(x, *call, planned)
    if torch.is_grad_enabled() and (
        x.requires_grad
        or (weight is not None and weight.requires_grad)
        or (bias is not None and bias.requires_grad)
    ):
        apply = _Groups.apply if is_compiling() else _apply
        return apply(x, weight, bias, mask, mean, var, planned, eps, center)
    call = (*planned.sizes, weight, bias, planned.on_rows, mask, mean, var, eps, center)
    return operator("groups")(x, *call)


class _Groups(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mask: Tensor | None,
        mean: Tensor | None,
        var: Tensor | None,
        planned: Plan,
        eps: float,
        center: bool,
    ) -> tuple[Tensor, Tensor]:
        call = (*planned.sizes, weight, bias, planned.on_rows, mask, mean, var, eps, center)
        y, stats = operator("groups")(x, *call)
        ctx.save_for_backward(x, weight, bias, mask, mean, var, stats)
        ctx.call = planned, eps, center
        ctx.mark_non_differentiable(stats)
        return y, stats

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mask, mean, var, stats = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        found = _backward(grads[0], x, weight, bias, mask, mean, var, stats, needed, *ctx.call)
        return *found, None, None, None, None, None, None


def _backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    stats: Tensor,
    needed: Sequence[bool],
    planned: Plan,
    eps: float,
    center: bool,
) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled() and not is_compiling():  # create_graph=True
        y = _again(x, weight, bias, mask, mean, var, planned, eps, center)
        inputs = [t if n else None for t, n in zip((x, weight, bias), needed, strict=True)]
        wanted = [t for t in inputs if t is not None]
        found = iter(torch.autograd.grad(y, wanted, dy, create_graph=True))
        return tuple(None if t is None else next(found) for t in inputs)
    if dy.stride() != x.stride():
        dy = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(dy)
    call = (*planned.sizes, weight, bias, planned.on_rows, mask, stats, mean is not None, eps, center)
    grads = operator("groups_backward")(dy, x, *call, *needed[1:])
    return tuple(g if need else None for g, need in zip(grads, needed, strict=True))


def _again(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    planned: Plan,
    eps: float,
    center: bool,
) -> Tensor:
    """The same through the reference, which has derivatives of every order."""
    order = planned.order or tuple(range(x.ndim))
    if mask is not None:
        mask = mask.permute([order.index(a) for a in range(x.ndim)])
    split = x
    if planned.split is not None:
        axis, num_groups = planned.split
        split = x.unflatten(axis, (num_groups, x.shape[axis] // num_groups))
        mask = None if mask is None else mask.unsqueeze(axis)

    def broadcast(parameter: Tensor | None) -> Tensor | None:
        if parameter is None:
            return None
        by_axis = sorted(planned.along)
        parameter = parameter.reshape([split.shape[a] for a in planned.along])
        parameter = parameter.permute([planned.along.index(a) for a in by_axis])
        return parameter.reshape([split.shape[a] if a in by_axis else 1 for a in range(split.ndim)])

    weight, bias, mean, var = (broadcast(t) for t in (weight, bias, mean, var))
    if mean is not None and var is not None:
        known = reference.known(split, mean, var, mask)
        y = reference.affine(known.x_hat(eps), weight, bias, mask).to(x.dtype)
    else:
        y = reference.normalize(
            split, axes=planned.axes, weight=weight, bias=bias, eps=eps, center=center, mask=mask
        )
    return y.reshape(x.shape)


def _flat_mask(mask: Tensor, x: Tensor, planned: Plan) -> Tensor:
    """One value for each place that all channels share, as they lie in memory."""
    mask = mask.expand(x.shape)
    for axis in planned.channels:
        mask = mask.narrow(axis, 0, 1)
    return mask.permute(planned.order or tuple(range(x.ndim))).contiguous()


# Straight to C: torch's own `apply` looks for transforms, which this backend refuses before.
_apply = super(torch.autograd.Function, _Groups).apply
if _EAGER is not None:
    _EAGER.set_backward(rows._backward, _backward)

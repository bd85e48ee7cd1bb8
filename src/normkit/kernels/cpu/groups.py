"""Every grouping but that of the last axes: which five sizes describe it to the kernels, and its gradient.

The kernels see dense memory as (k0, r1, k2, r3, i): one mean for each (k0, k2), over r1, r3 and i. Parameters
lie along (k2, r3), the channels; or along r1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normkit.kernels import reference

__all__ = ["Plan", "is_dense", "norm", "plan"]

# What may lie in each of the five: kept or reduced, and whether parameters lie along it.
_ALONG_CHANNELS = ("k", "r", "K", "R", "r")
_ALONG_ROWS = ("k", "R", "k", "", "")
_NO_PARAMETERS = ("k", "r", "k", "", "r")
_NEIGHBOURS = ("k", "", "", "", "r")  # rows, but for a mask


class Plan(NamedTuple):
    """How a call is handed to the kernels."""

    sizes: tuple[int, int, int, int, int]
    on_rows: bool  # parameters along r1
    order: tuple[int, ...]  # the axes of x as they lie in memory
    channels: tuple[int, ...]  # those of them along k2 and r3: a mask may not vary there


def plan(x: Tensor, axes: Sequence[int], along: Sequence[int]) -> Plan | str:
    """The plan for a norm over ``axes`` with parameters along the axes ``along``, or why there is none."""
    order = _memory_order(x) or tuple(range(x.ndim))  # where it has none, a copy is made
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
    forms = (_ALONG_CHANNELS, _ALONG_ROWS) if along else (_NEIGHBOURS, _NO_PARAMETERS)
    for form in forms:
        places = _fit(labels, form)
        if places is not None:
            sizes = [1, 1, 1, 1, 1]
            for place, axes_there in zip(places, members, strict=True):
                for axis in axes_there:
                    sizes[place] = sizes[place] * x.shape[axis]
            channels = [a for place, own in zip(places, members, strict=True) if place in (2, 3) for a in own]
            k0, r1, k2, r3, i = sizes
            return Plan((k0, r1, k2, r3, i), form is _ALONG_ROWS, order, tuple(channels))
    return f"its axes alternate too often between shared and kept ({' '.join(labels)})"


def _memory_order(x: Tensor) -> tuple[int, ...] | None:
    """The axes from the outermost to the innermost, if together they fill one block of memory."""
    order, strides = list(range(x.ndim)), x.stride()
    if not x.is_contiguous():
        order.sort(key=lambda axis: -strides[axis])
    step = 1
    for axis in reversed(order):
        if x.shape[axis] != 1:
            if strides[axis] != step:
                return None
            step = step * x.shape[axis]
    return tuple(order)


def is_dense(x: Tensor) -> bool:
    return _memory_order(x) is not None


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
    *,
    axes: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    center: bool = True,
    mask: Tensor | None = None,
    mean: Tensor | None = None,
    var: Tensor | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The output, and (mean, variance, count) of every group. Parameters and mask broadcast."""
    x = x if _memory_order(x) else x.contiguous()
    mask = None if mask is None else _flat_mask(mask, x, planned)
    if out is not None:
        w, b = _flat(weight, planned), _flat(bias, planned)
        stats = torch.ops.normkit.groups_out(
            x, *planned.sizes, w, b, planned.on_rows, mask, mean, var, eps, center, out
        )
        return out, stats
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        return _Groups.apply(x, weight, bias, mask, mean, var, *planned, tuple(axes), eps, center)
    w, b = _flat(weight, planned), _flat(bias, planned)
    return torch.ops.normkit.groups(x, *planned.sizes, w, b, planned.on_rows, mask, mean, var, eps, center)


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
        sizes: tuple[int, int, int, int, int],
        on_rows: bool,
        order: tuple[int, ...],
        channels: tuple[int, ...],
        axes: tuple[int, ...],
        eps: float,
        center: bool,
    ) -> tuple[Tensor, Tensor]:
        planned = Plan(sizes, on_rows, order, channels)
        w, b = _flat(weight, planned), _flat(bias, planned)
        y, stats = torch.ops.normkit.groups(x, *sizes, w, b, on_rows, mask, mean, var, eps, center)
        ctx.save_for_backward(x, weight, bias, mask, mean, var, stats)
        ctx.planned, ctx.axes, ctx.eps, ctx.center = planned, axes, eps, center
        ctx.mark_non_differentiable(stats)
        return y, stats

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mask, mean, var, stats = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        rest = (None,) * 10
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # create_graph=True
            wide_mask = None if mask is None else _wide_mask(mask, x, ctx.planned)
            y = _again(x, weight, bias, wide_mask, mean, var, ctx.axes, ctx.eps, ctx.center)
            tensors = [
                t if n else None for t, n in zip((x, weight, bias), ctx.needs_input_grad, strict=False)
            ]
            found = iter(
                torch.autograd.grad(y, [t for t in tensors if t is not None], grads[0], create_graph=True)
            )
            return *(None if t is None else next(found) for t in tensors), *rest
        dy = grads[0]
        if dy.stride() != x.stride():
            dy = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(dy)
        dx, dweight, dbias = torch.ops.normkit.groups_backward(
            dy,
            x,
            *ctx.planned.sizes,
            _flat(weight, ctx.planned),
            ctx.planned.on_rows,
            mask,
            stats,
            mean is not None,
            ctx.eps,
            ctx.center,
            bool(need_weight),
            bool(need_bias),
        )
        return (
            dx if need_x else None,
            _shaped(dweight, weight, ctx.planned) if need_weight else None,
            _shaped(dbias, bias, ctx.planned) if need_bias else None,
            *rest,
        )


def _again(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    axes: Sequence[int],
    eps: float,
    center: bool,
) -> Tensor:
    """The same through the reference, which has derivatives of every order."""
    if mean is None or var is None:
        return reference.normalize(x, axes=axes, weight=weight, bias=bias, eps=eps, center=center, mask=mask)
    shape = [1 if a in axes or a == 0 else x.shape[a] for a in range(x.ndim)]
    known = reference.known(x, mean.reshape(shape), var.reshape(shape), mask)
    return reference.affine(known.x_hat(eps), weight, bias, mask).to(x.dtype)


def _flat(parameter: Tensor | None, planned: Plan) -> Tensor | None:
    """A parameter that broadcasts against x, in the order of memory."""
    if parameter is None:
        return None
    if list(planned.order) != sorted(planned.order):
        parameter = parameter.permute(planned.order)
    return parameter.reshape(-1)


def _shaped(gradient: Tensor, parameter: Tensor, planned: Plan) -> Tensor:
    """The way back from ``_flat``."""
    gradient = gradient.to(parameter.dtype)
    if list(planned.order) == sorted(planned.order):
        return gradient.reshape(parameter.shape)
    inverse = [planned.order.index(a) for a in range(len(planned.order))]
    return gradient.reshape([parameter.shape[a] for a in planned.order]).permute(inverse)


def _flat_mask(mask: Tensor, x: Tensor, planned: Plan) -> Tensor:
    mask = mask.expand(x.shape)
    for axis in planned.channels:
        mask = mask.narrow(axis, 0, 1)
    return mask.permute(planned.order).contiguous()


def _wide_mask(mask: Tensor, x: Tensor, planned: Plan) -> Tensor:
    inverse = [planned.order.index(a) for a in range(x.ndim)]
    return mask.permute(inverse)

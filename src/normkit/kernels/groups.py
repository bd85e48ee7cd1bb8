"""Norms of every other grouping, and their derivatives: the five sizes of ``plans`` on dense memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch.compiler import is_compiling

from normkit.kernels import rows
from normkit.kernels.by_reference import groups_norm, recompute_with_reference
from normkit.kernels.cpu import eager
from normkit.kernels.operators import operator

__all__ = ["norm", "norm_out"]


def norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, *call: Any) -> tuple[Tensor, Tensor]:
    """The output, and (mean, variance, count) of every group.

    The call: sizes, weight_on_rows, mask, given mean, given variance, eps, center.
    """
    sizes, on_rows, *rest = call
    if rows.has_node(x):
        return eager.MODULE.groups(x, *sizes, weight, bias, on_rows, *rest, (sizes, on_rows))
    if is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        if not is_compiling():
            return _apply(x, weight, bias, *call)
        return _Groups.apply(*rows.apart(x, weight, bias), *call)
    return operator("groups", x)(x, *sizes, weight, bias, on_rows, *rest)


def norm_out(x: Tensor, weight: Tensor | None, bias: Tensor | None, *call: Any, out: Tensor) -> Tensor:
    """The statistics; the output is written into ``out``, which lies in memory as ``x`` does."""
    sizes, on_rows, *rest = call
    return operator("groups_out", x)(x, *sizes, weight, bias, on_rows, *rest, out)


class _Groups(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        sizes: Sequence[int],
        on_rows: bool,
        mask: Tensor | None,
        mean: Tensor | None,
        var: Tensor | None,
        eps: float,
        center: bool,
    ) -> tuple[Tensor, Tensor]:
        y, stats = operator("groups", x)(x, *sizes, weight, bias, on_rows, mask, mean, var, eps, center)
        ctx.save_for_backward(x, weight, bias, mask, mean, var, stats)
        ctx.call = (sizes, on_rows), eps, center
        ctx.mark_non_differentiable(stats)
        ctx.set_materialize_grads(False)
        return y, stats

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if grads[0] is None:
            return (None,) * 10
        x, weight, bias, mask, mean, var, stats = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        found = _backward(grads[0], x, weight, bias, mask, mean, var, stats, needed, *ctx.call)
        return *found, *(None,) * 7


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
    five: tuple[Sequence[int], bool],
    eps: float,
    center: bool,
) -> tuple[Tensor | None, ...]:
    sizes, on_rows = five
    if rows.differentiates():

        def forward(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
            return groups_norm(x, sizes, weight, bias, on_rows, mask, mean, var, eps, center)

        return tuple(recompute_with_reference(forward, (x, weight, bias), needed, dy))
    if dy.stride() != x.stride():
        dy = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(dy)
    call = (*sizes, weight, bias, on_rows, mask, stats, mean is not None, eps, center, *needed[1:])
    found = operator("groups_backward", x)(dy, x, *call)
    return tuple(t if n else None for t, n in zip(found, needed, strict=True))


# Straight to C: torch's own `apply` looks for transforms, which no kernel is admitted under.
_apply = super(torch.autograd.Function, _Groups).apply
if eager.MODULE is not None:
    eager.MODULE.set_backward(rows.backward, _backward)

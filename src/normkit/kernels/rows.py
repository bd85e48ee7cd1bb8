"""Norms of the last axes, and their derivatives: LayerNorm, RMSNorm, and both after a residual add."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _len_torch_dispatch_stack
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from normkit.kernels.by_reference import recompute_with_reference, rows_norm
from normkit.kernels.cpu import eager
from normkit.kernels.operators import DIRECT, PLAIN, operator

__all__ = ["add", "add_out", "apart", "backward", "differentiates", "has_node", "norm", "norm_out"]

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float, kind: int) -> Tensor:
    if not _needs_grad(x, weight, bias):
        return operator("rows", x)(x, weight, bias, dims, eps, kind)
    if is_compiling():
        return _Rows.apply(*apart(x, weight, bias), dims, eps, kind)
    return _apply(_Rows, "rows", x)(x, weight, bias, dims, eps, kind)


def norm_out(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float, kind: int, out: Tensor
) -> None:
    operator("rows_out", x)(x, weight, bias, dims, eps, kind, out)


def add(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    dims: int,
    eps: float,
    kind: int,
) -> tuple[Tensor, Tensor]:
    if not _needs_grad(x, residual, weight, bias):
        return operator("rows_add", x)(x, residual, weight, bias, dims, eps, kind)
    if is_compiling():
        return _AddRows.apply(*apart(x, residual, weight, bias), dims, eps, kind)
    return _apply(_AddRows, "rows_add", x)(x, residual, weight, bias, dims, eps, kind)


def add_out(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    dims: int,
    eps: float,
    kind: int,
    out: tuple[Tensor, Tensor],
) -> None:
    operator("rows_add_out", x)(x, residual, weight, bias, dims, eps, kind, *out)


def _needs_grad(*tensors: Tensor | None) -> bool:
    if is_grad_enabled():
        for t in tensors:
            if t is not None and t.requires_grad:
                return True
    return False


def apart(*tensors: Any) -> list[Any]:
    """torch.compile does not take one tensor twice as arguments of a Function."""
    return [
        t.clone() if t is not None and any(t is other for other in tensors[:k]) else t
        for k, t in enumerate(tensors)
    ]


def differentiates() -> bool:
    """Is the gradient itself to be differentiated: create_graph=True, or forward mode over a backward?"""
    return not is_compiling() and (is_grad_enabled() or forward_ad._current_level >= 0)


def has_node(x: Tensor) -> bool:
    """Is there a node in C++ for it, and no mode that wants to see operators?"""
    ours = eager.MODULE is not None and type(x) in PLAIN and x.is_cpu and "cpu" not in DIRECT
    return ours and not is_compiling() and _len_torch_dispatch_stack() == 0


def _apply(function: Any, name: str, x: Tensor) -> Any:
    """How a Function is applied: as a node in C++, if there is one."""
    if has_node(x):
        return getattr(eager.MODULE, name)
    # Straight to C: torch's own `apply` looks for transforms, which no kernel is admitted under.
    return super(torch.autograd.Function, function).apply


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float, kind: int
    ) -> Tensor:
        y, stats = operator("rows_train", x)(x, weight, bias, dims, eps, kind)
        ctx.save_for_backward(x, weight, bias, stats)
        ctx.call = dims, eps, kind
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, stats = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        return *backward(grads[0], None, x, weight, bias, stats, needed, *ctx.call), None, None, None


class _AddRows(torch.autograd.Function):
    """The sum is an output too: what flows back into it is added to what the norm passes on."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        dims: int,
        eps: float,
        kind: int,
    ) -> tuple[Tensor, Tensor]:
        y, total, stats = operator("rows_add_train", x)(x, residual, weight, bias, dims, eps, kind)
        ctx.save_for_backward(total, weight, bias, stats)
        ctx.call = dims, eps, kind
        ctx.dtypes = x.dtype, residual.dtype
        ctx.set_materialize_grads(False)
        return y, total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        need_x, need_residual, *need = ctx.needs_input_grad[:4]
        needed = need_x or need_residual, *need
        (dy, dtotal), (total, weight, bias, stats) = grads, ctx.saved_tensors
        dsum, dweight, dbias = backward(dy, dtotal, total, weight, bias, stats, needed, *ctx.call)
        to_x, to_residual = (
            dsum.to(dtype) if needs and dsum is not None else None
            for needs, dtype in zip((need_x, need_residual), ctx.dtypes, strict=True)
        )
        return to_x, to_residual, dweight, dbias, None, None, None


def backward(
    dy: Tensor | None,
    dtotal: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    stats: Tensor,
    needed: Sequence[bool],
    dims: int,
    eps: float,
    kind: int,
) -> Gradients:
    if dy is None:
        return dtotal, None, None
    if differentiates():

        def forward(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
            return rows_norm(x, weight, bias, dims, eps, kind, dy.dtype)

        dx, dweight, dbias = recompute_with_reference(forward, (x, weight, bias), needed, dy)
        return dx + dtotal if dx is not None and dtotal is not None else dx, dweight, dbias
    call = (dy, x, weight, bias, stats, dtotal, dims, eps, kind, *needed)
    dx, dweight, dbias = (
        t if n else None for t, n in zip(operator("rows_backward", x)(*call), needed, strict=True)
    )
    return dx, dweight, dbias

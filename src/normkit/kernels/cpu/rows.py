"""Norms of the last axes: LayerNorm, RMSNorm, and both after a residual add."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch.compiler import is_compiling

from normkit.kernels import reference
from normkit.kernels.cpu.eager import MODULE as _EAGER
from normkit.kernels.cpu.library import is_plain, operator, raw

__all__ = ["CENTER", "add", "add_at_once", "at_once", "kind_of", "norm", "norm_out"]

# The bits of an operator's `kind`; csrc/rows.cpp holds the same.
CENTER, ZERO_CENTERED, ROUND_BF16, ROUND_F16 = 1, 2, 4, 8
_EPS = {d: torch.finfo(torch.promote_types(d, torch.float32)).eps for d in (torch.float32, torch.float64)}
_EPS[torch.bfloat16] = _EPS[torch.float16] = _EPS[torch.float32]
ROUND = {torch.bfloat16: ROUND_BF16, torch.float16: ROUND_F16}


def kind_of(dtype: torch.dtype, zero_centered_weight: bool, multiply: str, weight: Tensor | None) -> int:
    """The kind of an RMSNorm whose numbers are cast to ``dtype``."""
    rounds = multiply == "after_cast" and weight is not None
    return ZERO_CENTERED * zero_centered_weight + (ROUND.get(dtype, 0) if rounds else 0)


def at_once(
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float | None,
    center: bool = True,
    out: Tensor | None = None,
) -> Tensor | None:
    """The norm of one last axis without ceremony, or None where the call needs a closer look.

    A call on a single row is mostly Python. What this does not check, the operator does, and refuses.
    """
    if _EAGER is not None and not is_compiling():
        if center:
            y = _EAGER.layer_norm(x, shape, weight, bias, eps, out)
        else:
            y = _EAGER.rms_norm(x, shape, weight, eps, out)
        if y is not None:
            return y
    if not is_plain(x) or (not center and x.ndim > 3):  # torch's rms_norm keeps channels_last
        return None
    try:
        (size,) = shape
        if eps is None:
            eps = _EPS[x.dtype]
        kind = CENTER if center else 0
        if is_grad_enabled() and (
            x.requires_grad
            or (weight is not None and weight.requires_grad)
            or (bias is not None and bias.requires_grad)
            or (out is not None and out.requires_grad)
        ):
            return None if out is not None else _apply(x, weight, bias, 1, size, eps, kind)
        if out is None:
            return _rows(x, weight, bias, 1, size, eps, kind)
        _rows_out(x, weight, bias, 1, size, eps, kind, out)
        return out
    except _NOT_SO:
        return None


def add_at_once(
    x: Tensor,
    residual: Tensor,
    shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float | None,
    center: bool = True,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor] | None:
    """The same after a residual add, for terms of one dtype."""
    if _EAGER is not None and not is_compiling():
        if center:
            done = _EAGER.add_layer_norm(x, residual, shape, weight, bias, eps, out)
        else:
            done = _EAGER.add_rms_norm(x, residual, shape, weight, eps, out)
        if done is not None:
            return done
    if not is_plain(x) or type(residual) is not Tensor or residual.dtype != x.dtype:
        return None
    try:
        (size,) = shape
        eps = _EPS[x.dtype] if eps is None else eps
        kind = CENTER if center else 0
        if out is not None:
            y, total = out
            if _needs_grad(x, residual, weight, bias, y, total):
                return None
            _rows_add_out(x, residual, weight, bias, 1, size, eps, kind, y, total)
            return y, total
        if _needs_grad(x, residual, weight, bias):
            return _apply_add(x, residual, weight, bias, 1, size, eps, kind)
        return _rows_add(x, residual, weight, bias, 1, size, eps, kind)
    except _NOT_SO:
        return None


# What an operator raises, and Python for arguments of the wrong kind: the long way says it well.
_NOT_SO = (AttributeError, KeyError, RuntimeError, TypeError, ValueError)


def norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float, kind: int) -> Tensor:
    if _EAGER is not None and not is_compiling():
        return _EAGER.rows(x, weight, bias, dims, eps, kind)
    if _needs_grad(x, weight, bias):
        return _Rows.apply(x, weight, bias, dims, -1, eps, kind)
    return operator("rows")(x, weight, bias, dims, -1, eps, kind)


def norm_out(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float, kind: int, out: Tensor
) -> None:
    operator("rows_out")(x, weight, bias, dims, -1, eps, kind, out)


def add(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    dims: int,
    eps: float,
    kind: int,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    if out is not None:
        operator("rows_add_out")(x, residual, weight, bias, dims, -1, eps, kind, *out)
        return out
    if _EAGER is not None and not is_compiling():
        return _EAGER.rows_add(x, residual, weight, bias, dims, eps, kind)
    if _needs_grad(x, residual, weight, bias):
        if residual is x and is_compiling():
            residual = x.clone()  # torch.compile does not take one tensor twice
        return _AddRows.apply(x, residual, weight, bias, dims, -1, eps, kind)
    return operator("rows_add")(x, residual, weight, bias, dims, -1, eps, kind)


def _needs_grad(*tensors: Tensor | None) -> bool:
    return is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        dims: int,
        size: int,
        eps: float,
        kind: int,
    ) -> Tensor:
        train = operator("rows_train") if is_compiling() else _train
        y, stats = train(x, weight, bias, dims, size, eps, kind)
        ctx.save_for_backward(x, weight, bias, stats)
        ctx.call = dims, eps, kind
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, stats = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        return *_backward(grads[0], None, x, weight, bias, stats, needed, *ctx.call), None, None, None, None


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
        size: int,
        eps: float,
        kind: int,
    ) -> tuple[Tensor, Tensor]:
        y, total, stats = operator("rows_add_train")(x, residual, weight, bias, dims, size, eps, kind)
        ctx.save_for_backward(total, weight, bias, stats)
        ctx.call = dims, eps, kind
        ctx.dtypes = x.dtype, residual.dtype
        ctx.set_materialize_grads(False)
        return y, total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        total, weight, bias, stats = ctx.saved_tensors
        dy, dtotal = grads
        need_x, need_residual, *need = ctx.needs_input_grad[:4]
        if dy is None:
            dsum, dweight, dbias = dtotal, None, None
        else:
            needed = (need_x or need_residual, *need)
            dsum, dweight, dbias = _backward(dy, dtotal, total, weight, bias, stats, needed, *ctx.call)
        to_x, to_residual = (
            dsum.to(dtype) if needs and dsum is not None else None
            for needs, dtype in zip((need_x, need_residual), ctx.dtypes, strict=True)
        )
        return to_x, to_residual, dweight, dbias, None, None, None, None


def _backward(
    dy: Tensor,
    dtotal: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    stats: Tensor,
    needed: Sequence[bool],
    dims: int,
    eps: float,
    kind: int,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if is_grad_enabled() and not is_compiling():  # create_graph=True
        return _differentiable(dy, dtotal, x, weight, bias, needed, dims, eps, kind)
    need_x, need_weight, need_bias = needed
    dx, dweight, dbias = operator("rows_backward")(
        dy, x, weight, bias, stats, dtotal, dims, eps, kind, need_x, need_weight, need_bias
    )
    return dx if need_x else None, dweight if need_weight else None, dbias if need_bias else None


def _differentiable(
    dy: Tensor,
    dtotal: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    needed: Sequence[bool],
    dims: int,
    eps: float,
    kind: int,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The same gradient through the reference, which has derivatives of every order."""
    axes = tuple(range(x.ndim - dims, x.ndim))
    if kind & CENTER:
        y = reference.layer_norm(x, axes=axes, weight=weight, bias=bias, eps=eps)
    else:
        rounds = kind & (ROUND_BF16 | ROUND_F16)
        y = reference.rms_norm(
            x,
            axes=axes,
            weight=weight,
            eps=eps,
            zero_centered_weight=bool(kind & ZERO_CENTERED),
            multiply="after_cast" if rounds else "before_cast",
            dtype=dy.dtype,
        )
    inputs = [t for t, n in zip((x, weight, bias), needed, strict=True) if n and t is not None]
    grads = iter(torch.autograd.grad(y.to(dy.dtype), inputs, dy, create_graph=True))
    dx, dweight, dbias = (
        next(grads) if n and t is not None else None for t, n in zip((x, weight, bias), needed, strict=True)
    )
    if dx is not None and dtotal is not None:
        dx = dx + dtotal
    return dx, dweight, dbias


_rows, _train, _rows_out = raw("rows"), raw("rows_train"), raw("rows_out")
_rows_add, _rows_add_out = raw("rows_add"), raw("rows_add_out")
# Straight to C: torch's own `apply` looks for transforms, which at_once has done.
_apply = super(torch.autograd.Function, _Rows).apply
_apply_add = super(torch.autograd.Function, _AddRows).apply

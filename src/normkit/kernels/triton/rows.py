"""The row operators on Triton: the same arguments and results as ``torch.ops.normkit.rows*``."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normkit.kernels.by_reference import CENTER, ROUND_BF16, ROUND_F16, ZERO_CENTERED
from normkit.kernels.triton.device import row_backward, row_forward
from normkit.kernels.triton.launch import Launch, launch
from normkit.kernels.triton.tiles import (
    backward_tile,
    forward_tile,
    is_long_backward,
    is_long_forward,
    next_power_of_2,
    rows_per_partial,
)

__all__ = [
    "plan_forward",
    "rows",
    "rows_add",
    "rows_add_out",
    "rows_add_train",
    "rows_backward",
    "rows_out",
    "rows_train",
    "sum_partials",
]

COLUMNS, LONG_ROWS = 256, 8  # a tile of what is added up column by column
Strides = tuple[tuple[int, ...] | None, ...]


def rows(x: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float, kind: int) -> Tensor:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    _forward(x, None, weight, bias, dims, eps, kind, y)
    return y


def rows_train(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float, kind: int
) -> tuple[Tensor, Tensor]:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    stats = _stats(x, dims)
    _forward(x, None, weight, bias, dims, eps, kind, y, None, stats)
    return y, stats


def rows_out(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float, kind: int, out: Tensor
) -> None:
    _forward(x, None, weight, bias, dims, eps, kind, out)


def rows_add(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    dims: int,
    eps: float,
    kind: int,
) -> tuple[Tensor, Tensor]:
    y, total = _outputs_of_a_sum(x, residual)
    _forward(x, residual, weight, bias, dims, eps, kind, y, total)
    return y, total


def rows_add_train(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    dims: int,
    eps: float,
    kind: int,
) -> tuple[Tensor, Tensor, Tensor]:
    y, total = _outputs_of_a_sum(x, residual)
    stats = _stats(x, dims)
    _forward(x, residual, weight, bias, dims, eps, kind, y, total, stats)
    return y, total, stats


def rows_add_out(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    dims: int,
    eps: float,
    kind: int,
    out: Tensor,
    total: Tensor,
) -> None:
    _forward(x, residual, weight, bias, dims, eps, kind, out, total)


def rows_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    stats: Tensor,
    dtotal: Tensor | None,
    dims: int,
    eps: float,
    kind: int,
    need_dx: bool,
    need_dweight: bool,
    need_dbias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    dx = torch.empty_like(x, memory_format=torch.contiguous_format) if need_dx else x.new_empty(0)
    shape = x.shape[x.ndim - dims :]
    dweight, dbias = (
        x.new_empty(shape if need else (0,), dtype=torch.float32 if p is None else p.dtype)
        for p, need in ((weight, need_dweight), (bias, need_dbias))
    )
    if x.numel() == 0:
        for gradient in (dweight, dbias):
            gradient.zero_()
        return dx, dweight, dbias
    x, dy, dtotal = _in_pieces((x, dy, dtotal), dims)
    calls = _plan_backward(
        x.shape,
        (x.stride(), dy.stride(), None if dtotal is None else dtotal.stride()),
        x.element_size(),
        dims,
        kind,
        (weight is not None, need_dx, need_dweight, need_dbias),
    )
    weight = _contiguous(weight)
    needed = (need_dweight, need_dbias)
    parts = [
        partials_for(gradient, calls.partials, calls.dim) if need else None
        for gradient, need in zip((dweight, dbias), needed, strict=True)
    ]
    out = dx if need_dx else None
    if calls.parameters is None:
        launch(calls.rows, (dy, x, weight, stats, dtotal, out, *parts), x.device)
    else:
        rest = stats.new_empty(stats.shape[1])
        launch(calls.rows, (dy, x, weight, stats, dtotal, out, rest), x.device)
        if any(needed):
            launch(calls.parameters, (dy, x, stats, rest, *parts), x.device)
    for part, gradient in zip(parts, (dweight, dbias), strict=True):
        if part is not None:
            sum_partials(part, gradient)
    return dx, dweight, dbias


@functools.lru_cache(maxsize=1024)
def _plan_sum(parts: int, dim: int) -> Launch:
    rows = min(8, next_power_of_2(parts))
    return Launch(row_backward.sum_partials, (-(-dim // COLUMNS),), (parts,), (dim, COLUMNS, rows), 4)


def partials_for(gradient: Tensor, count: int, dim: int) -> Tensor:
    """Room for ``count`` partial sums in float32; a single one is the gradient itself."""
    if count == 1 and gradient.dtype == torch.float32:
        return gradient.view(1, dim)
    return gradient.new_empty((count, dim), dtype=torch.float32)


def sum_partials(parts: Tensor, out: Tensor) -> None:
    """The sum of (parts, dim) over its first axis, in one order."""
    if parts.data_ptr() != out.data_ptr() or parts.is_meta:
        launch(_plan_sum(*parts.shape), (parts, out), parts.device)


class _Rows(NamedTuple):
    """Where rows lie: up to three leading axes, and the strides of each tensor along them."""

    rows: int
    dim: int
    leading: int
    n12: int
    n2: int
    strides: tuple[tuple[int, int, int], ...]


class _Backward(NamedTuple):
    """What a backward launches: the gradient of rows, and of parameters where rows are long."""

    rows: Launch
    parameters: Launch | None
    partials: int
    dim: int


def _forward(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    dims: int,
    eps: float,
    kind: int,
    y: Tensor,
    total: Tensor | None = None,
    stats: Tensor | None = None,
) -> None:
    if x.numel() == 0:
        return
    x, residual = _in_pieces((x, residual), dims)
    call = plan_forward(
        x.shape,
        (x.stride(), None if residual is None else residual.stride()),
        x.element_size(),
        dims,
        eps,
        kind,
        (residual is not None, weight is not None, bias is not None, stats is not None),
    )
    launch(call, (x, residual, _contiguous(weight), _contiguous(bias), y, total, stats), x.device)


@functools.lru_cache(maxsize=4096)
def plan_forward(
    shape: tuple[int, ...],
    strides: Strides,
    itemsize: int,
    dims: int,
    eps: float,
    kind: int,
    given: tuple[bool, bool, bool, bool],
) -> Launch:
    at = _lay(shape, dims, strides)
    assert at is not None
    tile = forward_tile(at.dim, itemsize)
    kernel = row_forward.rows_forward_long if is_long_forward(at.dim, itemsize) else row_forward.rows_forward
    numbers = (at.rows, at.n12, at.n2, *at.strides[0], *at.strides[1], eps)
    constants = (at.dim, tile.block, tile.rows, at.leading, *_settings(kind), *given)
    return Launch(kernel, (-(-at.rows // tile.rows),), numbers, constants, tile.warps)


@functools.lru_cache(maxsize=4096)
def _plan_backward(
    shape: tuple[int, ...],
    strides: Strides,
    itemsize: int,
    dims: int,
    kind: int,
    given: tuple[bool, bool, bool, bool],
) -> _Backward:
    at = _lay(shape, dims, strides)
    assert at is not None
    tile, is_long = backward_tile(at.dim, itemsize), is_long_backward(at.dim, itemsize)
    per_partial = rows_per_partial(at.rows, LONG_ROWS if is_long else tile.rows)
    partials = -(-at.rows // per_partial)
    weight, *needed = given
    dx, *parameters = needed
    x_at, dy_at, t_at = at.strides
    places = (at.rows, at.n12, at.n2, *x_at, *dy_at)
    settings = _settings(kind)
    if not is_long:
        constants = (
            at.dim,
            tile.block,
            tile.rows,
            at.leading,
            *settings,
            weight,
            strides[2] is not None,
            *needed,
        )
        numbers = (*places, *t_at, per_partial // tile.rows)
        rows = Launch(row_backward.rows_backward, (partials,), numbers, constants, tile.warps)
        return _Backward(rows, None, partials, at.dim)
    constants = (at.dim, tile.block, at.leading, *settings, weight, strides[2] is not None, dx)
    rows = Launch(row_backward.rows_backward_long, (at.rows,), (*places, *t_at), constants, tile.warps)
    center, _, rounds = settings
    constants = (at.dim, COLUMNS, LONG_ROWS, at.leading, center, rounds, *parameters)
    grid = (partials, -(-at.dim // COLUMNS))  # the second is at most 65,535
    of_columns = Launch(row_backward.row_parameters, grid, (*places, per_partial // LONG_ROWS), constants, 8)
    return _Backward(rows, of_columns, partials, at.dim)


def _settings(kind: int) -> tuple[bool, bool, bool]:
    return bool(kind & CENTER), bool(kind & ZERO_CENTERED), bool(kind & (ROUND_BF16 | ROUND_F16))


def _in_pieces(tensors: Sequence[Any], dims: int) -> Sequence[Any]:
    """The tensors with rows that lie in one piece each, copied where they do not."""
    x = tensors[0]
    if all(t is None or t.is_contiguous() for t in tensors):
        return tensors
    laid = _lay(x.shape, dims, tuple([None if t is None else t.stride() for t in tensors]))
    return tensors if laid is not None else [_contiguous(t) for t in tensors]


@functools.lru_cache(maxsize=4096)
def _lay(shape: tuple[int, ...], dims: int, strides: Strides) -> _Rows | None:
    """Which leading axes count as one, for all tensors at once; None if that leaves more than three."""
    given = [s for s in strides if s is not None]
    first = len(shape) - dims
    dim = math.prod(shape[first:])
    for s in given:
        step = 1
        for size, stride in zip(reversed(shape[first:]), reversed(s[first:]), strict=True):
            if size != 1 and stride != step:
                return None
            step *= size
    axes = [a for a in range(first) if shape[a] != 1]
    merged: list[list[int]] = []  # [rows, stride of each tensor ...]
    for axis in axes:
        steps = [s[axis] for s in given]
        if merged and all(a == shape[axis] * b for a, b in zip(merged[-1][1:], steps, strict=True)):
            merged[-1] = [merged[-1][0] * shape[axis], *steps]
        else:
            merged.append([shape[axis], *steps])
    if len(merged) > 3:
        return None
    in_order = len(merged) == 0 or (len(merged) == 1 and all(step == dim for step in merged[0][1:]))
    leading = 0 if in_order else len(merged)
    merged = [[1] + [dim] * len(given)] * (3 - len(merged)) + merged
    n1, n2 = merged[1][0], merged[2][0]
    of_given = iter(zip(*(m[1:] for m in merged), strict=True))
    laid = tuple((0, 0, 0) if s is None else next(of_given) for s in strides)
    return _Rows(math.prod(shape[:first]), dim, leading, n1 * n2, n2, laid)


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _stats(x: Tensor, dims: int) -> Tensor:
    return x.new_empty((2, math.prod(x.shape[: x.ndim - dims])), dtype=torch.float32)


def _outputs_of_a_sum(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    dtype = torch.promote_types(x.dtype, residual.dtype)
    return y, torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)

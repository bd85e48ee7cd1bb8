"""The row operators on Triton: the same arguments and results as ``torch.ops.normkit.rows*``."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normkit.kernels.by_reference import CENTER, ROUND_BF16, ROUND_F16, ZERO_CENTERED
from normkit.kernels.triton import row_kernels as kernels
from normkit.kernels.triton.launch import launch
from normkit.kernels.triton.tiles import (
    Tile,
    backward_tile,
    forward_tile,
    is_long_backward,
    is_long_forward,
    rows_per_partial,
)

__all__ = [
    "rows",
    "rows_add",
    "rows_add_out",
    "rows_add_train",
    "rows_backward",
    "rows_out",
    "rows_train",
]

COLUMNS, LONG_ROWS = 64, 8  # a tile of what is added up column by column


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
    (x, dy, dtotal), at = _rows_of((x, dy, dtotal), dims)
    tile, is_long = backward_tile(at.dim), is_long_backward(at.dim)
    per_partial = rows_per_partial(at.rows, LONG_ROWS if is_long else tile.rows)
    partials = -(-at.rows // per_partial)
    parts = [
        x.new_empty((partials, at.dim), dtype=torch.float32) if need else None
        for need in (need_dweight, need_dbias)
    ]
    settings = bool(kind & CENTER), bool(kind & ZERO_CENTERED), bool(kind & (ROUND_BF16 | ROUND_F16))
    run = _long_gradients if is_long else _gradients
    run(dy, x, weight, stats, dtotal, dx if need_dx else None, parts, at, settings, tile, per_partial)
    for part, gradient in zip(parts, (dweight, dbias), strict=True):
        if part is not None:
            _sum(part, gradient)
    return dx, dweight, dbias


class _Rows(NamedTuple):
    """Where rows lie: up to three leading axes, and the strides of each tensor along them."""

    rows: int
    dim: int
    leading: int
    n12: int
    n2: int
    strides: tuple[tuple[int, int, int], ...]


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
    (x, residual), at = _rows_of((x, residual), dims)
    weight, bias = _contiguous(weight), _contiguous(bias)
    itemsize = x.element_size()
    tile = forward_tile(at.dim, itemsize)
    kernel = kernels.rows_forward_long if is_long_forward(at.dim, itemsize) else kernels.rows_forward
    mean, rstd = (None, None) if stats is None else stats.unbind()
    tensors = (x, residual, weight, bias, y, total, mean, rstd)
    numbers = (at.rows, at.n12, at.n2, *at.strides[0], *at.strides[1], eps)
    constants = (
        at.dim,
        tile.block,
        tile.rows,
        at.leading,
        bool(kind & CENTER),
        bool(kind & ZERO_CENTERED),
        bool(kind & (ROUND_BF16 | ROUND_F16)),
        residual is not None,
        weight is not None,
        bias is not None,
        stats is not None,
    )
    grid = (-(-at.rows // tile.rows),)
    launch(kernel, grid, (*tensors, *numbers), constants, tile.warps, x.device)


def _gradients(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    stats: Tensor,
    dtotal: Tensor | None,
    dx: Tensor | None,
    parts: Sequence[Tensor | None],
    at: _Rows,
    settings: tuple[bool, bool, bool],
    tile: Tile,
    per_partial: int,
) -> None:
    x_at, dy_at, t_at = at.strides
    tensors = (dy, x, _contiguous(weight), *stats.unbind(), dtotal, dx, *parts)
    numbers = (at.rows, at.n12, at.n2, *x_at, *dy_at, *t_at, per_partial // tile.rows)
    given = tuple(t is not None for t in (weight, dtotal, dx, *parts))
    constants = (at.dim, tile.block, tile.rows, at.leading, *settings, *given)
    grid = (-(-at.rows // per_partial),)
    launch(kernels.rows_backward, grid, (*tensors, *numbers), constants, tile.warps, x.device)


def _long_gradients(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    stats: Tensor,
    dtotal: Tensor | None,
    dx: Tensor | None,
    parts: Sequence[Tensor | None],
    at: _Rows,
    settings: tuple[bool, bool, bool],
    tile: Tile,
    per_partial: int,
) -> None:
    """Long rows are read again for the gradients of the parameters, column by column."""
    center, _, rounds = settings
    mean, rstd = stats.unbind()
    rest = torch.empty_like(mean)
    x_at, dy_at, t_at = at.strides
    tensors = (dy, x, _contiguous(weight), mean, rstd, dtotal, dx, rest)
    numbers = (at.n12, at.n2, *x_at, *dy_at, *t_at)
    given = tuple(t is not None for t in (weight, dtotal, dx))
    constants = (at.dim, tile.block, at.leading, *settings, *given)
    launch(kernels.rows_backward_long, (at.rows,), (*tensors, *numbers), constants, tile.warps, x.device)
    if parts[0] is None and parts[1] is None:
        return
    tensors = (dy, x, mean, rstd, rest, *parts)
    numbers = (at.rows, at.n12, at.n2, *x_at, *dy_at, per_partial // LONG_ROWS)
    constants = (at.dim, COLUMNS, LONG_ROWS, at.leading, center, rounds, *(t is not None for t in parts))
    grid = (-(-at.dim // COLUMNS), -(-at.rows // per_partial))
    launch(kernels.row_parameters, grid, (*tensors, *numbers), constants, 4, x.device)


def _sum(parts: Tensor, out: Tensor) -> None:
    dim = parts.shape[1]
    grid = (-(-dim // COLUMNS),)
    launch(kernels.sum_partials, grid, (parts, out, parts.shape[0]), (dim, COLUMNS, 32), 4, parts.device)


def _rows_of(tensors: Sequence[Any], dims: int) -> tuple[Sequence[Any], _Rows]:
    """The tensors with rows that lie in one piece each, copied where they do not."""
    x = tensors[0]
    at = _lay(tuple(x.shape), dims, tuple(None if t is None else t.stride() for t in tensors))
    if at is None:
        tensors = [_contiguous(t) for t in tensors]
        at = _lay(tuple(x.shape), dims, tuple(None if t is None else t.stride() for t in tensors))
        assert at is not None
    return tensors, at


@functools.lru_cache(maxsize=4096)
def _lay(
    shape: tuple[int, ...], dims: int, strides: tuple[tuple[int, ...] | None, ...]
) -> _Rows | None:
    """Which leading axes can be counted as one, for all tensors at once; None if that leaves more than three."""
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
    leading = max(1, len(merged))
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

"""Rows in Triton: one that fits is read once, kept in registers, written once; longer ones are looped over.

Forward, with a shift close to the mean and a scale that is a power of two (``moments`` has the reasons):

    shift = mean(x)           d = x - shift          rest = mean(d)
    var   = mean(d²) - rest²  rstd = 1 / sqrt(var + eps)
    y     = (d - rest) · rstd · weight + bias

``shift`` is one float32, and wrong in its last bit; ``rest`` is what it missed. Kept for the backward are
``shift + rest``, rounded, and ``rstd``: the backward looks for its own rest.

A tile is (ROWS, BLOCK), and both follow from D and the dtype alone: a row's bits do not depend on the rows
around it, on their number, or on the machine's number of processors.
"""

from __future__ import annotations

import triton
import triton.language as tl

from normkit.kernels.triton.device.row_numbers import (
    gain_of,
    is_ordinary,
    kept_rstd,
    mean_of,
    row_start,
    rstd_of,
    scale_of,
)

__all__ = ["rows_forward", "rows_forward_long"]


@triton.jit
def rows_forward(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    total_ptr,
    stats_ptr,
    rows,
    n12,
    n2,
    x_s0,
    x_s1,
    x_s2,
    r_s0,
    r_s1,
    r_s2,
    eps,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    LEADING: tl.constexpr,
    CENTER: tl.constexpr,
    ZERO_CENTERED: tl.constexpr,
    ROUND: tl.constexpr,
    ADD: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    KEEP: tl.constexpr,
):
    """y of ROWS rows; with ADD, of x + residual, which is written too; with KEEP, mean and rstd."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    is_row = row < rows
    inside = is_row[:, None] & (column < D)[None, :]
    x_start = row_start(row, n12, n2, x_s0, x_s1, x_s2, D, LEADING)
    x = tl.load(x_ptr + x_start[:, None] + column[None, :], inside, 0.0).to(tl.float32)
    y_at = row[:, None] * D + column[None, :]
    if ADD:
        r_start = row_start(row, n12, n2, r_s0, r_s1, r_s2, D, LEADING)
        x += tl.load(residual_ptr + r_start[:, None] + column[None, :], inside, 0.0).to(tl.float32)
        total = x.to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + y_at, total, inside)
        x = total.to(tl.float32)

    scale = tl.full((ROWS,), 1.0, tl.float32)
    shift = tl.zeros((ROWS,), tl.float32)
    rest = tl.zeros((ROWS,), tl.float32)
    if CENTER:
        shift = mean_of(x, D)
        d = tl.where(inside, x - shift[:, None], 0.0)
        rest = mean_of(d, D)
        var = mean_of(d * d, D) - rest * rest
    else:
        d = x
        var = mean_of(x * x, D)
    # Rare: squares that leave the range of float32. inf and NaN come here, too, and stay what they are.
    unusual = is_row & (is_ordinary(var, eps) == 0)
    if tl.max(unusual.to(tl.int32), 0) > 0:
        scale = tl.where(unusual, scale_of(tl.max(tl.abs(x), 1), eps), 1.0)
        x_d = x * scale[:, None]
        if CENTER:
            shift = mean_of(x_d, D)
            d = tl.where(inside, x_d - shift[:, None], 0.0)
            rest = mean_of(d, D)
            var = mean_of(d * d, D) - rest * rest
        else:
            d = x_d
            var = mean_of(d * d, D)
    var = tl.maximum(var, 0.0, tl.PropagateNan.ALL)
    rstd = rstd_of(var, eps, scale)
    if KEEP:
        tl.store(stats_ptr + row, tl.div_rn(shift + rest, scale), is_row)
        tl.store(stats_ptr + rows + row, kept_rstd(rstd, var, eps, scale), is_row)
    y = (d - rest[:, None]) * rstd[:, None]
    if WEIGHT:
        if ROUND:
            y = y.to(y_ptr.dtype.element_ty).to(tl.float32)
        weight = tl.load(weight_ptr + column, column < D, 0.0)
        y = y * gain_of(weight, ZERO_CENTERED, ROUND)[None, :]
    if BIAS:
        y += tl.load(bias_ptr + column, column < D, 0.0).to(tl.float32)[None, :]
    tl.store(y_ptr + y_at, y.to(y_ptr.dtype.element_ty), inside)


@triton.jit
def rows_forward_long(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    total_ptr,
    stats_ptr,
    rows,
    n12,
    n2,
    x_s0,
    x_s1,
    x_s2,
    r_s0,
    r_s1,
    r_s2,
    eps,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    LEADING: tl.constexpr,
    CENTER: tl.constexpr,
    ZERO_CENTERED: tl.constexpr,
    ROUND: tl.constexpr,
    ADD: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    KEEP: tl.constexpr,
):
    """The same for a row that no program can hold: three times over it, from the cache after the first."""
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    x_start = row_start(row, n12, n2, x_s0, x_s1, x_s2, D, LEADING)
    r_start = row_start(row, n12, n2, r_s0, r_s1, r_s2, D, LEADING)
    total = tl.zeros((1, BLOCK), tl.float32)
    peak = tl.zeros((1, BLOCK), tl.float32)
    for start in range(0, D, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        x = tl.load(x_ptr + x_start[:, None] + column, column < D, 0.0).to(tl.float32)
        if ADD:
            x += tl.load(residual_ptr + r_start[:, None] + column, column < D, 0.0).to(tl.float32)
            rounded = x.to(total_ptr.dtype.element_ty)
            tl.store(total_ptr + row[:, None] * D + column, rounded, column < D)
            x = rounded.to(tl.float32)
        total += x * 5.9604644775390625e-08  # 2^-24: the sum of the largest floats is one, too
        peak = tl.maximum(peak, tl.abs(x))
    scale = scale_of(tl.max(peak, 1), eps)
    shift = tl.zeros((1,), tl.float32)
    if CENTER:
        shift = mean_of(total, D) * 16777216.0 * scale
    first = tl.zeros((1, BLOCK), tl.float32)
    second = tl.zeros((1, BLOCK), tl.float32)
    for start in range(0, D, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        x = tl.load(x_ptr + x_start[:, None] + column, column < D, 0.0).to(tl.float32)
        if ADD:
            x += tl.load(residual_ptr + r_start[:, None] + column, column < D, 0.0).to(tl.float32)
            x = x.to(total_ptr.dtype.element_ty).to(tl.float32)
        d = tl.where(column < D, x * scale[:, None] - shift[:, None], 0.0)
        first += d
        second += d * d
    rest = tl.zeros((1,), tl.float32)
    if CENTER:
        rest = mean_of(first, D)
    var = mean_of(second, D) - rest * rest
    var = tl.maximum(var, 0.0, tl.PropagateNan.ALL)
    rstd = rstd_of(var, eps, scale)
    if KEEP:
        tl.store(stats_ptr + row, tl.div_rn(shift + rest, scale))
        tl.store(stats_ptr + rows + row, kept_rstd(rstd, var, eps, scale))
    for start in range(0, D, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        x = tl.load(x_ptr + x_start[:, None] + column, column < D, 0.0).to(tl.float32)
        if ADD:
            x += tl.load(residual_ptr + r_start[:, None] + column, column < D, 0.0).to(tl.float32)
            x = x.to(total_ptr.dtype.element_ty).to(tl.float32)
        y = (x * scale[:, None] - shift[:, None] - rest[:, None]) * rstd[:, None]
        if WEIGHT:
            if ROUND:
                y = y.to(y_ptr.dtype.element_ty).to(tl.float32)
            y = y * gain_of(tl.load(weight_ptr + column, column < D, 0.0), ZERO_CENTERED, ROUND)
        if BIAS:
            y += tl.load(bias_ptr + column, column < D, 0.0).to(tl.float32)
        tl.store(y_ptr + row[:, None] * D + column, y.to(y_ptr.dtype.element_ty), column < D)

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

__all__ = [
    "row_parameters",
    "rows_backward",
    "rows_backward_long",
    "rows_forward",
    "rows_forward_long",
    "sum_partials",
]


@triton.jit
def _row_start(row, n12, n2, s0, s1, s2, D: tl.constexpr, LEADING: tl.constexpr):
    """Where a row begins: up to three leading axes, n2 rows in the last of them, n12 in the last two."""
    if (
        LEADING == 0
    ):  # one after the other, which the compiler knows: D may divide by more than a stride shows
        start = row * D
    elif LEADING == 1:
        start = row * s2
    elif LEADING == 2:
        start = (row // n2) * s1 + (row % n2) * s2
    else:
        start = (row // n12) * s0 + (row % n12 // n2) * s1 + (row % n2) * s2
    return start


@triton.jit
def _mean(x, D: tl.constexpr):
    """Rounded once: with an approximate division a constant row would not give 0."""
    total = tl.sum(x, 1)
    return tl.div_rn(total, tl.full(total.shape, D, tl.float32))


@triton.jit
def _power_of_two(k):
    """2^k in float32, for -126 <= k <= 127."""
    return ((k + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _exponent(x):
    """floor(log2(x)) of a number above 0; -127 for those too small to be normal, 128 for inf and NaN."""
    return ((x.to(tl.int32, bitcast=True) >> 23) & 255) - 127


@triton.jit
def _is_ordinary(var, eps):
    """Are the squares far from both ends of float32? Not where anything is inf or NaN."""
    return (var + eps > 1e-27) & (var < 1e30)


@triton.jit
def _scale_of(peak, eps):
    """The power of two that brings the largest magnitude near 2^31, whose square is safe.

    Small numbers are enlarged only where eps is too small to matter to them.
    """
    k = tl.where(peak > 0, 31 - _exponent(peak), 0)
    k = tl.where(eps > 1e-28, tl.minimum(k, 0), tl.minimum(k, 96))
    return _power_of_two(tl.maximum(k, -97))


@triton.jit
def _rstd_of(var, eps, scale):
    """Of scaled numbers. Should nothing be left of eps, a constant row still gives 0."""
    eps_d = eps * scale * scale
    eps_d += tl.where((scale < 1) & (eps > 0), 1.1754944e-38, 0.0)  # a smaller one would be a float64
    return tl.div_rn(tl.full(var.shape, 1, tl.float32), tl.sqrt_rn(var + eps_d))


@triton.jit
def _kept_rstd(rstd, var, eps, scale):
    """Of the numbers themselves. What is constant has that of eps alone, which scaling may have lost."""
    of_eps = tl.div_rn(tl.full(var.shape, 1, tl.float32), tl.sqrt_rn(tl.zeros_like(var) + eps))
    return tl.where((var == 0) & (scale < 1), of_eps, rstd * scale)


@triton.jit
def _backward_scale(rstd, mean):
    """rstd without its mantissa, but for numbers so large that they would not bear it."""
    k = tl.minimum(_exponent(rstd), 100 - _exponent(tl.abs(mean)))
    return _power_of_two(tl.minimum(tl.maximum(k, -126), 127))


@triton.jit
def _gain(weight, ZERO_CENTERED: tl.constexpr, ROUND: tl.constexpr):
    """weight, or 1 + weight: in float32, or as the model does that multiplies after the cast."""
    gain = weight.to(tl.float32)
    if ZERO_CENTERED:
        gain = 1.0 + gain
        if ROUND:
            gain = gain.to(weight.dtype).to(tl.float32)
    return gain


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
    x_start = _row_start(row, n12, n2, x_s0, x_s1, x_s2, D, LEADING)
    x = tl.load(x_ptr + x_start[:, None] + column[None, :], inside, 0.0).to(tl.float32)
    y_at = row[:, None] * D + column[None, :]
    if ADD:
        r_start = _row_start(row, n12, n2, r_s0, r_s1, r_s2, D, LEADING)
        x += tl.load(residual_ptr + r_start[:, None] + column[None, :], inside, 0.0).to(tl.float32)
        total = x.to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + y_at, total, inside)
        x = total.to(tl.float32)

    scale = tl.full((ROWS,), 1.0, tl.float32)
    shift = tl.zeros((ROWS,), tl.float32)
    rest = tl.zeros((ROWS,), tl.float32)
    if CENTER:
        shift = _mean(x, D)
        d = tl.where(inside, x - shift[:, None], 0.0)
        rest = _mean(d, D)
        var = _mean(d * d, D) - rest * rest
    else:
        d = x
        var = _mean(x * x, D)
    # Rare: squares that leave the range of float32. inf and NaN come here, too, and stay what they are.
    unusual = is_row & (_is_ordinary(var, eps) == 0)
    if tl.max(unusual.to(tl.int32), 0) > 0:
        scale = tl.where(unusual, _scale_of(tl.max(tl.abs(x), 1), eps), 1.0)
        x_d = x * scale[:, None]
        if CENTER:
            shift = _mean(x_d, D)
            d = tl.where(inside, x_d - shift[:, None], 0.0)
            rest = _mean(d, D)
            var = _mean(d * d, D) - rest * rest
        else:
            d = x_d
            var = _mean(d * d, D)
    var = tl.maximum(var, 0.0, tl.PropagateNan.ALL)
    rstd = _rstd_of(var, eps, scale)
    if KEEP:
        tl.store(stats_ptr + row, tl.div_rn(shift + rest, scale), is_row)
        tl.store(stats_ptr + rows + row, _kept_rstd(rstd, var, eps, scale), is_row)
    y = (d - rest[:, None]) * rstd[:, None]
    if WEIGHT:
        if ROUND:
            y = y.to(y_ptr.dtype.element_ty).to(tl.float32)
        weight = tl.load(weight_ptr + column, column < D, 0.0)
        y = y * _gain(weight, ZERO_CENTERED, ROUND)[None, :]
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
    x_start = _row_start(row, n12, n2, x_s0, x_s1, x_s2, D, LEADING)
    r_start = _row_start(row, n12, n2, r_s0, r_s1, r_s2, D, LEADING)
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
    scale = _scale_of(tl.max(peak, 1), eps)
    shift = tl.zeros((1,), tl.float32)
    if CENTER:
        shift = _mean(total, D) * 16777216.0 * scale
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
        rest = _mean(first, D)
    var = _mean(second, D) - rest * rest
    var = tl.maximum(var, 0.0, tl.PropagateNan.ALL)
    rstd = _rstd_of(var, eps, scale)
    if KEEP:
        tl.store(stats_ptr + row, tl.div_rn(shift + rest, scale))
        tl.store(stats_ptr + rows + row, _kept_rstd(rstd, var, eps, scale))
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
            y = y * _gain(tl.load(weight_ptr + column, column < D, 0.0), ZERO_CENTERED, ROUND)
        if BIAS:
            y += tl.load(bias_ptr + column, column < D, 0.0).to(tl.float32)
        tl.store(y_ptr + row[:, None] * D + column, y.to(y_ptr.dtype.element_ty), column < D)


# Backward. With g = dy · weight, and means over a row,
#
#     dx      = rstd · (g - mean(g) - x_hat · mean(g · x_hat))       [RMSNorm: without mean(g)]
#     dweight = sum over rows of dy · x_hat      dbias = sum over rows of dy
#
# Everything is taken of d = (x - mean) · 2^k, where 2^k is rstd without its mantissa: near 1 for most inputs.


@triton.jit
def rows_backward(
    dy_ptr,
    x_ptr,
    weight_ptr,
    stats_ptr,
    dtotal_ptr,
    dx_ptr,
    dweight_ptr,
    dbias_ptr,
    rows,
    n12,
    n2,
    x_s0,
    x_s1,
    x_s2,
    dy_s0,
    dy_s1,
    dy_s2,
    t_s0,
    t_s1,
    t_s2,
    tiles,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    LEADING: tl.constexpr,
    CENTER: tl.constexpr,
    ZERO_CENTERED: tl.constexpr,
    ROUND: tl.constexpr,
    WEIGHT: tl.constexpr,
    DTOTAL: tl.constexpr,
    DX: tl.constexpr,
    DWEIGHT: tl.constexpr,
    DBIAS: tl.constexpr,
):
    """dx of the rows of a block, and their share of dweight and dbias, in float32."""
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    in_row = column < D
    if WEIGHT:
        gain = _gain(tl.load(weight_ptr + column, in_row, 0.0), ZERO_CENTERED, ROUND)
    if DWEIGHT:
        dweight = tl.zeros((BLOCK,), tl.float32)
    if DBIAS:
        dbias = tl.zeros((BLOCK,), tl.float32)
    for tile in range(tiles):
        row = (program * tiles + tile) * ROWS + tl.arange(0, ROWS)
        is_row = row < rows
        inside = is_row[:, None] & in_row[None, :]
        x_start = _row_start(row, n12, n2, x_s0, x_s1, x_s2, D, LEADING)
        dy_start = _row_start(row, n12, n2, dy_s0, dy_s1, dy_s2, D, LEADING)
        x = tl.load(x_ptr + x_start[:, None] + column[None, :], inside, 0.0).to(tl.float32)
        dy = tl.load(dy_ptr + dy_start[:, None] + column[None, :], inside, 0.0).to(tl.float32)
        rstd = tl.load(stats_ptr + rows + row, is_row, 1.0)
        mean = tl.zeros((ROWS,), tl.float32)
        if CENTER:
            mean = tl.load(stats_ptr + row, is_row, 0.0)
        scale = _backward_scale(rstd, mean)
        rstd_d = tl.div_rn(rstd, scale)
        d = x * scale[:, None]
        rest = tl.zeros((ROWS,), tl.float32)
        if CENTER:
            d = tl.where(inside, d - (mean * scale)[:, None], 0.0)
            rest = _mean(d, D)
        x_hat = (d - rest[:, None]) * rstd_d[:, None]
        if DX:
            g = dy
            if WEIGHT:
                g = dy * gain[None, :]
            c1 = tl.zeros((ROWS,), tl.float32)
            c2 = _mean(g * d, D)
            if CENTER:
                c1 = _mean(g, D)
                c2 -= rest * c1
            dx = g - c1[:, None] - x_hat * (c2 * rstd_d)[:, None]
            dx = dx * rstd[:, None]
            if DTOTAL:
                t_start = _row_start(row, n12, n2, t_s0, t_s1, t_s2, D, LEADING)
                dx += tl.load(dtotal_ptr + t_start[:, None] + column[None, :], inside, 0.0).to(tl.float32)
            tl.store(dx_ptr + row[:, None] * D + column[None, :], dx.to(dx_ptr.dtype.element_ty), inside)
        if DWEIGHT:
            if ROUND:
                x_hat = x_hat.to(dy_ptr.dtype.element_ty).to(tl.float32)
            dweight += tl.sum(tl.where(inside, dy * x_hat, 0.0), 0)
        if DBIAS:
            dbias += tl.sum(dy, 0)
    if DWEIGHT:
        tl.store(dweight_ptr + program * D + column, dweight, in_row)
    if DBIAS:
        tl.store(dbias_ptr + program * D + column, dbias, in_row)


@triton.jit
def rows_backward_long(
    dy_ptr,
    x_ptr,
    weight_ptr,
    stats_ptr,
    dtotal_ptr,
    dx_ptr,
    rest_ptr,
    rows,
    n12,
    n2,
    x_s0,
    x_s1,
    x_s2,
    dy_s0,
    dy_s1,
    dy_s2,
    t_s0,
    t_s1,
    t_s2,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    LEADING: tl.constexpr,
    CENTER: tl.constexpr,
    ZERO_CENTERED: tl.constexpr,
    ROUND: tl.constexpr,
    WEIGHT: tl.constexpr,
    DTOTAL: tl.constexpr,
    DX: tl.constexpr,
):
    """dx of one long row: twice over it. What its mean missed is kept for ``row_parameters``."""
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    x_start = _row_start(row, n12, n2, x_s0, x_s1, x_s2, D, LEADING)[:, None]
    dy_start = _row_start(row, n12, n2, dy_s0, dy_s1, dy_s2, D, LEADING)[:, None]
    t_start = _row_start(row, n12, n2, t_s0, t_s1, t_s2, D, LEADING)[:, None]
    rstd = tl.load(stats_ptr + rows + row)
    mean = tl.zeros((1,), tl.float32)
    if CENTER:
        mean = tl.load(stats_ptr + row)
    scale = _backward_scale(rstd, mean)
    rstd_d = tl.div_rn(rstd, scale)[:, None]
    mean = mean * scale
    sum_d = tl.zeros((1, BLOCK), tl.float32)
    sum_g = tl.zeros((1, BLOCK), tl.float32)
    sum_gd = tl.zeros((1, BLOCK), tl.float32)
    for start in range(0, D, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        x = tl.load(x_ptr + x_start + column, column < D, 0.0).to(tl.float32)
        g = tl.load(dy_ptr + dy_start + column, column < D, 0.0).to(tl.float32)
        if WEIGHT:
            g = g * _gain(tl.load(weight_ptr + column, column < D, 0.0), ZERO_CENTERED, ROUND)
        d = tl.where(column < D, x * scale[:, None] - mean[:, None], 0.0)
        sum_d += d
        sum_g += g
        sum_gd += g * d
    rest = tl.zeros((1,), tl.float32)
    c1 = tl.zeros((1,), tl.float32)
    c2 = _mean(sum_gd, D)
    if CENTER:
        rest = _mean(sum_d, D)
        c1 = _mean(sum_g, D)
        c2 -= rest * c1
        tl.store(rest_ptr + row, rest)
    c2 = c2[:, None] * rstd_d
    if DX:
        for start in range(0, D, BLOCK):
            column = start + tl.arange(0, BLOCK)[None, :]
            x = tl.load(x_ptr + x_start + column, column < D, 0.0).to(tl.float32)
            g = tl.load(dy_ptr + dy_start + column, column < D, 0.0).to(tl.float32)
            if WEIGHT:
                g = g * _gain(tl.load(weight_ptr + column, column < D, 0.0), ZERO_CENTERED, ROUND)
            x_hat = (x * scale[:, None] - mean[:, None] - rest[:, None]) * rstd_d
            dx = (g - c1[:, None] - x_hat * c2) * rstd[:, None]
            if DTOTAL:
                dx += tl.load(dtotal_ptr + t_start + column, column < D, 0.0).to(tl.float32)
            tl.store(dx_ptr + row[:, None] * D + column, dx.to(dx_ptr.dtype.element_ty), column < D)


@triton.jit
def row_parameters(
    dy_ptr,
    x_ptr,
    stats_ptr,
    rest_ptr,
    dweight_ptr,
    dbias_ptr,
    rows,
    n12,
    n2,
    x_s0,
    x_s1,
    x_s2,
    dy_s0,
    dy_s1,
    dy_s2,
    tiles,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    LEADING: tl.constexpr,
    CENTER: tl.constexpr,
    ROUND: tl.constexpr,
    DWEIGHT: tl.constexpr,
    DBIAS: tl.constexpr,
):
    """The share of a block of long rows in some columns of dweight and dbias."""
    program = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in_row = column < D
    dweight = tl.zeros((BLOCK,), tl.float32)
    dbias = tl.zeros((BLOCK,), tl.float32)
    for tile in range(tiles):
        row = (program * tiles + tile) * ROWS + tl.arange(0, ROWS)
        is_row = row < rows
        inside = is_row[:, None] & in_row[None, :]
        dy_start = _row_start(row, n12, n2, dy_s0, dy_s1, dy_s2, D, LEADING)
        dy = tl.load(dy_ptr + dy_start[:, None] + column[None, :], inside, 0.0).to(tl.float32)
        if DWEIGHT:
            x_start = _row_start(row, n12, n2, x_s0, x_s1, x_s2, D, LEADING)
            x = tl.load(x_ptr + x_start[:, None] + column[None, :], inside, 0.0).to(tl.float32)
            rstd = tl.load(stats_ptr + rows + row, is_row, 1.0)
            mean = tl.zeros((ROWS,), tl.float32)
            if CENTER:
                mean = tl.load(stats_ptr + row, is_row, 0.0)
            scale = _backward_scale(rstd, mean)
            x_hat = x * scale[:, None]
            if CENTER:
                x_hat = x_hat - (mean * scale)[:, None] - tl.load(rest_ptr + row, is_row, 0.0)[:, None]
            x_hat = x_hat * tl.div_rn(rstd, scale)[:, None]
            if ROUND:
                x_hat = x_hat.to(dy_ptr.dtype.element_ty).to(tl.float32)
            dweight += tl.sum(tl.where(inside, dy * x_hat, 0.0), 0)
        if DBIAS:
            dbias += tl.sum(dy, 0)
    if DWEIGHT:
        tl.store(dweight_ptr + program * D + column, dweight, in_row)
    if DBIAS:
        tl.store(dbias_ptr + program * D + column, dbias, in_row)


@triton.jit
def sum_partials(parts_ptr, out_ptr, parts, D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """The sum of (parts, D) over its first axis, in one order."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, parts, ROWS):
        part = start + tl.arange(0, ROWS)
        inside = (part < parts)[:, None] & (column < D)[None, :]
        found += tl.load(parts_ptr + part.to(tl.int64)[:, None] * D + column[None, :], inside, 0.0)
    tl.store(out_ptr + column, tl.sum(found, 0).to(out_ptr.dtype.element_ty), column < D)

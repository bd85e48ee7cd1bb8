"""The backward of rows. With g = dy · weight, and means over a row,

    dx      = rstd · (g - mean(g) - x_hat · mean(g · x_hat))       [RMSNorm: without mean(g)]
    dweight = sum over rows of dy · x_hat      dbias = sum over rows of dy

Everything is taken of d = (x - mean) · 2^k, where 2^k is rstd without its mantissa: near 1 for most inputs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from normkit.kernels.triton.device.row_numbers import backward_scale, gain_of, mean_of, row_start

__all__ = ["row_parameters", "rows_backward", "rows_backward_long", "sum_partials"]


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
    # Where a row takes all registers, the weight comes from the cache each time.
    KEEP: tl.constexpr = BLOCK < 4096
    if WEIGHT and KEEP:
        gain = gain_of(tl.load(weight_ptr + column, in_row, 0.0), ZERO_CENTERED, ROUND)
    if DWEIGHT:
        dweight = tl.zeros((BLOCK,), tl.float32)
    if DBIAS:
        dbias = tl.zeros((BLOCK,), tl.float32)
    for tile in range(tiles):
        row = (program * tiles + tile) * ROWS + tl.arange(0, ROWS)
        is_row = row < rows
        inside = is_row[:, None] & in_row[None, :]
        x_start = row_start(row, n12, n2, x_s0, x_s1, x_s2, D, LEADING)
        dy_start = row_start(row, n12, n2, dy_s0, dy_s1, dy_s2, D, LEADING)
        x = tl.load(x_ptr + x_start[:, None] + column[None, :], inside, 0.0).to(tl.float32)
        dy = tl.load(dy_ptr + dy_start[:, None] + column[None, :], inside, 0.0).to(tl.float32)
        rstd = tl.load(stats_ptr + rows + row, is_row, 1.0)
        mean = tl.zeros((ROWS,), tl.float32)
        if CENTER:
            mean = tl.load(stats_ptr + row, is_row, 0.0)
        scale = backward_scale(rstd, mean)
        rstd_d = tl.div_rn(rstd, scale)
        d = x * scale[:, None]
        rest = tl.zeros((ROWS,), tl.float32)
        if CENTER:
            d = tl.where(inside, d - (mean * scale)[:, None], 0.0)
            rest = mean_of(d, D)
        x_hat = (d - rest[:, None]) * rstd_d[:, None]
        if DX:
            g = dy
            if WEIGHT:
                if not KEEP:
                    gain = gain_of(tl.load(weight_ptr + column, in_row, 0.0), ZERO_CENTERED, ROUND)
                g = dy * gain[None, :]
            c1 = tl.zeros((ROWS,), tl.float32)
            c2 = mean_of(g * d, D)
            if CENTER:
                c1 = mean_of(g, D)
                c2 -= rest * c1
            dx = g - c1[:, None] - x_hat * (c2 * rstd_d)[:, None]
            dx = dx * rstd[:, None]
            if DTOTAL:
                t_start = row_start(row, n12, n2, t_s0, t_s1, t_s2, D, LEADING)
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
    x_start = row_start(row, n12, n2, x_s0, x_s1, x_s2, D, LEADING)[:, None]
    dy_start = row_start(row, n12, n2, dy_s0, dy_s1, dy_s2, D, LEADING)[:, None]
    t_start = row_start(row, n12, n2, t_s0, t_s1, t_s2, D, LEADING)[:, None]
    rstd = tl.load(stats_ptr + rows + row)
    mean = tl.zeros((1,), tl.float32)
    if CENTER:
        mean = tl.load(stats_ptr + row)
    scale = backward_scale(rstd, mean)
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
            g = g * gain_of(tl.load(weight_ptr + column, column < D, 0.0), ZERO_CENTERED, ROUND)
        d = tl.where(column < D, x * scale[:, None] - mean[:, None], 0.0)
        sum_d += d
        sum_g += g
        sum_gd += g * d
    rest = tl.zeros((1,), tl.float32)
    c1 = tl.zeros((1,), tl.float32)
    c2 = mean_of(sum_gd, D)
    if CENTER:
        rest = mean_of(sum_d, D)
        c1 = mean_of(sum_g, D)
        c2 -= rest * c1
        tl.store(rest_ptr + row, rest)
    c2 = c2[:, None] * rstd_d
    if DX:
        for start in range(0, D, BLOCK):
            column = start + tl.arange(0, BLOCK)[None, :]
            x = tl.load(x_ptr + x_start + column, column < D, 0.0).to(tl.float32)
            g = tl.load(dy_ptr + dy_start + column, column < D, 0.0).to(tl.float32)
            if WEIGHT:
                g = g * gain_of(tl.load(weight_ptr + column, column < D, 0.0), ZERO_CENTERED, ROUND)
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
        dy_start = row_start(row, n12, n2, dy_s0, dy_s1, dy_s2, D, LEADING)
        dy = tl.load(dy_ptr + dy_start[:, None] + column[None, :], inside, 0.0).to(tl.float32)
        if DWEIGHT:
            x_start = row_start(row, n12, n2, x_s0, x_s1, x_s2, D, LEADING)
            x = tl.load(x_ptr + x_start[:, None] + column[None, :], inside, 0.0).to(tl.float32)
            rstd = tl.load(stats_ptr + rows + row, is_row, 1.0)
            mean = tl.zeros((ROWS,), tl.float32)
            if CENTER:
                mean = tl.load(stats_ptr + row, is_row, 0.0)
            scale = backward_scale(rstd, mean)
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

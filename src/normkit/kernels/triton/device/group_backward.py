"""The backward of groups. With g = dy · weight, and means over a group,

dx = rstd · (g - mean(g) - x_hat · mean(g · x_hat))      [given statistics: rstd · g]
dweight = sum of dy · x_hat      dbias = sum of dy        over all places of a channel
"""

from __future__ import annotations

import triton
import triton.language as tl

from normkit.kernels.triton.device.group_tiles import over_channels, over_places, places_of, x_hat_of

__all__ = ["group_backward", "group_constants", "group_row_parameters", "group_sums"]


@triton.jit
def group_sums(
    dy_ptr,
    x_ptr,
    mask_ptr,
    stats_ptr,
    weight_ptr,
    parts_ptr,
    R1,
    C,
    I,
    R3,
    chunks,
    steps,
    groups,
    size,
    BLOCK_C: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    COLUMNS: tl.constexpr,
    MASK: tl.constexpr,
    ON_ROWS: tl.constexpr,
):
    """Of a chunk of every channel: the sums of dy · x_hat and of dy; ON_ROWS: of g in the place of dy."""
    size = tl.cast(size, tl.int64)
    groups = tl.cast(groups, tl.int64)
    AXIS: tl.constexpr = 0 if COLUMNS else 1
    a = (tl.program_id(0) // chunks).to(tl.int64)
    chunk = tl.program_id(0) % chunks
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    group = a * (C // R3) + c // R3
    with_x_hat = tl.zeros((BLOCK_C,), tl.float32)
    alone = tl.zeros((BLOCK_C,), tl.float32)
    for t in range(steps):
        r, i, valid = places_of(chunk * steps + t, R1, I, BLOCK_Q, COLUMNS)
        line = a * R1 + r
        if MASK:
            valid = valid & (tl.load(mask_ptr + line * I + i, valid, 0) != 0)
        inside = over_channels(c < C, COLUMNS) & over_places(valid, COLUMNS)
        at = over_places(line * C * I + i, COLUMNS) + over_channels(c.to(tl.int64) * I, COLUMNS)
        x = tl.load(x_ptr + at, inside, 0.0).to(tl.float32)
        dy = tl.load(dy_ptr + at, inside, 0.0).to(tl.float32)
        if ON_ROWS:
            dy = dy * over_places(tl.load(weight_ptr + r, valid, 0.0).to(tl.float32), COLUMNS)
        x_hat = x_hat_of(x, stats_ptr, group, groups, c < C, COLUMNS)
        with_x_hat += tl.sum(tl.where(inside, dy * x_hat, 0.0), AXIS)
        alone += tl.sum(dy, AXIS)
    at = tl.program_id(0).to(tl.int64) * C + c
    tl.store(parts_ptr + at, with_x_hat, c < C)
    tl.store(parts_ptr + size + at, alone, c < C)


@triton.jit
def group_constants(
    parts_ptr,
    weight_ptr,
    stats_ptr,
    constants_ptr,
    groups,
    K2,
    R3,
    chunks,
    size,
    BLOCK: tl.constexpr,
    WEIGHT: tl.constexpr,
):
    """One group: the means of g · x_hat and of g."""
    size = tl.cast(size, tl.int64)
    groups = tl.cast(groups, tl.int64)
    group = tl.program_id(0).to(tl.int64)
    start = group // K2 * chunks * K2 * R3 + group % K2 * R3
    with_x_hat = tl.zeros((1, BLOCK), tl.float32)
    alone = tl.zeros((1, BLOCK), tl.float32)
    for first in range(0, chunks * R3, BLOCK):
        p = first + tl.arange(0, BLOCK)[None, :]
        valid = p < chunks * R3
        at = start + p // R3 * (tl.cast(K2, tl.int64) * R3) + p % R3
        one = tl.load(parts_ptr + at, valid, 0.0)
        two = tl.load(parts_ptr + size + at, valid, 0.0)
        if WEIGHT:
            weight = tl.load(weight_ptr + group % K2 * R3 + p % R3, valid, 0.0).to(tl.float32)
            one = one * weight
            two = two * weight
        with_x_hat += one
        alone += two
    to = group + tl.arange(0, 1)
    n = tl.maximum(tl.load(stats_ptr + 2 * groups + to), 1.0)
    tl.store(constants_ptr + to, tl.div_rn(tl.sum(with_x_hat, 1), n))
    tl.store(constants_ptr + groups + to, tl.div_rn(tl.sum(alone, 1), n))


@triton.jit
def group_backward(
    dy_ptr,
    x_ptr,
    mask_ptr,
    stats_ptr,
    constants_ptr,
    weight_ptr,
    dx_ptr,
    R1,
    C,
    I,
    R3,
    chunks,
    steps,
    groups,
    BLOCK_C: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    COLUMNS: tl.constexpr,
    CENTER: tl.constexpr,
    MASK: tl.constexpr,
    WEIGHT: tl.constexpr,
    ON_ROWS: tl.constexpr,
    GIVEN: tl.constexpr,
):
    """dx of a chunk of some channels; 0 where the mask is."""
    groups = tl.cast(groups, tl.int64)
    a = (tl.program_id(0) // chunks).to(tl.int64)
    chunk = tl.program_id(0) % chunks
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    group = a * (C // R3) + c // R3
    rstd = tl.load(stats_ptr + 5 * groups + group, c < C, 0.0)
    scale = tl.load(stats_ptr + 6 * groups + group, c < C, 1.0)
    for t in range(steps):
        r, i, valid = places_of(chunk * steps + t, R1, I, BLOCK_Q, COLUMNS)
        line = a * R1 + r
        inside = over_channels(c < C, COLUMNS) & over_places(valid, COLUMNS)
        at = over_places(line * C * I + i, COLUMNS) + over_channels(c.to(tl.int64) * I, COLUMNS)
        dx = tl.load(dy_ptr + at, inside, 0.0).to(tl.float32)
        if WEIGHT:
            if ON_ROWS:
                dx = dx * over_places(tl.load(weight_ptr + r, valid, 0.0).to(tl.float32), COLUMNS)
            else:
                dx = dx * over_channels(tl.load(weight_ptr + c, c < C, 0.0).to(tl.float32), COLUMNS)
        if not GIVEN:
            x = tl.load(x_ptr + at, inside, 0.0).to(tl.float32)
            x_hat = x_hat_of(x, stats_ptr, group, groups, c < C, COLUMNS)
            c2 = tl.load(constants_ptr + group, c < C, 0.0)
            dx = dx - x_hat * over_channels(c2, COLUMNS)
            if CENTER:
                c1 = tl.load(constants_ptr + groups + group, c < C, 0.0)
                dx = dx - over_channels(c1, COLUMNS)
        dx = dx * over_channels(rstd, COLUMNS) * over_channels(scale, COLUMNS)
        if MASK:
            real = tl.load(mask_ptr + line * I + i, valid, 0) != 0
            dx = tl.where(over_places(real, COLUMNS), dx, 0.0)
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), inside)


@triton.jit
def group_row_parameters(
    dy_ptr,
    x_ptr,
    mask_ptr,
    stats_ptr,
    parts_ptr,
    R1,
    C,
    R3,
    groups,
    size,
    BLOCK_C: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    MASK: tl.constexpr,
):
    """Parameters along r1, where i is 1: the share of one k0 in dweight and dbias."""
    size = tl.cast(size, tl.int64)
    groups = tl.cast(groups, tl.int64)
    a = tl.program_id(0).to(tl.int64)
    r = tl.program_id(1) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    line = a * R1 + r
    real = r < R1
    if MASK:
        real = real & (tl.load(mask_ptr + line, real, 0) != 0)
    dweight = tl.zeros((BLOCK_Q, BLOCK_C), tl.float32)
    dbias = tl.zeros((BLOCK_Q, BLOCK_C), tl.float32)
    for first in range(0, C, BLOCK_C):
        c = first + tl.arange(0, BLOCK_C)
        inside = real[:, None] & (c < C)[None, :]
        at = (line * C)[:, None] + c[None, :]
        x = tl.load(x_ptr + at, inside, 0.0).to(tl.float32)
        dy = tl.load(dy_ptr + at, inside, 0.0).to(tl.float32)
        x_hat = x_hat_of(x, stats_ptr, a * (C // R3) + c // R3, groups, c < C, True)
        dweight += tl.where(inside, dy * x_hat, 0.0)
        dbias += dy
    to = a * R1 + r
    tl.store(parts_ptr + to, tl.sum(dweight, 1), r < R1)
    tl.store(parts_ptr + size + to, tl.sum(dbias, 1), r < R1)

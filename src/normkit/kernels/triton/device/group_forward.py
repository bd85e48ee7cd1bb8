"""Groups in Triton: dense memory as (k0, r1, k2, r3, i), one mean for each (k0, k2), as on the CPU.

Channels are (k2, r3); what is added up within one are the places (r1, i). Three steps:

    group_moments   of every chunk of places of every channel: mean, sum of squared distances, number
    group_finish    of every group: the moments of its chunks put together (Chan, Golub & LeVeque 1979)
    group_apply     y = (x - mean) · rstd · weight + bias

A mean is two float32, a shift and what it missed. Numbers whose squares would leave the range of float32
are taken times 2^-80 or 2^80. How places are cut into chunks follows from the sizes of one k0 alone: a
sample's bits do not depend on the batch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from normkit.kernels.triton.device.group_tiles import over_channels, over_places, places_of, x_hat_of

__all__ = ["given_statistics", "group_apply", "group_finish", "group_moments", "move_running"]


UP: tl.constexpr = tl.constexpr(2.0**80)
DOWN: tl.constexpr = tl.constexpr(2.0**-80)


@triton.jit
def _chunk_moments(
    x_ptr,
    mask_ptr,
    a,
    chunk,
    c,
    scale,
    R1,
    C,
    I,
    steps,
    BLOCK_C: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    COLUMNS: tl.constexpr,
    CENTER: tl.constexpr,
    MASK: tl.constexpr,
):
    """Each tile's moments about its own mean, merged in turn. All channels count the same places."""
    AXIS: tl.constexpr = 0 if COLUMNS else 1
    shift = tl.zeros((BLOCK_C,), tl.float32)
    rest = tl.zeros((BLOCK_C,), tl.float32)
    squares = tl.zeros((BLOCK_C,), tl.float32)
    count = 0.0
    for t in range(steps):
        r, i, valid = places_of(chunk * steps + t, R1, I, BLOCK_Q, COLUMNS)
        line = a * R1 + r
        if MASK:
            valid = valid & (tl.load(mask_ptr + line * I + i, valid, 0) != 0)
        inside = over_channels(c < C, COLUMNS) & over_places(valid, COLUMNS)
        at = over_places(line * C * I + i, COLUMNS) + over_channels(c.to(tl.int64) * I, COLUMNS)
        x = tl.load(x_ptr + at, inside, 0.0).to(tl.float32) * over_channels(scale, COLUMNS)
        n = tl.sum(valid.to(tl.float32), 0)
        if CENTER:
            # Divided, not multiplied by 1 / n: what is constant stays so.
            least = tl.maximum(n, 1.0)
            mean = tl.div_rn(tl.sum(x, AXIS), least)
            d = tl.where(inside, x - over_channels(mean, COLUMNS), 0.0)
            missed = tl.div_rn(tl.sum(d, AXIS), least)
            shift = tl.where(count == 0, mean, shift)
            distance = ((mean - shift) + missed) - rest
            share = tl.div_rn(n, tl.maximum(count + n, 1.0))
            own = tl.sum(d * d, AXIS) - n * missed * missed
            squares += tl.where(n > 0, own + distance * distance * (count * share), 0.0)
            rest += tl.where(n > 0, distance * share, 0.0)
        else:
            squares += tl.sum(x * x, AXIS)
        count += n
    return shift, rest, squares, count


@triton.jit
def group_moments(
    x_ptr,
    mask_ptr,
    parts_ptr,
    R1,
    C,
    I,
    chunks,
    steps,
    eps,
    size,
    BLOCK_C: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    COLUMNS: tl.constexpr,
    CENTER: tl.constexpr,
    MASK: tl.constexpr,
):
    """(shift, rest, squares, count, scale) of a chunk of every channel, in the units of x · scale."""
    size = tl.cast(size, tl.int64)
    a = (tl.program_id(0) // chunks).to(tl.int64)
    chunk = tl.program_id(0) % chunks
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    scale = tl.full((BLOCK_C,), 1.0, tl.float32)
    shift, rest, squares, count = _chunk_moments(
        x_ptr, mask_ptr, a, chunk, c, scale, R1, C, I, steps, BLOCK_C, BLOCK_Q, COLUMNS, CENTER, MASK
    )
    # Rare: squares that leave the range of float32. inf and NaN come here, too, and stay what they are.
    var = squares * tl.div_rn(1.0, tl.maximum(count, 1.0))
    counts = count + tl.zeros((BLOCK_C,), tl.float32)
    # Of larger numbers, what varies so little is constant: it would leave the range, scaled up.
    small = (var + eps <= 1e-27) & (tl.abs(shift) < 1e-2)
    unusual = (c < C) & (counts > 0) & (small | ((var < 1e30) == 0))
    if tl.max(unusual.to(tl.int32), 0) > 0:
        scale = tl.where(unusual, tl.where(small, UP, DOWN), 1.0)
        shift, rest, squares, count = _chunk_moments(
            x_ptr, mask_ptr, a, chunk, c, scale, R1, C, I, steps, BLOCK_C, BLOCK_Q, COLUMNS, CENTER, MASK
        )
    at = tl.program_id(0).to(tl.int64) * C + c
    tl.store(parts_ptr + at, shift, c < C)
    tl.store(parts_ptr + size + at, rest, c < C)
    tl.store(parts_ptr + 2 * size + at, squares, c < C)
    tl.store(parts_ptr + 3 * size + at, counts, c < C)
    tl.store(parts_ptr + 4 * size + at, scale, c < C)


@triton.jit
def _merge_chunks(
    parts_ptr, start, scale, least, K2, R3, chunks, size, BLOCK: tl.constexpr, CENTER: tl.constexpr
):
    """(shift, rest, var) of a group in the units of x · scale."""
    # Sums are kept by lane and added up behind a loop: a pass of Triton's compiler fails on the other order.
    shift = tl.zeros((1,), tl.float32)
    rest = tl.zeros((1,), tl.float32)
    if CENTER:
        total = tl.zeros((1, BLOCK), tl.float32)
        for first in range(0, chunks * R3, BLOCK):
            p = first + tl.arange(0, BLOCK)[None, :]
            valid = p < chunks * R3
            at = start + p // R3 * (tl.cast(K2, tl.int64) * R3) + p % R3
            factor = tl.div_rn(scale[:, None], tl.load(parts_ptr + 4 * size + at, valid, 1.0))
            count = tl.load(parts_ptr + 3 * size + at, valid, 0.0)
            total += count * (tl.load(parts_ptr + at, valid, 0.0) * factor)
        shift = tl.div_rn(tl.sum(total, 1), least)
        total = tl.zeros((1, BLOCK), tl.float32)
        for first in range(0, chunks * R3, BLOCK):
            p = first + tl.arange(0, BLOCK)[None, :]
            valid = p < chunks * R3
            at = start + p // R3 * (tl.cast(K2, tl.int64) * R3) + p % R3
            factor = tl.div_rn(scale[:, None], tl.load(parts_ptr + 4 * size + at, valid, 1.0))
            count = tl.load(parts_ptr + 3 * size + at, valid, 0.0)
            hi = tl.load(parts_ptr + at, valid, 0.0) * factor
            lo = tl.load(parts_ptr + size + at, valid, 0.0) * factor
            total += tl.where(count > 0, count * ((hi - shift[:, None]) + lo), 0.0)
        rest = tl.div_rn(tl.sum(total, 1), least)
    squares = tl.zeros((1, BLOCK), tl.float32)
    for first in range(0, chunks * R3, BLOCK):
        p = first + tl.arange(0, BLOCK)[None, :]
        valid = p < chunks * R3
        at = start + p // R3 * (tl.cast(K2, tl.int64) * R3) + p % R3
        factor = tl.div_rn(scale[:, None], tl.load(parts_ptr + 4 * size + at, valid, 1.0))
        count = tl.load(parts_ptr + 3 * size + at, valid, 0.0)
        own = tl.load(parts_ptr + 2 * size + at, valid, 0.0) * factor * factor
        if CENTER:
            hi = tl.load(parts_ptr + at, valid, 0.0) * factor
            lo = tl.load(parts_ptr + size + at, valid, 0.0) * factor
            distance = (hi - shift[:, None]) + lo - rest[:, None]
            own += count * distance * distance
        squares += tl.where(count > 0, own, 0.0)
    return shift, rest, tl.maximum(tl.div_rn(tl.sum(squares, 1), least), 0.0, tl.PropagateNan.ALL)


@triton.jit
def group_finish(
    parts_ptr,
    stats_ptr,
    groups,
    K2,
    R3,
    chunks,
    eps,
    size,
    BLOCK: tl.constexpr,
    CENTER: tl.constexpr,
):
    """One group: (mean, var, count), then (shift, rest, rstd) in the units of x · scale, and scale."""
    size = tl.cast(size, tl.int64)
    groups = tl.cast(groups, tl.int64)
    group = tl.program_id(0).to(tl.int64)
    start = group // K2 * chunks * K2 * R3 + group % K2 * R3
    scales = tl.full((1, BLOCK), 3e38, tl.float32)
    counts = tl.zeros((1, BLOCK), tl.float32)
    for first in range(0, chunks * R3, BLOCK):
        p = first + tl.arange(0, BLOCK)[None, :]
        valid = p < chunks * R3
        at = start + p // R3 * (tl.cast(K2, tl.int64) * R3) + p % R3
        count = tl.load(parts_ptr + 3 * size + at, valid, 0.0)
        own = tl.load(parts_ptr + 4 * size + at, valid, 1.0)
        counts += count
        scales = tl.minimum(scales, tl.where(count > 0, own, 3e38))
    n = tl.sum(counts, 1)
    scale = tl.min(scales, 1)
    scale = tl.where(scale > 1e38, 1.0, scale)
    least = tl.maximum(n, 1.0)
    shift, rest, var = _merge_chunks(parts_ptr, start, scale, least, K2, R3, chunks, size, BLOCK, CENTER)
    # Chunks that vary little, each by itself, and are far from each other.
    for _ in range(2):
        far = (var < 1e30) == 0
        if tl.max((far & (scale > DOWN)).to(tl.int32), 0) > 0:
            scale = tl.where(scale > 1, 1.0, DOWN)
            shift, rest, var = _merge_chunks(
                parts_ptr, start, scale, least, K2, R3, chunks, size, BLOCK, CENTER
            )
    # What is constant is not scaled: nothing would be left of eps.
    back = tl.where(var == 0, scale, 1.0)
    shift = tl.div_rn(shift, back)
    rest = tl.div_rn(rest, back)
    scale = tl.div_rn(scale, back)
    rstd = tl.div_rn(tl.full((1,), 1, tl.float32), tl.sqrt_rn(var + eps * scale * scale))
    to = stats_ptr + group + tl.arange(0, 1)
    tl.store(to, tl.div_rn(shift + rest, scale))
    tl.store(to + groups, tl.div_rn(tl.div_rn(var, scale), scale))
    tl.store(to + 2 * groups, n)
    tl.store(to + 3 * groups, shift)
    tl.store(to + 4 * groups, rest)
    tl.store(to + 5 * groups, rstd)
    tl.store(to + 6 * groups, scale)


@triton.jit
def group_apply(
    x_ptr,
    mask_ptr,
    stats_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
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
    MASK: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    ON_ROWS: tl.constexpr,
):
    """y = x_hat · weight + bias of a chunk of some channels; 0 where the mask is."""
    groups = tl.cast(groups, tl.int64)
    a = (tl.program_id(0) // chunks).to(tl.int64)
    chunk = tl.program_id(0) % chunks
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    group = a * (C // R3) + c // R3
    for t in range(steps):
        r, i, valid = places_of(chunk * steps + t, R1, I, BLOCK_Q, COLUMNS)
        line = a * R1 + r
        inside = over_channels(c < C, COLUMNS) & over_places(valid, COLUMNS)
        at = over_places(line * C * I + i, COLUMNS) + over_channels(c.to(tl.int64) * I, COLUMNS)
        x = tl.load(x_ptr + at, inside, 0.0).to(tl.float32)
        y = x_hat_of(x, stats_ptr, group, groups, c < C, COLUMNS)
        if WEIGHT:
            if ON_ROWS:
                y = y * over_places(tl.load(weight_ptr + r, valid, 0.0).to(tl.float32), COLUMNS)
            else:
                y = y * over_channels(tl.load(weight_ptr + c, c < C, 0.0).to(tl.float32), COLUMNS)
        if BIAS:
            if ON_ROWS:
                y += over_places(tl.load(bias_ptr + r, valid, 0.0).to(tl.float32), COLUMNS)
            else:
                y += over_channels(tl.load(bias_ptr + c, c < C, 0.0).to(tl.float32), COLUMNS)
        if MASK:
            real = tl.load(mask_ptr + line * I + i, valid, 0) != 0
            y = tl.where(over_places(real, COLUMNS), y, 0.0)
        tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), inside)


@triton.jit
def given_statistics(mean_ptr, var_ptr, stats_ptr, K2, groups, eps, BLOCK: tl.constexpr):
    """The statistics of every group where mean and variance are given for every k2: see ``group_finish``."""
    group = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_group = group < groups
    mean = tl.load(mean_ptr + group % K2, is_group, 0.0).to(tl.float32)
    var = tl.load(var_ptr + group % K2, is_group, 1.0).to(tl.float32)
    one = tl.full((BLOCK,), 1, tl.float32)
    to = stats_ptr + group
    tl.store(to, mean, is_group)
    tl.store(to + groups, var, is_group)
    tl.store(to + 2 * groups, one, is_group)
    tl.store(to + 3 * groups, mean, is_group)
    tl.store(to + 4 * groups, one - one, is_group)
    tl.store(to + 5 * groups, tl.div_rn(one, tl.sqrt_rn(var + eps)), is_group)
    tl.store(to + 6 * groups, one, is_group)


@triton.jit
def move_running(mean_ptr, var_ptr, stats_ptr, channels, momentum, BLOCK: tl.constexpr):
    """running = (1 - momentum) · running + momentum · that of the batch, with the unbiased variance."""
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_channel = c < channels
    mean = tl.load(stats_ptr + c, is_channel, 0.0)
    var = tl.load(stats_ptr + channels + c, is_channel, 0.0)
    n = tl.load(stats_ptr + 2 * channels + c, is_channel, 0.0)
    unbiased = var * tl.div_rn(n, tl.maximum(n - 1, 1.0))
    old_mean = tl.load(mean_ptr + c, is_channel, 0.0)
    old_var = tl.load(var_ptr + c, is_channel, 0.0)
    new_mean = (1 - momentum) * old_mean.to(tl.float32) + momentum * mean
    new_var = (1 - momentum) * old_var.to(tl.float32) + momentum * unbiased
    tl.store(mean_ptr + c, new_mean.to(old_mean.dtype), is_channel & (n > 0))
    tl.store(var_ptr + c, new_var.to(old_var.dtype), is_channel & (n > 1))

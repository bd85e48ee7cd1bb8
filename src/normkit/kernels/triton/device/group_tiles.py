"""What the kernels of groups share: a tile of channels and places, and x_hat from their statistics."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["over_channels", "over_places", "places_of", "x_hat_of"]


@triton.jit
def over_channels(value, COLUMNS: tl.constexpr):
    """One number a channel, along the channels of a tile."""
    if COLUMNS:  # one return: Triton compares the shapes of all
        along = value[None, :]
    else:
        along = value[:, None]
    return along


@triton.jit
def over_places(value, COLUMNS: tl.constexpr):
    if COLUMNS:
        along = value[:, None]
    else:
        along = value[None, :]
    return along


@triton.jit
def places_of(step, R1, I, BLOCK_Q: tl.constexpr, COLUMNS: tl.constexpr):
    """The places of a step, as (r1, i), and which of them there are. In columns i is always 0."""
    q = tl.arange(0, BLOCK_Q)
    if COLUMNS:
        r = step * BLOCK_Q + q
        i = tl.zeros((BLOCK_Q,), tl.int32)
        valid = r < R1
    else:
        blocks = (I + BLOCK_Q - 1) // BLOCK_Q
        r = step // blocks + tl.zeros((BLOCK_Q,), tl.int32)
        i = step % blocks * BLOCK_Q + q
        valid = (r < R1) & (i < I)
    return r, i, valid


@triton.jit
def x_hat_of(x, stats_ptr, group, groups, is_channel, COLUMNS: tl.constexpr):
    """Of a tile, from the statistics of its channels' groups."""
    shift = tl.load(stats_ptr + 3 * groups + group, is_channel, 0.0)
    rest = tl.load(stats_ptr + 4 * groups + group, is_channel, 0.0)
    rstd = tl.load(stats_ptr + 5 * groups + group, is_channel, 0.0)
    scale = tl.load(stats_ptr + 6 * groups + group, is_channel, 1.0)
    d = x * over_channels(scale, COLUMNS) - over_channels(shift, COLUMNS)
    return (d - over_channels(rest, COLUMNS)) * over_channels(rstd, COLUMNS)

"""What the kernels of rows share: where a row lies, its mean, and scales that keep squares in range."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "backward_scale",
    "exponent",
    "gain_of",
    "is_ordinary",
    "kept_rstd",
    "mean_of",
    "power_of_two",
    "row_start",
    "rstd_of",
    "scale_of",
]


@triton.jit
def row_start(row, n12, n2, s0, s1, s2, D: tl.constexpr, LEADING: tl.constexpr):
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
def mean_of(x, D: tl.constexpr):
    """Rounded once: with an approximate division a constant row would not give 0."""
    total = tl.sum(x, 1)
    return tl.div_rn(total, tl.full(total.shape, D, tl.float32))


@triton.jit
def power_of_two(k):
    """2^k in float32, for -126 <= k <= 127."""
    return ((k + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def exponent(x):
    """floor(log2(x)) of a number above 0; -127 for those too small to be normal, 128 for inf and NaN."""
    return ((x.to(tl.int32, bitcast=True) >> 23) & 255) - 127


@triton.jit
def is_ordinary(var, eps):
    """Are the squares far from both ends of float32? Not where anything is inf or NaN."""
    return (var + eps > 1e-27) & (var < 1e30)


@triton.jit
def scale_of(peak, eps):
    """The power of two that brings the largest magnitude near 2^31, whose square is safe.

    Small numbers are enlarged only where eps is too small to matter to them.
    """
    k = tl.where(peak > 0, 31 - exponent(peak), 0)
    k = tl.where(eps > 1e-28, tl.minimum(k, 0), tl.minimum(k, 96))
    return power_of_two(tl.maximum(k, -97))


@triton.jit
def rstd_of(var, eps, scale):
    """Of scaled numbers. Should nothing be left of eps, a constant row still gives 0."""
    eps_d = eps * scale * scale
    eps_d += tl.where((scale < 1) & (eps > 0), 1.1754944e-38, 0.0)  # a smaller one would be a float64
    return tl.div_rn(tl.full(var.shape, 1, tl.float32), tl.sqrt_rn(var + eps_d))


@triton.jit
def kept_rstd(rstd, var, eps, scale):
    """Of the numbers themselves. What is constant has that of eps alone, which scaling may have lost."""
    of_eps = tl.div_rn(tl.full(var.shape, 1, tl.float32), tl.sqrt_rn(tl.zeros_like(var) + eps))
    return tl.where((var == 0) & (scale < 1), of_eps, rstd * scale)


@triton.jit
def backward_scale(rstd, mean):
    """rstd without its mantissa, but for numbers so large that they would not bear it."""
    k = tl.minimum(exponent(rstd), 100 - exponent(tl.abs(mean)))
    return power_of_two(tl.minimum(tl.maximum(k, -126), 127))


@triton.jit
def gain_of(weight, ZERO_CENTERED: tl.constexpr, ROUND: tl.constexpr):
    """weight, or 1 + weight: in float32, or as the model does that multiplies after the cast."""
    gain = weight.to(tl.float32)
    if ZERO_CENTERED:
        gain = 1.0 + gain
        if ROUND:
            gain = gain.to(weight.dtype).to(tl.float32)
    return gain

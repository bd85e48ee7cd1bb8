"""Numbers that break norms, and the ways in which a tensor can lie in memory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fuzzing.oracle import Grouping

Rng = np.random.Generator
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
DTYPE_SHARES = [0.5, 0.15, 0.2, 0.15]
SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 31, 33, 64, 65]
MANY = [130, 257, 700, 1023]
LONG = [768, 1000, 2049, 5000]
LAYOUTS = ["contiguous", "permuted", "channels_last", "step", "offset", "expanded", "odd"]
LAYOUT_SHARES = [0.4, 0.15, 0.15, 0.08, 0.08, 0.06, 0.08]


def pick(rng: Rng, options: list, shares: list[float] | None = None):
    return options[rng.choice(len(options), p=shares)]


def chance(rng: Rng, share: float) -> bool:
    return bool(rng.random() < share)


def sizes(rng: Rng, ndim: int, most: int = 6000) -> list[int]:
    """Small and odd, as a rule; now and then an axis of nothing, a long one, or many rows."""
    shape = [int(pick(rng, SIZES)) for _ in range(ndim)]
    kind = rng.random()
    if kind < 0.03:
        shape[rng.integers(ndim)] = 0
    elif kind < 0.08:
        shape[rng.integers(ndim)], most = int(pick(rng, LONG)), 12000
    elif kind < 0.13:
        shape[rng.integers(ndim)], most = int(pick(rng, MANY)), 12000
    while np.prod(shape) > most:
        order = np.argsort(shape)
        axis = order[-2] if ndim > 1 and shape[order[-2]] > 3 else order[-1]
        shape[axis] = max(1, shape[axis] // 2 + int(rng.integers(2)))
    return shape


def normal(rng: Rng, shape, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


def numbers(rng: Rng, how: Grouping, dtype: torch.dtype, *, tame: bool) -> Tensor:
    """A mean and a spread for all groups or for each; then some groups, numbers and slices go to extremes.

    ``tame``: no extremes, and means and spreads that leave digits for second derivatives.
    """
    info = torch.finfo(dtype)
    rows = rng.standard_normal(how.gather(np.zeros(how.shape)).shape)
    groups = len(rows)
    if not rows.size:
        return torch.zeros(how.shape, dtype=dtype)
    each = (groups, 1) if chance(rng, 0.3) else (1, 1)
    most = {torch.float16: 3.0}.get(dtype, 2.0 if tame else 6.0)
    means = 10.0 ** rng.uniform(-1, most, each) * rng.choice([-1, 0, 1], each)
    reach = 1.0 if tame else 3.0 if dtype == torch.float16 else 6.0
    spreads = 10.0 ** rng.uniform(-reach, reach, each) if chance(rng, 0.5) else np.ones(each)
    rows = rows * spreads + means
    if not tame and chance(rng, 0.4):
        with np.errstate(all="ignore"):
            for _ in range(rng.integers(1, 4)):
                _spoil(rng, rows[rng.integers(groups)], info)
    values = how.scatter(rows).copy()
    if not tame and chance(rng, 0.15):  # the first or last slice along an axis lies far from the others
        axis = int(rng.integers(values.ndim))
        end = [slice(None)] * values.ndim
        end[axis] = pick(rng, [0, -1])
        values[tuple(end)] += 10.0 ** rng.uniform(1, min(5, np.log10(float(info.max)) - 1))
    limited = np.where(np.isfinite(values), np.clip(values, -info.max, info.max), values)
    return torch.from_numpy(limited).to(dtype)


def _spoil(rng: Rng, row: np.ndarray, info: torch.finfo) -> None:
    """Change one group into one that breaks a sum of squares, in place."""
    kind = rng.integers(10)
    largest = min(float(info.max), 1e300)
    at = pick(rng, [0, -1, int(rng.integers(len(row)))])
    if kind == 0:
        row[:] = pick(rng, [0.0, 1.0, 1 / 3, 1e4 / 3, -largest, largest / 3, 1e-30])
    elif kind == 1:
        row *= largest / 8 / max(1e-30, np.abs(row).max())
    elif kind == 2:
        row[:] = np.where(np.arange(len(row)) % 2, largest, -largest)
    elif kind == 3:
        row *= float(info.tiny) * pick(rng, [4.0, 1 / 8, 1e3])
    elif kind in (4, 5):
        row[at] = pick(rng, [largest, largest / 4, 1e4, 1e3, -1e5, 1e20])
    elif kind == 6:
        row[at] = np.nan
    elif kind == 7:
        row[at] = pick(rng, [np.inf, -np.inf])
    elif kind == 8:  # all but one are equal
        row[:] = pick(rng, [1.0, 1e3, 1e6])
        row[at] *= 1 + float(info.eps)
    else:
        row[:] = np.sort(row) * 1e3


def lay(rng: Rng, tensor: Tensor, kind: str | None = None) -> Tensor:
    """The same numbers elsewhere in memory; "expanded" repeats one slice, and so changes them."""
    kind = pick(rng, LAYOUTS, LAYOUT_SHARES) if kind is None else kind
    ndim = tensor.ndim
    if kind == "permuted" and ndim > 1:
        order = [int(a) for a in rng.permutation(ndim)]
        return tensor.permute(order).contiguous().permute([order.index(a) for a in range(ndim)])
    if kind == "channels_last" and ndim in (4, 5):
        last = torch.channels_last if ndim == 4 else torch.channels_last_3d
        return tensor.contiguous(memory_format=last)
    if kind == "channels_last" and ndim == 3:
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if kind == "step":
        axis, step = int(rng.integers(ndim)), int(rng.integers(2, 4))
        shape = list(tensor.shape)
        shape[axis] *= step
        index = [slice(None)] * ndim
        index[axis] = slice(int(rng.integers(step)) if shape[axis] else 0, None, step)
        holes = torch.full(shape, 7.0).to(tensor.dtype)
        holes[tuple(index)] = tensor
        return holes[tuple(index)]
    if kind == "offset":
        start = int(rng.integers(1, 8))
        flat = torch.zeros(start + tensor.numel(), dtype=tensor.dtype)
        flat[start:] = tensor.reshape(-1)
        return flat[start:].view(tensor.shape)
    if kind == "expanded":
        axis = int(rng.integers(ndim))
        return tensor.narrow(axis, 0, min(1, tensor.shape[axis])).contiguous().expand(tensor.shape)
    if kind == "odd" and tensor.numel():
        tensor = tensor.contiguous()
        strides = [
            int(pick(rng, [0, 1, 3, 1000])) if n == 1 else s
            for n, s in zip(tensor.shape, tensor.stride(), strict=True)
        ]
        return tensor.as_strided(tensor.shape, strides)
    return tensor.contiguous()

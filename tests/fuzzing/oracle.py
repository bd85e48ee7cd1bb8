"""A student's definition of every norm, in numpy's longdouble: gather the numbers that share one mean, then
subtract and divide.

    x_hat = (x - mean) / std,  std = sqrt(var + eps)
    y     = x_hat * gain + bias
    dx    = (g - mean(g) - x_hat * mean(g * x_hat)) / std    where g = dy * gain
    dgain = sum(dy * x_hat),  dbias = sum(dy)

Nothing of normkit is used here, and nothing is clever: a longdouble squares the largest float64 without
overflow. The one care that is taken is to subtract a number of the group first: exact for equal numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray


@dataclass(frozen=True)
class Grouping:
    """Which numbers share one mean, of an input whose axes are split as far as a pattern splits them."""

    shape: tuple[int, ...]
    shared: tuple[int, ...]  # axes that share one mean
    along: tuple[int, ...]  # axes that parameters lie along
    center: bool = True

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(a for a in range(len(self.shape)) if a not in self.shared)

    def gather(self, value: Array) -> Array:
        """(groups, members)"""
        groups = math.prod(self.shape[a] for a in self.kept)
        members = math.prod(self.shape[a] for a in self.shared)
        return value.reshape(self.shape).transpose(self.kept + self.shared).reshape(groups, members)

    def scatter(self, rows: Array) -> Array:
        """The way back, to the split shape."""
        order = self.kept + self.shared
        whole = rows.reshape([self.shape[a] for a in order])
        return whole.transpose([order.index(a) for a in range(len(order))])

    def spread(self, parameter: Array) -> Array:
        """A parameter next to every number that it belongs to, gathered."""
        placed = parameter.reshape([n if a in self.along else 1 for a, n in enumerate(self.shape)])
        return self.gather(np.broadcast_to(placed, self.shape))

    def sum_along(self, rows: Array, shape: tuple[int, ...]) -> Array:
        """The sum over everything that shares a parameter."""
        others = tuple(a for a in range(len(self.shape)) if a not in self.along)
        return self.scatter(rows).sum(axis=others).reshape(shape)


@dataclass
class Forward:
    """Everything is (groups, members) or (groups, 1)."""

    x_hat: Array
    y: Array
    std: Array
    share: Array  # spread of x_hat: 1, or less where eps counts
    mean: Array
    var: Array
    n: Array
    real: Array
    gain: Array
    bias: Array


def exact(tensor: Tensor | None) -> Array | None:
    """The same numbers, as longdoubles."""
    return None if tensor is None else tensor.detach().double().numpy().astype(np.longdouble)


def forward(
    x: Array,
    how: Grouping,
    eps: float,
    gain: Array | None = None,
    bias: Array | None = None,
    mask: Array | None = None,
    given: tuple[Array, Array] | None = None,
) -> Forward:
    rows = how.gather(x)
    real = np.ones(rows.shape, bool) if mask is None else how.gather(np.broadcast_to(mask, x.shape))
    rows = np.where(real, rows, 0)
    n = real.sum(1, keepdims=True)
    count = np.maximum(n, 1)
    with np.errstate(all="ignore"):
        if given is not None:
            mean, var = how.spread(given[0]), how.spread(given[1])
            d = rows - mean
        elif how.center:
            first = np.take_along_axis(rows, real.argmax(1)[:, None], 1) if rows.shape[1] else count * 0.0
            d = np.where(real, rows - first, 0)
            middle = d.sum(1, keepdims=True) / count
            d, mean = d - middle, first + middle
            var = (np.where(real, d, 0) ** 2).sum(1, keepdims=True) / count
        else:
            d, mean = rows, 0 * count.astype(np.longdouble)
            var = (d**2).sum(1, keepdims=True) / count
        std = np.sqrt(var + np.longdouble(eps))
        x_hat = np.where(real, d / std, 0)
        share = np.sqrt(var) / std
    ones, zeros = np.ones(rows.shape, np.longdouble), np.zeros(rows.shape, np.longdouble)
    wide_gain = ones if gain is None else how.spread(gain)
    wide_bias = zeros if bias is None else how.spread(bias)
    with np.errstate(all="ignore"):
        y = np.where(real, x_hat * wide_gain + wide_bias, 0)
    return Forward(x_hat, y, std, share, mean, var, n, real, wide_gain, wide_bias)


@dataclass
class Backward:
    dx: Array  # gathered
    g: Array  # dy * gain
    size: Array  # root mean square of g in a group
    dy: Array


def backward(found: Forward, how: Grouping, dy: Array, *, given: bool) -> Backward:
    with np.errstate(all="ignore"):
        dy = np.where(found.real, how.gather(dy), 0)
        g = dy * found.gain
        count = np.maximum(found.n, 1)

        def mean(value: Array) -> Array:
            return value.sum(1, keepdims=True) / count

        if given:
            dx = g / found.std
        else:
            along = found.x_hat * mean(g * found.x_hat)
            dx = (g - along - (mean(g) if how.center else 0)) / found.std
        return Backward(np.where(found.real, dx, 0), g, np.sqrt(mean(g**2)), dy)


def plain(
    x: Tensor,
    how: Grouping,
    eps: float,
    gain: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    given: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """The same in torch's own operations, in float64: torch differentiates it as often as it is asked to."""
    shape = x.shape
    real = torch.ones(how.shape, dtype=torch.bool) if mask is None else mask.expand(shape).reshape(how.shape)
    x = torch.where(real, x.reshape(how.shape), 0)
    n = real.sum(how.shared, keepdim=True).clamp_min(1)

    def placed(parameter: Tensor) -> Tensor:
        return parameter.reshape([n if a in how.along else 1 for a, n in enumerate(how.shape)])

    if given is not None:
        d, var = x - placed(given[0]), placed(given[1])
    else:
        d = x
        if how.center:
            near = torch.where(real, x, 0).sum(how.shared, keepdim=True).detach() / n
            d = torch.where(real, x - near, 0)
            d = torch.where(real, d - d.sum(how.shared, keepdim=True) / n, 0)
        var = (d * d).sum(how.shared, keepdim=True) / n
    y = d / (var + eps).sqrt()
    y = y if gain is None else y * placed(gain)
    y = y if bias is None else y + placed(bias)
    return torch.where(real, y, 0).reshape(shape)

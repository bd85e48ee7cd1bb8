"""What a norm computes, as data: found by calling a copy of it, and never by the name of its class.

The copy gets parameters and inputs that tell conventions apart. What it gives is compared with the formula
that the answers add up to; a module that computes something else is none, with the reason.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["NormSpec", "NotANormError", "bare_copy", "call", "probe"]

CLOSE = 1e-4  # of the largest output: many norms compute in float32, whatever they are given
SIGMOID_OF_1 = 1 / (1 + math.exp(-1))
SCALES = [10.0**-k for k in range(13)]  # of inputs, until eps is seen
CONSTANT = "its output does not depend on its input"
ALONE = "each of its numbers is computed by itself"


class NotANormError(Exception):
    """Why a module is none, in a few words."""


@dataclass(frozen=True)
class NormSpec:
    """``factor · (x - mean) / sqrt(var + eps) · gain + bias``, and in which way.

    axes          whose numbers share one mean, counted from the last (-1)
    groups        how many parts the first of them is cut into, each with a mean of its own; None: one
    eps_in_root   False: factor · (x - mean) / (sqrt(var) + eps)
    gain          "w", "1 + w", or None
    running       it keeps statistics for evaluation
    multiply      the gain meets what has been rounded to bfloat16 ("after_cast") or not ("before_cast");
                  None: there is none, or it cannot be told
    statistics    the dtype of mean and variance of a float16 input; None: it takes no such input
    factor        1; sqrt(1 - 1/n) if its variance is the unbiased one of n numbers, 1/sqrt(n) of an L2 norm
    gate          it takes a second tensor, which multiplies its input ("before") or its output ("after")
    """

    centered: bool
    axes: tuple[int, ...]
    groups: int | None
    eps: float
    eps_in_root: bool
    gain: str | None
    bias: bool
    running: bool
    multiply: str | None
    statistics: torch.dtype | None
    factor: float
    gate: str | None = None

    def __str__(self) -> str:
        """Its kind and its axes."""
        return f"{self.kind} [{', '.join(map(str, self.axes))}]"

    @property
    def kind(self) -> str:
        """The family it belongs to: "batch", "instance", "group", "layer" or "rms"."""
        if self.groups is not None:
            return "group"
        if self.running or (len(self.axes) > 1 and -1 in self.axes and not self.follows_the_last_axis):
            return "batch"
        return "layer" if self.centered else "rms"

    @property
    def follows_the_last_axis(self) -> bool:
        return list(self.axes) == list(range(-len(self.axes), 0))


Function = Callable[[Tensor], Tensor]


@torch.no_grad()
def probe(module: nn.Module, shape: Sequence[int], *, gated: bool = False) -> NormSpec:
    """The spec of ``module``, called with a tensor of this shape. It is neither called itself nor changed.

    ``gated``: it is called with a second tensor of the same shape.

    Example:
        >>> spec = probe(nn.GroupNorm(2, 8), (4, 8, 3, 3))
        >>> spec.centered, spec.axes, spec.groups, spec.eps, spec.gain
        (True, (-3, -2, -1), 2, 1e-05, 'w')
        >>> probe(nn.Softmax(-1), (2, 8))
        Traceback (most recent call last):
        normkit.inspect.spec.NotANormError: it computes something else than a norm
    """
    if gated:
        return _probe_gated(module, shape)
    bare = bare_copy(module)
    function = functools.partial(call, bare)
    x = _random(shape, seed=0)
    _refuse_what_follows_the_scale(function, x)
    axes, groups = _read_axes(function, x)
    gain, bias = _read_parameters(bare, function, x)
    centered = _same(function(x), function(x + 3.0))
    pure = _Pure(axes, groups, centered)
    factor, eps, in_root = _read_eps(function, x, pure)
    stated = (v for v in vars(module).values() if type(v) is float and math.isclose(v, eps, rel_tol=1e-3))
    eps = next(stated, float(f"{eps:.4g}"))  # an attribute has all its digits
    multiply = _read_multiply(module, shape, pure, gain, eps) if in_root and math.isclose(factor, 1) else None
    running, statistics = _moves_buffers(bare, x), _read_statistics(module, shape)
    return NormSpec(centered, axes, groups, eps, in_root, gain, bias, running, multiply, statistics, factor)


class _Gated(nn.Module):
    """A gated norm, with a gate that is the same number everywhere."""

    def __init__(self, inner: nn.Module, gate: float) -> None:
        super().__init__()
        self.inner, self.gate = inner, gate
        self.__dict__ |= {k: v for k, v in vars(inner).items() if type(v) is float}  # where an eps is stated

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x, torch.full_like(x, self.gate))
        return y


def _probe_gated(module: nn.Module, shape: Sequence[int]) -> NormSpec:
    """A gate that multiplies the input vanishes; one that multiplies the output is a factor."""
    bare, x, other = bare_copy(module), _random(shape, seed=0), _random(shape, seed=1)
    shut, open_ = _Gated(bare, -50.0), call(_Gated(bare, 1.0), x)
    if not (call(shut, x) - call(shut, other)).abs().max() <= CLOSE * open_.abs().max():
        raise NotANormError("its second tensor is no gate")
    one, two = (probe(_Gated(module, gate), shape) for gate in (1.0, 2.0))
    if math.isclose(one.factor, two.factor, rel_tol=1e-3):
        eps = one.eps * SIGMOID_OF_1**2  # silu(1) and sigmoid(1) made the input that much smaller
        stated = (v for v in vars(module).values() if type(v) is float and math.isclose(v, eps, rel_tol=1e-2))
        return replace(one, gate="before", eps=next(stated, float(f"{eps:.4g}")))
    return replace(one, gate="after", factor=1.0)


@dataclass(frozen=True)
class _Pure:
    """The formula without its parameters."""

    axes: tuple[int, ...]
    groups: int | None
    centered: bool

    def __call__(self, x: Tensor, eps: float = 0.0, outside: float = 0.0) -> Tensor:
        d, over = self._deviations(x)
        root = (d.square().mean(over, keepdim=True) + eps).sqrt()
        return (d / (root + outside)).reshape(x.shape)

    def variance(self, x: Tensor) -> Tensor:
        d, over = self._deviations(x)
        return d.square().mean(over, keepdim=True).expand_as(d).reshape(x.shape)

    def _deviations(self, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """With the axis that is cut into groups as two of them."""
        over = self.axes
        if self.groups is not None:
            axis, ndim = over[0] + x.ndim, x.ndim
            x = x.unflatten(axis, (self.groups, x.shape[axis] // self.groups))
            over = tuple(a + ndim + 1 for a in over)
        return (x - x.mean(over, keepdim=True) if self.centered else x), over


def bare_copy(module: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    """Without hooks, in training, on the CPU, with parameters that are far from 0 and from 1."""
    memo: dict[int, Any] = {}
    for seed, tensor in enumerate((*module.parameters(), *module.buffers())):
        if tensor.is_floating_point():
            new = (2 + 0.5 * _random(tensor.shape, seed).abs()).to(dtype)
        else:
            new = torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
        memo[id(tensor)] = nn.Parameter(new) if isinstance(tensor, nn.Parameter) else new
    try:
        bare = copy.deepcopy(module, memo)
    except Exception as error:
        raise NotANormError(f"it cannot be copied: {error}") from error
    for part in bare.modules():
        part.__dict__ |= {k: v for k, v in vars(nn.Module()).items() if "hooks" in k}
    return bare.train()


def call(module: nn.Module, x: Tensor) -> Tensor:
    try:
        y = module(x)
    except Exception as error:
        raise NotANormError(f"calling it with a tensor raises {type(error).__name__}") from error
    if not isinstance(y, Tensor) or y.shape != x.shape:
        raise NotANormError("it does not return a tensor of the input's shape")
    return y


def _refuse_what_follows_the_scale(function: Function, x: Tensor) -> None:
    small, large = function(x * 1e3), function(x * 1e4)
    if not _same(small, large):
        raise NotANormError("its output follows the scale of its input")
    if _same(large, function(-_random(x.shape, seed=1) * 1e4)):
        raise NotANormError(CONSTANT)


def _read_axes(function: Function, x: Tensor) -> tuple[tuple[int, ...], int | None]:
    """Which outputs a number moves that grows without bounds, beside its own: they share its mean."""
    at = tuple(n // 2 for n in x.shape)
    moved = x.clone()
    moved[at] = 1e6
    y = function(x)
    changed = (function(moved) - y).abs() > CLOSE * y.abs().max()
    changed[at] = True
    axes: list[int] = []
    groups: int | None = None
    for axis in range(x.ndim):
        line = changed[tuple(slice(None) if a == axis else i for a, i in enumerate(at))]
        count, size = int(line.sum()), x.shape[axis]
        if count == 1:
            continue
        if count < size:
            if axes or size % count:
                raise NotANormError("its means are over parts that are no groups")
            groups = size // count
        axes.append(axis - x.ndim)
    if not axes:
        raise NotANormError(ALONE)
    return tuple(axes), groups


def _read_parameters(bare: nn.Module, function: Function, x: Tensor) -> tuple[str | None, bool]:
    """The gain and the bias, by what is left where a parameter is a number; both are then neutral."""
    other = _random(x.shape, seed=1)

    def with_value(parameter: Tensor, value: float) -> tuple[Tensor, Tensor]:
        before = parameter.clone()
        parameter.fill_(value)
        found = function(x), function(other)
        parameter.copy_(before)
        return found

    gain, bias, neutral = None, False, []
    for name, parameter in bare.named_parameters():
        (zero, zero_other), (two, two_other) = with_value(parameter, 0.0), with_value(parameter, 2.0)
        if _same(zero, zero_other):
            convention = "w"
        elif _same(*with_value(parameter, -1.0)):
            convention = "1 + w"
        elif _same(two - zero, two_other - zero_other):
            bias = True
            neutral.append((parameter, 0.0))
            continue
        else:
            raise NotANormError(f"its {name} is neither a gain nor a bias")
        if gain is not None:
            raise NotANormError("it has two gains")
        gain = convention
        neutral.append((parameter, 1.0 if gain == "w" else 0.0))
    for parameter, value in neutral:
        parameter.fill_(value)
    return gain, bias


def _read_eps(function: Function, x: Tensor, pure: _Pure) -> tuple[float, float, bool]:
    """(factor, eps, in the root): the smaller the input, the more eps shows."""
    exact, large = pure(x), function(x * 1e4)
    factor = float((large / exact).median())
    factor = 1.0 if math.isclose(factor, 1, rel_tol=1e-4) else factor
    if not factor > 0 or not _same(large, factor * exact):
        raise NotANormError("it computes something else than a norm")
    spread = pure.variance(x).sqrt()
    for scale in SCALES:
        y = function(x * scale)
        share = factor * exact / y  # sqrt(1 + eps / var), or 1 + eps / sqrt(var)
        if not float(share.median()) > 1.1:
            continue
        eps = float(((share.square() - 1) * (spread * scale).square()).median())
        if _same(y, factor * pure(x * scale, eps)):
            return factor, eps, True
        eps = float(((share - 1) * spread * scale).median())
        if _same(y, factor * pure(x * scale, outside=eps)):
            return factor, eps / factor, False
        raise NotANormError("what it adds to a small variance is no eps")
    return factor, 0.0, True


def _read_multiply(
    module: nn.Module, shape: Sequence[int], pure: _Pure, gain: str | None, eps: float
) -> str | None:
    """Is it rounded to bfloat16 before it meets the gain? In a quarter of all places, that shows."""
    if gain is None:
        return None
    narrow, wide = bare_copy(module, torch.bfloat16), bare_copy(module)
    x = _random(shape, seed=2).bfloat16()
    for ours, theirs in zip(wide.parameters(), narrow.parameters(), strict=True):
        ours.copy_(theirs)
    x_hat = pure(x.double(), eps)
    try:
        y = call(narrow, x)
        largest = call(wide, x_hat * 1e4)
    except NotANormError:
        return None
    gains = largest / pure(x_hat * 1e4)  # by place
    ways = {
        "before_cast": (x_hat * gains).bfloat16(),
        "after_cast": x_hat.bfloat16() * gains.bfloat16(),
    }
    agree = {name: float((y == way).double().mean()) for name, way in ways.items()}
    best = max(agree, key=agree.__getitem__)
    return best if agree[best] > 0.95 and min(agree.values()) < 0.95 else None


def _read_statistics(module: nn.Module, shape: Sequence[int]) -> torch.dtype | None:
    """Squares of some hundreds leave the range of float16."""
    bare = bare_copy(module, torch.float16)
    wide = bare_copy(module)
    x = (_random(shape, seed=3) * 500).half()
    for ours, theirs in zip(wide.parameters(), bare.parameters(), strict=True):
        ours.copy_(theirs)
    try:
        y, true = call(bare, x).double(), call(wide, x.double())
    except NotANormError:
        return None
    is_right = bool(((y - true).abs() <= 0.01 * true.abs().max()).all())
    return torch.float32 if is_right else torch.float16


def _moves_buffers(bare: nn.Module, x: Tensor) -> bool:
    if getattr(bare, "momentum", None) == 0:  # it keeps them, and does not move them
        setattr(bare, "momentum", 0.1)  # noqa: B010  # nn.Module has no such attribute for mypy
    before = {name: b.clone() for name, b in bare.named_buffers()}
    call(bare, x)
    return any(not torch.equal(b, before[name]) for name, b in bare.named_buffers() if b.is_floating_point())


def _same(a: Tensor, b: Tensor) -> bool:
    bound = CLOSE * max(float(a.abs().max()), float(b.abs().max()), 1e-30)
    return bool(((a - b).abs() <= bound).all())


def _random(shape: Sequence[int], seed: int) -> Tensor:
    """Of both signs, and none near 0."""
    x = 2 * torch.rand(tuple(shape), generator=_generator(seed), dtype=torch.float64, device="cpu") - 1
    return x + 0.5 * x.sign()


def _generator(seed: int) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(seed)

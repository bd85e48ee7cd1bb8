"""Find out what an unknown norm computes by calling it, never by its name.

transformers alone defines RMSNorm some two hundred times, in a handful of conventions. A copy of the module
is fed with numbers that tell them apart; the verdict counts only if our layer then gives the same outputs.
"""

from __future__ import annotations

import copy
import inspect
import math

import torch
from torch import Tensor, nn

from normkit.functional import MULTIPLY
from normkit.norms.rms_norm import RMSNorm

__all__ = ["MismatchError", "as_rms_norm"]


class MismatchError(Exception):
    """Why a module is not an RMSNorm of ours, in a few words."""


def as_rms_norm(module: nn.Module) -> RMSNorm:
    """The RMSNorm of ours that computes what ``module`` computes, or ``MismatchError``.

    The module itself is neither called nor changed. The result has a weight of its own, on the CPU.
    """
    theirs = _bare_copy(module)
    weight = next(iter(theirs.parameters()))
    dim = weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    gain = 1 + torch.rand(dim, generator=generator)  # far from 0 and from 1
    rows = torch.randn(3, dim, generator=generator)
    zero_centered = _is_zero_centered(theirs, weight, rows)
    with torch.no_grad():
        weight.copy_(gain - 1 if zero_centered else gain)
    root = rows.square().mean(-1, keepdim=True).sqrt()
    if not torch.allclose(_call(theirs, rows), rows / root * gain, rtol=0.01):
        raise MismatchError("its outputs are not those of an RMSNorm")
    eps = _eps(module, theirs, rows, gain)
    for multiply in MULTIPLY:
        ours = RMSNorm(dim, eps, zero_centered_weight=zero_centered, multiply=multiply)
        where = _differ(ours, theirs, weight)
        if where is None:
            return ours
    raise MismatchError(f"it rounds in another way than ours for {where}")


def _bare_copy(module: nn.Module) -> nn.Module:
    """A copy without hooks, in float32 on the CPU; only a module with one vector and one input qualifies."""
    if any(True for _ in module.children()) or any(True for _ in module.buffers()):
        raise MismatchError("it has parts or buffers of its own")
    parameters = list(module.parameters())
    if len(parameters) != 1 or parameters[0].ndim != 1:
        raise MismatchError("it does not have exactly one vector of weights")
    if len(inspect.signature(module.forward).parameters) != 1:
        raise MismatchError("its forward takes more than one argument")
    bare = copy.copy(module)
    bare.__dict__ = {k: v for k, v in module.__dict__.items() if "hooks" not in k}
    fresh = nn.Module()
    bare.__dict__.update({k: v for k, v in fresh.__dict__.items() if "hooks" in k})
    (name,) = (n for n, _ in module.named_parameters())
    bare.__dict__["_parameters"] = {name: nn.Parameter(torch.ones(parameters[0].shape))}
    return bare


def _is_zero_centered(theirs: nn.Module, weight: Tensor, rows: Tensor) -> bool:
    """With a weight of zeros, a plain norm gives zeros."""
    with torch.no_grad():
        weight.zero_()
    return bool(_call(theirs, rows).abs().max() > 0)


def _eps(module: nn.Module, theirs: nn.Module, rows: Tensor, gain: Tensor) -> float:
    """Tiny inputs leave eps alone under the root; the attribute that says the same has all its digits."""
    tiny = rows * 1e-8
    y = _call(theirs, tiny).double()
    ratio = (tiny.double() * gain.double() / y).abs()
    measured = float(ratio.median() ** 2 - tiny.double().square().mean())
    stated = [v for v in vars(module).values() if isinstance(v, float) and v > 0]
    for value in stated:
        if math.isclose(value, measured, rel_tol=1e-3):
            return value
    raise MismatchError(f"it adds an eps of about {measured:.3g}, which none of its attributes states")


def _differ(ours: RMSNorm, theirs: nn.Module, weight: Tensor) -> str | None:
    """Where dtypes or numbers differ, for inputs and weights of every common dtype; None if nowhere."""
    generator = torch.Generator().manual_seed(1)
    scales = torch.logspace(-3, 3, 64).unsqueeze(1)
    x = torch.randn(64, weight.shape[0], generator=generator) * scales + 0.1
    wide = weight.detach().clone()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for weight_dtype in (torch.float32, dtype):
            for module in (ours, theirs):
                next(iter(module.parameters())).data = wide.to(weight_dtype)
            mine, yours = ours(x.to(dtype)), _call(theirs, x.to(dtype))
            off = (mine.double() - yours.double()).abs()
            unit = torch.finfo(dtype).eps * yours.double().abs()
            # Statistics summed in another order push a number over a rounding boundary now and then, by one
            # unit and in few places; another convention does it in a quarter of them.
            few = 1.0 if dtype == torch.float32 else 0.02
            many = float((off > 0.25 * unit).double().mean()) > few
            if mine.dtype != yours.dtype or many or bool((off > 4 * unit + 1e-30).any()):
                return f"{dtype} inputs with {weight_dtype} weights"
    return None


@torch.no_grad()
def _call(module: nn.Module, x: Tensor) -> Tensor:
    try:
        y = module(x)
    except Exception as error:
        raise MismatchError(f"calling it with a tensor raises {type(error).__name__}") from error
    if not isinstance(y, Tensor) or y.shape != x.shape:
        raise MismatchError("it does not return a tensor of the input's shape")
    return y

"""A call on the device, the same call in float64 on the CPU, and how far off a result is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from normkit import kernels
from normkit.verify.cases import Inputs
from normkit.verify.norms import Norm

__all__ = ["compute", "error", "true_results"]


def compute(
    run: Callable[..., Any], given: Inputs, device: torch.device | str, grads: bool
) -> dict[str, Tensor]:
    """Outputs by name, and with ``grads`` the gradients of all inputs, too."""
    x, weight, bias, other, mask = (
        None if t is None else t.to(device)
        for t in (given.x, given.weight, given.bias, given.other, given.mask)
    )
    named_inputs = (("x", x), ("weight", weight), ("bias", bias), ("residual", other))
    leaves = {name: t.detach().requires_grad_(grads) for name, t in named_inputs if t is not None}
    x, weight, bias, other = (leaves.get(name) for name, _ in named_inputs)
    found = run(x, weight, bias, other, mask)
    outputs = found if isinstance(found, tuple) else (found,)
    named = {"y" if at == 0 else f"output {at + 1}": t.detach() for at, t in enumerate(outputs)}
    if grads:
        made = [t for t in outputs if t.requires_grad]
        ups = [g.to(device) for g in given.grads[: len(made)]]
        back = torch.autograd.grad(made, list(leaves.values()), ups)
        named |= {f"gradient of {name}": g for name, g in zip(leaves, back, strict=True)}
    return {name: t.cpu() for name, t in named.items()}


def true_results(norm: Norm, given: Inputs, grads: bool) -> dict[str, Tensor]:
    """The definition, in float64. A sum is rounded before it is normalised, by definition."""
    x, other = given.x, given.other
    if other is not None:
        x, other = x + other, torch.zeros_like(other)
    wide = Inputs(
        x.double(),
        given.weight.double(),
        None if given.bias is None else given.bias.double(),
        None if other is None else other.double(),
        given.mask,
        tuple(g.double() for g in given.grads),
    )
    with kernels.backend("reference"):
        return compute(norm.run, wide, "cpu", grads)


def error(got: Tensor, true: Tensor, roundings: int = 1, whole: bool = False) -> float:
    """The largest error beyond the rounding of the result's own dtype, as a share of max(1, the true number).

    With ``whole``, for gradients, as a share of the largest true number. A result that is NaN where the truth
    is a number, or a number where the truth is NaN, is infinitely wrong.
    """
    if got.shape != true.shape or not got[true.isnan()].isnan().all():
        return float("inf")
    known = true.isfinite()
    if not known.any():
        return 0.0
    true, rounded, result = true[known], true.to(got.dtype)[known].double(), got[known].double()
    size = true.abs().max() if whole else true.abs()
    off = (result - true).abs() - roundings * _half_unit(torch.maximum(result.abs(), true.abs()), got.dtype)
    off = torch.where(result == rounded, 0.0, off.clamp_min(0) / size.clamp_min(1))
    return off.nan_to_num(float("inf"), posinf=float("inf")).max().item()


def _half_unit(size: Tensor, dtype: torch.dtype) -> Tensor:
    """Half the distance between two neighbours of that size: the most that one rounding costs."""
    kind = torch.finfo(dtype)
    _, exponent = torch.frexp(size.clamp(kind.tiny, kind.max))
    return torch.ldexp(torch.full_like(size, kind.eps / 2), exponent - 1)

"""Second derivatives, against those that torch takes of the plain formula in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fuzzing import oracle
from fuzzing.bounds import Truth
from fuzzing.calls import ADDS, Case
from fuzzing.oracle import Array, exact
from fuzzing.verdict import Verdict

# The promise, a few times: first results enter twice. Those of narrow dtypes are rounded on the way.
SECOND = {torch.float32: 2.5e-5, torch.float64: 2.5e-11, torch.bfloat16: 1e-2, torch.float16: 1.25e-3}


def judge_second(
    case: Case, verdict: Verdict, truth: Truth, x: Tensor, inputs: dict[str, Any], results: tuple[Tensor, ...]
) -> None:
    """The derivative of (gradients · random directions), by everything that they depend on."""
    generator = torch.Generator().manual_seed(1)
    leaves = [x if n == "x" else inputs[n] for n in case.needs]
    v = [torch.randn(t.shape, generator=generator).to(t.dtype) for t in leaves]
    dy = [d.detach().requires_grad_() for d in case.dy]
    first = torch.autograd.grad(results, leaves, dy, create_graph=True)
    loss = [(g, d) for g, d in zip(first, v, strict=True) if g.requires_grad]
    got = torch.autograd.grad([g for g, _ in loss], [*leaves, dy[0]], [d for _, d in loss], allow_unused=True)

    wide = {n: t.detach().double().requires_grad_() for n, t in zip(case.needs, leaves, strict=True)}
    total = wide["x"]
    if case.op in ADDS:
        total = wide["x"] + wide["residual"]
        total = total + (truth.total.double() - total).detach()
    gain = wide.get("weight")
    if gain is not None and case.options.get("zero_centered_weight"):
        gain = gain + 1
    given = None
    if case.given:
        given = (inputs["running_mean"].double(), inputs["running_var"].double())
    y = oracle.plain(total, case.how, case.eps, gain, wide.get("bias"), truth.mask, given)
    wide_dy = case.dy[0].detach().double().requires_grad_()
    firsts = torch.autograd.grad(y, list(wide.values()), wide_dy, create_graph=True)
    pairs = [(g, d.double()) for g, d in zip(firsts, v, strict=True) if g.requires_grad]
    wanted = [*wide.values(), wide_dy]
    true = torch.autograd.grad([g for g, _ in pairs], wanted, [d for _, d in pairs], allow_unused=True)

    bounds = _second_bounds(case, truth, dict(zip(case.needs, v, strict=True)))
    for name, value, expected in zip([*case.needs, "dy"], got, true, strict=True):
        leaf = case.dy[0] if name == "dy" else case.x if name == "x" else inputs[name]
        value = torch.zeros_like(leaf) if value is None else value
        expected = torch.zeros(leaf.shape, dtype=torch.float64) if expected is None else expected
        verdict.compare(f"second d{name}", value.detach(), exact(expected), bounds[name], leaf.dtype)


def _second_bounds(case: Case, truth: Truth, v: dict[str, Tensor]) -> dict[str, Array]:
    f, how = truth.found, truth.how
    narrow = min((case.x, *case.dy, *v.values()), key=lambda t: -torch.finfo(t.dtype).eps).dtype
    share = SECOND[narrow]
    along = {n: exact(t) for n, t in v.items()}
    vx = how.gather(along["x"] + along.get("residual", 0))

    def most(value: Array) -> Array:
        return np.abs(value).max(1, keepdims=True, initial=0) + np.zeros(f.y.shape)

    vw = how.spread(along["weight"]) if "weight" in along else 0 * f.y
    vb = how.spread(along["bias"]) if "bias" in along else 0 * f.y
    dy, x1 = how.gather(exact(case.dy[0])), 1 + most(f.x_hat)
    curved = most(f.gain * dy) * most(vx) * x1**3 / f.std**2 + most(dy * vw) * x1**2 / f.std
    by_weight = np.abs(dy) * most(vx) * x1**2 / f.std
    by_dy = most(f.gain) * most(vx) * x1**2 / f.std + np.abs(vw) * x1 + np.abs(vb)
    bounds = {"x": truth.back(share * curved), "dy": truth.back(share * by_dy)}
    bounds["residual"] = bounds["x"]
    for name in ("weight", "bias"):
        if name in v:
            bounds[name] = how.sum_along(share * by_weight, tuple(v[name].shape))
    return bounds

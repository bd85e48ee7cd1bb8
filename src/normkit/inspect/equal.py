"""The RMSNorm of ours that computes what an unknown module computes, with the proof.

transformers alone defines RMSNorm some two hundred times, in a handful of conventions. ``probe`` tells them
apart; the verdict counts only if our layer then gives the same outputs and gradients.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from normkit.functional import MULTIPLY
from normkit.inspect.spec import NormSpec, NotANormError, bare_copy, call, probe
from normkit.norms.rms_norm import RMSNorm

__all__ = ["MismatchError", "as_rms_norm"]

DTYPES = [  # of input and weight
    (torch.float32, torch.float32),
    (torch.float32, torch.bfloat16),
    (torch.float32, torch.float16),
    (torch.bfloat16, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float32),
    (torch.float16, torch.float16),
]


class MismatchError(Exception):
    """Why a module is not an RMSNorm of ours, in a few words."""


def as_rms_norm(module: nn.Module) -> RMSNorm:
    """The RMSNorm of ours that computes what ``module`` computes, or ``MismatchError``.

    The module itself is neither called nor changed. The result has a weight of its own, on the CPU.
    """
    _refuse_more_than_one_vector(module)
    try:
        theirs = bare_copy(module, torch.float32)
        weight = next(iter(theirs.parameters()))
        spec = probe(module, (3, weight.shape[0]))
        return _proven(module, theirs, weight, spec)
    except NotANormError as reason:
        raise MismatchError(str(reason)) from reason


def _proven(module: nn.Module, theirs: nn.Module, weight: Tensor, spec: NormSpec) -> RMSNorm:
    if spec.centered or spec.axes != (-1,) or spec.groups or spec.factor != 1 or spec.gain is None:
        raise MismatchError("its outputs are not those of an RMSNorm")
    if spec.eps not in [v for v in vars(module).values() if type(v) is float] or not spec.eps_in_root:
        raise MismatchError(f"it adds an eps of about {spec.eps:.3g}, which none of its attributes states")
    zero_centered, eps = spec.gain == "1 + w", spec.eps
    dim = weight.shape[0]
    for multiply in MULTIPLY:
        settings = {"zero_centered_weight": zero_centered, "multiply": multiply}
        ours = RMSNorm(dim, eps, True, "cpu", torch.float32, **settings)  # type: ignore[arg-type]  # str, bool
        where = _differ(ours, theirs, weight)
        if where is None:
            return ours
    raise MismatchError(f"it computes something else than ours for {where}")


def _refuse_more_than_one_vector(module: nn.Module) -> None:
    if any(True for _ in module.children()) or any(True for _ in module.buffers()):
        raise MismatchError("it has parts or buffers of its own")
    parameters = dict(module.named_parameters())
    if list(parameters) != ["weight"] or parameters["weight"].ndim != 1:
        raise MismatchError("it does not have one vector called weight, and nothing else")
    if len(inspect.signature(module.forward).parameters) != 1:
        raise MismatchError("its forward takes more than one argument")


def _differ(ours: RMSNorm, theirs: nn.Module, weight: Tensor) -> str | None:
    """Where dtypes or numbers differ; None if nowhere.

    Inputs and weights of every common dtype, inputs of every common rank, training and evaluation.
    """
    dim = weight.shape[0]
    scales = torch.logspace(-3, 3, 64, dtype=torch.float32, device="cpu").unsqueeze(1)
    rows = torch.randn(64, dim, **_plain(2)) * scales + 0.1
    wide = weight.detach().clone()
    for dtype, weight_dtype in DTYPES:
        for module in (ours, theirs):
            next(iter(module.parameters())).data = wide.to(weight_dtype)
        for shape in ((64,), (2, 32), (2, 4, 8)):
            for training in (True, False):
                x = rows.to(dtype).reshape(*shape, dim)
                if _disagree(ours(x), call(theirs.train(training), x), dtype):
                    return f"{dtype} inputs with {weight_dtype} weights"
    return "gradients" if _gradients_differ(ours, theirs, wide, rows) else None


def _gradients_differ(ours: RMSNorm, theirs: nn.Module, weight: Tensor, rows: Tensor) -> bool:
    grad = torch.randn(rows.shape, **_plain(3))
    grads = []
    for module in (ours, theirs):
        parameter = next(iter(module.parameters()))
        parameter.data = weight.clone()
        x = rows.clone().requires_grad_()
        with torch.enable_grad():
            y = module(x)
        if not y.requires_grad:
            return True
        grads.append(torch.autograd.grad(y, (x, parameter), grad, allow_unused=True))
    for mine, yours in zip(*grads, strict=True):
        if yours is None or not torch.allclose(mine, yours, rtol=1e-3, atol=1e-4 * float(mine.abs().max())):
            return True
    return False


def _disagree(mine: Tensor, yours: Tensor, dtype: torch.dtype) -> bool:
    off = (mine.double() - yours.double()).abs()
    unit = torch.finfo(dtype).eps * yours.double().abs()
    # Statistics summed in another order push a number over a rounding boundary now and then, by one unit and
    # in few places; another convention does it in a quarter of them.
    few = 1.0 if dtype == torch.float32 else 0.02
    many = float((off > 0.25 * unit).double().mean()) > few
    return mine.dtype != yours.dtype or many or bool((off > 4 * unit + 1e-30).any())


def _plain(seed: int) -> dict[str, Any]:
    """Random numbers that do not depend on the defaults of the process."""
    return {"generator": torch.Generator("cpu").manual_seed(seed), "dtype": torch.float32, "device": "cpu"}

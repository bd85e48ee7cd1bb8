"""The norms that are checked: how each is called, on any device and in any dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import normkit.functional as N
from normkit import kernels

__all__ = ["NORMS", "Norm", "backend_of"]

EPS = 1e-5
GROUPS = 3
MOMENTUM = 0.5
Call = Callable[..., Any]


@dataclass(frozen=True)
class Norm:
    """``run(x, weight, bias, other, mask)`` returns one output or several.

    ``other`` is the residual of a sum. Running statistics are made anew for each call.
    """

    op: str
    run: Call
    torchs: Call | None = None  # the same by torch, where torch has it
    rows: bool = True  # over the last axis; otherwise channels at axis 1
    options: dict[str, Any] = field(default_factory=dict)
    roundings: int = 1  # half units that rounding costs by definition

    @property
    def adds(self) -> bool:
        return self.op.startswith("add_")

    @property
    def masks(self) -> bool:
        return not self.rows

    @property
    def biased(self) -> bool:
        return "rms" not in self.op


def _running(x: Tensor) -> tuple[Tensor, Tensor]:
    """Running statistics that no two channels share: a mean that is exact in any dtype, and a variance."""
    at = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return (at - 1).to(wide), (0.5 + at % 4).to(wide)


def _batch_train(x: Tensor, w: Tensor, b: Tensor, other: None, mask: Tensor | None) -> tuple[Tensor, ...]:
    mean, var = _running(x)
    y = N.batch_norm(x, mean, var, w, b, True, MOMENTUM, EPS, mask=mask)
    return y, mean, var


def _torchs_batch_train(x: Tensor, w: Tensor, b: Tensor, other: None, mask: None) -> tuple[Tensor, ...]:
    mean, var = _running(x)
    return F.batch_norm(x, mean, var, w, b, True, MOMENTUM, EPS), mean, var


def _sum(norm: Call, x: Tensor, other: Tensor, *call: Any) -> tuple[Tensor, Tensor]:
    total = x + other
    return norm(total, x.shape[-1:], *call), total


def _rms(**options: Any) -> Norm:
    """after_cast rounds the normalised numbers, which costs up to a unit of the product, then the product."""
    roundings = 3 if options.get("multiply") == "after_cast" else 1

    def run(x: Tensor, w: Tensor, b: None, other: None, mask: None) -> Tensor:
        return N.rms_norm(x, x.shape[-1:], w, EPS, **options)

    def torchs(x: Tensor, w: Tensor, b: None, other: None, mask: None) -> Tensor:
        scale = 1 + w if options.get("zero_centered_weight") else w
        return F.rms_norm(x, x.shape[-1:], scale, EPS)

    return Norm("rms_norm", run, torchs, options=options, roundings=roundings)


NORMS: dict[str, Norm] = {
    "layer": Norm(
        "layer_norm",
        lambda x, w, b, other, mask: N.layer_norm(x, x.shape[-1:], w, b, EPS),
        lambda x, w, b, other, mask: F.layer_norm(x, x.shape[-1:], w, b, EPS),
    ),
    "rms": _rms(),
    "rms, 1 + weight": _rms(zero_centered_weight=True),
    "rms, after_cast": _rms(multiply="after_cast"),
    "add_layer": Norm(
        "add_layer_norm",
        lambda x, w, b, other, mask: N.add_layer_norm(x, other, x.shape[-1:], w, b, EPS),
        lambda x, w, b, other, mask: _sum(F.layer_norm, x, other, w, b, EPS),
    ),
    "add_rms": Norm(
        "add_rms_norm",
        lambda x, w, b, other, mask: N.add_rms_norm(x, other, x.shape[-1:], w, EPS),
        lambda x, w, b, other, mask: _sum(F.rms_norm, x, other, w, EPS),
    ),
    "group": Norm(
        "group_norm",
        lambda x, w, b, other, mask: N.group_norm(x, GROUPS, w, b, EPS, mask=mask),
        lambda x, w, b, other, mask: F.group_norm(x, GROUPS, w, b, EPS),
        rows=False,
        options={"num_groups": GROUPS},
    ),
    "instance": Norm(
        "instance_norm",
        lambda x, w, b, other, mask: N.instance_norm(x, None, None, w, b, eps=EPS, mask=mask),
        lambda x, w, b, other, mask: F.instance_norm(x, None, None, w, b, eps=EPS),
        rows=False,
    ),
    "batch, train": Norm("batch_norm", _batch_train, _torchs_batch_train, rows=False),
    "batch, eval": Norm(
        "batch_norm",
        lambda x, w, b, other, mask: N.batch_norm(x, *_running(x), w, b, False, MOMENTUM, EPS, mask=mask),
        lambda x, w, b, other, mask: F.batch_norm(x, *_running(x), w, b, False, MOMENTUM, EPS),
        rows=False,
        options={"training": False},
    ),
}


def backend_of(
    norm: Norm, x: Tensor, w: Tensor | None, b: Tensor | None, other: Tensor | None, mask: Tensor | None
) -> str:
    """What computes this call."""
    call: dict[str, Any] = {"weight": w, "bias": b, "eps": EPS, "mask": None, **norm.options}
    if mask is not None:
        call["mask"] = mask.unsqueeze(1)
    if norm.adds:
        call["residual"] = other
    if norm.op == "batch_norm":
        call["running_mean"], call["running_var"] = _running(x)
    return kernels.choice(norm.op, x, **call)[0]

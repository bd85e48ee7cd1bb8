"""Row norms, forward and backward, on the emulator, beside the reference in float64 on the same numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from truth import on_reference

from normkit.kernels.by_reference import CENTER, ZERO_CENTERED

from .launching import Emulated
from .memory import Tensor as Traffic

__all__ = ["Norm", "inputs", "run"]

EPS = 1e-5
MEANS = (0.0, 1e4, 1e6)  # of rows, in turn


@dataclass
class Norm:
    """What one norm gave, what is true, and what each launch did to memory."""

    got: dict[str, torch.Tensor]
    true: dict[str, torch.Tensor]
    traffic: list[tuple[str, dict[str, Traffic]]]

    def kernel(self, name: str) -> dict[str, Traffic]:
        return next(tensors for kernel, tensors in self.traffic if kernel == name)


def inputs(count: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of spread 1; in float32 with means that leave few digits for it."""
    torch.manual_seed(dim)
    x = torch.randn(count, dim)
    if dtype == torch.float32:
        x += torch.tensor(MEANS).repeat(count)[:count, None]
    return x.to(dtype)


def run(op: str, x: torch.Tensor, machine: Emulated, backward: bool = True) -> Norm:
    """``op`` of x, with weight and, if it centres, bias. Its name may say more: a sum, or 1 + weight."""
    from normkit.kernels.triton import rows  # needs Triton, which may be missing where this file is collected

    kind = CENTER if "layer" in op else ZERO_CENTERED if "zero_centered" in op else 0
    (dim, dtype), is_sum = (x.shape[-1], x.dtype), op.startswith("add_")
    weight, bias = torch.randn(2, dim).to(dtype)
    bias = bias if kind & CENTER else None
    residual, dy, dtotal = torch.randn(3, *x.shape).to(dtype)
    before, rows.launch = rows.launch, machine  # type: ignore[assignment]
    try:
        if is_sum:
            y, total, stats = rows.rows_add_train(x, residual, weight, bias, 1, EPS, kind)
        else:
            y, stats = rows.rows_train(x, weight, bias, 1, EPS, kind)
            total = x
        got = {"y": y}
        if backward:
            extra = dtotal if is_sum else None
            needed = (True, True, bias is not None)
            gradients = rows.rows_backward(dy, total, weight, bias, stats, extra, 1, EPS, kind, *needed)
            got |= dict(zip(("dx", "dweight", "dbias"), gradients, strict=True))
    finally:
        rows.launch = before
    if is_sum:
        got["total"] = total

    # of the sum as it was rounded: that is what is normalised, by definition
    wide = [(x + residual if is_sum else x), weight, *([] if bias is None else [bias])]
    wide = [t.double().requires_grad_() for t in wide]
    call = {"bias": wide[2]} if kind & CENTER else {}
    name = "layer_norm" if kind & CENTER else "rms_norm"
    gain = 1 + wide[1] if kind & ZERO_CENTERED else wide[1]
    true_y = on_reference(name, wide[0], axes=(-1,), weight=gain, eps=EPS, **call)
    dx, *others = torch.autograd.grad(true_y, wide, dy.double())
    dx = dx + dtotal.double() if is_sum else dx
    true = {"y": true_y.detach(), "dx": dx, "total": wide[0].detach()}
    true |= dict(zip(("dweight", "dbias"), others, strict=False))
    got = {name: value for name, value in got.items() if name in true}
    return Norm(got, true, machine.traffic)

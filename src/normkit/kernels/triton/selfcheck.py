"""A short look at the numbers, before a device is trusted: forward and gradients of every kind of kernel."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from normkit.kernels import by_reference
from normkit.kernels.by_reference import CENTER
from normkit.kernels.triton import groups, rows
from normkit.kernels.triton.tiles import MAX_FORWARD

__all__ = ["run"]

EPS = 1e-5
# Largest error, as a share of the largest number. bfloat16 holds 8 bits.
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
MEANS = {torch.float32: 1e4, torch.bfloat16: 10.0}
ROWS = [(5, 96), (3, 1000), (2, MAX_FORWARD[2] + 3)]
GROUPS = [(1, 3, 8, 1, 49), (2, 130, 6, 4, 1), (3, 1, 2, 4, 64)]  # spans, columns, groups of channels


def run(device: torch.device) -> str:
    """What is wrong, or nothing. In a thread of its own: who asks may be in inference mode, or traced."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_run, device).result()


def _run(device: torch.device) -> str:
    try:
        for what, got, true, bound in _comparisons(device):
            error = _error(got, true)
            if not error <= bound:
                return f"its check failed on this device: {what} is off by {error:.1e}, more than {bound:.0e}"
        torch.get_device_module(device).synchronize(device)
    except Exception as error:  # a compiler, a driver: whatever it is, torch's operators will do
        return f"its check failed on this device: {type(error).__name__}: {str(error).strip()[:200]}"
    return ""


def _error(got: Tensor, true: Tensor) -> float:
    true = true.double()
    return ((got.double().cpu() - true).abs().max() / true.abs().max()).item()


def _comparisons(device: torch.device) -> Iterator[tuple[str, Tensor, Tensor, float]]:
    draw = torch.Generator("cpu").manual_seed(0)
    for dtype, bound in BOUNDS.items():
        for shape in ROWS:
            for kind in (CENTER, 0):
                x, dy = ((_randn(shape, draw) + m).to(dtype) for m in (MEANS[dtype], 0))
                weight = _randn(shape[1:], draw).to(dtype)
                call = (weight, weight if kind else None, 1, EPS, kind)
                y, stats = rows.rows_train(*_to(device, x, *call))
                yield f"rows {shape} {dtype}", y, by_reference.rows(*_double(x, *call)), bound
                back = (*call[:2], stats, None, *call[2:], True, True, bool(kind))
                found = rows.rows_backward(*_to(device, dy, x, *back))
                true = by_reference.rows_backward(*_double(dy, x, *back))
                for got, one in zip(found, true, strict=True):
                    if got.numel():
                        yield f"gradient of rows {shape} {dtype}", got, one, bound
        for sizes in GROUPS:
            k0, r1, k2, r3, i = sizes
            x, dy = ((_randn((k0, r1, k2 * r3, i), draw) + m).to(dtype) for m in (MEANS[dtype], 0))
            weight = _randn((k2 * r3,), draw).to(dtype)
            y, stats = groups.groups(
                *_to(device, x, *sizes, weight, weight, False, None, None, None, EPS, True)
            )
            norm = (*sizes, weight, weight, False, None)
            true_y, true_stats = by_reference.groups(*_double(x, *norm, None, None, EPS, True))
            yield f"groups {sizes} {dtype}", y, true_y, bound
            rest = (False, EPS, True, True, True)
            found = groups.groups_backward(*_to(device, dy, x, *norm, stats, *rest))
            true = by_reference.groups_backward(*_double(dy, x, *norm, true_stats, *rest))
            for got, one in zip(found, true, strict=True):
                yield f"gradient of groups {sizes} {dtype}", got, one, bound
    x = _randn((4, 256), draw).to(device)
    got = rows.rows(x, None, None, 1, EPS, CENTER)
    yield "a LayerNorm beside torch's", got, F.layer_norm(x, (256,), eps=EPS).cpu(), 1e-5


def _randn(shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=draw, dtype=torch.float32, device="cpu")


def _to(device: torch.device, *call: Any) -> list[Any]:
    return [t.to(device) if isinstance(t, Tensor) else t for t in call]


def _double(*call: Any) -> list[Any]:
    return [t.cpu().double() if isinstance(t, Tensor) and t.is_floating_point() else t for t in call]

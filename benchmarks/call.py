"""What one call costs: a row of 64 numbers is done at once, the rest is the way there and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import normkit.functional as N
from normkit.bench.cells import Call, Cell, tensors

__all__ = ["candidates", "cells"]

SHAPE = (1, 64)
NORMS: dict[str, tuple[Callable[..., Any], Callable[..., Any], int]] = {  # ours, torch's, parameters
    "LayerNorm": (N.layer_norm, F.layer_norm, 2),
    "RMSNorm": (N.rms_norm, F.rms_norm, 1),
}


def cells(quick: bool) -> list[Cell]:
    """With one thread, as there is nothing to share; with grad, the forward records a graph."""
    ways = ("no grad", "with grad")
    return [Cell("call", op, way, SHAPE, threads=1, compiled=False) for op in NORMS for way in ways]


def candidates(cell: Cell) -> dict[str, Call]:
    ours, torchs, count = NORMS[cell.op]
    axis = SHAPE[-1:]
    x, *parameters = tensors(cell, SHAPE, *[axis] * count)
    buffer, source = torch.empty_like(x), x.clone()
    if cell.way == "with grad":
        for tensor in (x, *parameters):
            tensor.requires_grad_()
    return {
        "copy_": lambda: buffer.copy_(source),
        "ours": lambda: ours(x, axis, *parameters),
        "eager": lambda: torchs(x, axis, *parameters),
    }

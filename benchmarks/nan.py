"""What one NaN costs: a row or a channel that holds one must not slow down the others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

import normkit.functional as N
from normkit.bench.cells import DTYPES, Call, Cell, backward, tensors

__all__ = ["candidates", "cells"]

ROWS, IMAGES = (4096, 768), (32, 256, 14, 14)
NORMS: dict[str, tuple[tuple[int, ...], int, Callable[..., Any]]] = {  # input, parameters, of either library
    "LayerNorm": (ROWS, 2, lambda f, x, *p: f.layer_norm(x, x.shape[-1:], *p)),
    "RMSNorm": (ROWS, 1, lambda f, x, *p: f.rms_norm(x, x.shape[-1:], *p, 1e-5)),
    "GroupNorm": (IMAGES, 2, lambda f, x, *p: f.group_norm(x, 32, *p)),
    "InstanceNorm": (IMAGES, 2, lambda f, x, *p: f.instance_norm(x, None, None, *p)),
    "BatchNorm train": (IMAGES, 2, lambda f, x, *p: f.batch_norm(x, None, None, *p, True)),
}


def cells(quick: bool) -> list[Cell]:
    """Both layouts of images."""
    return [
        Cell("nan", op, f"{way}, one NaN", shape, dtype, layout=layout, compiled=False)
        for op, (shape, _, _) in NORMS.items()
        for way in ("forward", "backward")
        for dtype in (("fp32",) if quick else DTYPES)
        for layout in (("contiguous", "channels_last") if len(shape) == 4 else ("contiguous",))
    ]


def candidates(cell: Cell) -> dict[str, Call]:
    """Ours with and without the NaN, and torch's with it."""
    shape, count, norm = NORMS[cell.op]
    features = shape[-1:] if len(shape) == 2 else shape[1:2]
    x, grad, *parameters = tensors(cell, shape, shape, *[features] * count)
    spoilt = x.clone()
    spoilt[1, 1] = float("nan")
    found: dict[str, Call] = {}
    for name, library, own in (("ours", N, spoilt), ("clean", N, x), ("eager", F, spoilt)):
        call, inputs = functools.partial(norm, library), [own, *parameters]
        backwards = cell.way.startswith("backward")
        found[name] = backward(call, inputs, grad) if backwards else functools.partial(call, *inputs)
    return found

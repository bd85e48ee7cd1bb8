"""Norms of images and batches: GroupNorm, InstanceNorm, BatchNorm, in both memory layouts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

import normkit.functional as N
from benchmarks.cells import DTYPES, Call, Cell, backward, tensors
from benchmarks.compiling import compiled

__all__ = ["candidates", "cells"]

Shape = tuple[int, ...]
IMAGES: list[Shape] = [(8, 64, 56, 56), (2, 320, 32, 32), (32, 256, 14, 14), (32, 256, 7, 7)]
SEQUENCES: list[Shape] = [(64, 128, 197)]
TOKENS: list[Shape] = [(4096, 768)]
QUICK: list[Shape] = [(32, 256, 7, 7)]
GROUPS = 32
OPS = ("GroupNorm", "InstanceNorm", "BatchNorm train", "BatchNorm eval")


def cells(quick: bool) -> list[Cell]:
    """Both layouts of images, in float32 and bfloat16, with 1 and 2 threads.

    Compiled in float32 with 2 threads only: it takes too long.
    """
    grid = [(d, t) for d in ("fp32", "bf16") for t in (2, 1)]
    return [
        Cell(
            "channels", op, way, shape, dtype, threads, layout, not quick and (dtype, threads) == ("fp32", 2)
        )
        for op in OPS
        for way in ("forward", "backward")
        for dtype, threads in (grid[:1] if quick else grid)
        for shape, layout in _inputs(op, quick)
    ]


def candidates(cell: Cell) -> dict[str, Call]:
    """Ours and the peers on the same tensors; ``copy_`` of the input is what memory allows at best."""
    channels = cell.shape[1:2]
    x, grad, *parameters = tensors(cell, cell.shape, cell.shape, channels, channels)
    inputs, buffer = [x, *parameters], torch.empty_like(x)
    functions = {"ours": _function(cell, N), "eager": _function(cell, F)}
    if cell.compiled:
        functions["compile"] = compiled(_function(cell, F))
    if cell.way == "backward":
        found: dict[str, Call] = {name: backward(f, inputs, grad) for name, f in functions.items()}
    else:
        found = {name: functools.partial(f, *inputs) for name, f in functions.items()}
    return {"copy_": lambda: buffer.copy_(x), **found}


def _function(cell: Cell, source: ModuleType) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The norm from torch's functions or from ours, with running statistics of its own."""
    dtype, channels = DTYPES[cell.dtype], cell.shape[1]
    mean, var = torch.zeros(channels, dtype=dtype), torch.ones(channels, dtype=dtype)
    return {
        "GroupNorm": lambda x, w, b: source.group_norm(x, GROUPS, w, b),
        "InstanceNorm": lambda x, w, b: source.instance_norm(x, None, None, w, b),
        "BatchNorm train": lambda x, w, b: source.batch_norm(x, mean, var, w, b, True),
        "BatchNorm eval": lambda x, w, b: source.batch_norm(x, mean, var, w, b, False),
    }[cell.op]


def _inputs(op: str, quick: bool) -> list[tuple[Shape, str]]:
    images = QUICK if quick else IMAGES
    found = [(shape, layout) for layout in ("contiguous", "channels_last") for shape in images]
    if not quick:
        found += [(shape, "contiguous") for shape in SEQUENCES]
        found += [(shape, "contiguous") for shape in TOKENS if op.startswith("BatchNorm")]
    return found

"""Norms of images and batches: GroupNorm, InstanceNorm, BatchNorm, in both memory layouts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

import normkit.functional as N
from normkit import kernels
from normkit.bench.cells import DTYPES, Call, Cell, backward, tensors
from normkit.bench.compiling import compiled
from normkit.bench.peers import channel_peers

__all__ = ["GROUPS", "backend", "candidates"]

GROUPS = 32


def backend(cell: Cell) -> str:
    """What computes ours."""
    channels = cell.shape[1:2]
    x, weight, bias = tensors(cell, cell.shape, channels, channels)
    op = cell.op.partition(" ")[0].replace("Norm", "_norm").lower()
    call = {"weight": weight, "bias": bias, "training": not cell.op.endswith("eval"), "num_groups": GROUPS}
    if not call["training"]:
        call |= {"running_mean": weight, "running_var": bias.abs()}
    return kernels.choice(op, x, **call)[0]


def candidates(cell: Cell) -> dict[str, Call]:
    """Ours and the peers on the same tensors; ``copy_`` of the input is what memory allows at best."""
    channels = cell.shape[1:2]
    x, grad, *parameters = tensors(cell, cell.shape, cell.shape, channels, channels)
    inputs, buffer = [x, *parameters], torch.empty_like(x)
    functions = {"ours": _function(cell, N), "eager": _function(cell, F), **channel_peers(cell, GROUPS)}
    if cell.compiled:
        functions["compile"] = compiled(_function(cell, F))
    if cell.way == "backward":
        found: dict[str, Call] = {name: backward(f, inputs, grad) for name, f in functions.items()}
    else:
        found = {name: functools.partial(f, *inputs) for name, f in functions.items()}
    return {"copy_": lambda: buffer.copy_(x), **found}


def _function(cell: Cell, source: ModuleType) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The norm from torch's functions or from ours, with running statistics of its own."""
    mean = torch.zeros(cell.shape[1], dtype=DTYPES[cell.dtype], device=cell.device)
    var = torch.ones_like(mean)
    return {
        "GroupNorm": lambda x, w, b: source.group_norm(x, GROUPS, w, b),
        "InstanceNorm": lambda x, w, b: source.instance_norm(x, None, None, w, b),
        "BatchNorm train": lambda x, w, b: source.batch_norm(x, mean, var, w, b, True),
        "BatchNorm eval": lambda x, w, b: source.batch_norm(x, mean, var, w, b, False),
    }[cell.op]

"""Norms of the last axis: LayerNorm and RMSNorm, forward, backward, and after a residual add."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import normkit.functional as N
from normkit import kernels
from normkit.bench.cells import OUT, Call, Cell, backward, tensors
from normkit.bench.compiling import compiled
from normkit.bench.peers import row_peers

__all__ = ["EPS", "NORMS", "backend", "candidates", "inputs_of"]

EPS = 1e-5


@dataclass(frozen=True)
class Norm:
    op: str  # its name among the kernels
    ours: Callable[..., Any]
    ours_after_add: Callable[..., Any]
    torchs: Callable[..., Any]
    parameters: int


NORMS = {
    "LayerNorm": Norm("layer_norm", N.layer_norm, N.add_layer_norm, F.layer_norm, parameters=2),
    "RMSNorm": Norm("rms_norm", N.rms_norm, N.add_rms_norm, F.rms_norm, parameters=1),
}


def inputs_of(cell: Cell) -> list[Tensor]:
    """What the norm is called with: the input, the residual if there is one, the parameters."""
    x, other, *parameters = _tensors(cell)
    return [x, other, *parameters] if cell.way == "add" else [x, *parameters]


def backend(cell: Cell) -> str:
    """What computes ours."""
    x, _, *parameters = _tensors(cell)
    op = NORMS[cell.op].op
    given = dict(zip(("weight", "bias"), parameters, strict=False))
    return kernels.choice(f"add_{op}" if cell.way == "add" else op, x, **given)[0]


def candidates(cell: Cell) -> dict[str, Call]:
    """Ours and the peers on the same tensors; ``copy_`` of the input is what memory allows at best."""
    x, other, *parameters = _tensors(cell)
    inputs = [x, other, *parameters] if cell.way == "add" else [x, *parameters]
    ours, torchs = _added(cell) if cell.way == "add" else _plain(cell)
    buffer = torch.empty_like(x)
    found: dict[str, Call] = {"copy_": lambda: buffer.copy_(x)}
    if cell.way == "in place":  # again and again, which changes nothing with a weight of 1 and a bias of 0
        for parameter, value in zip(parameters, (1, 0), strict=False):
            parameter.fill_(value)
        own = x.clone()
        return found | {
            "ours": lambda: ours(own, *parameters, out=own),
            "eager": lambda: torchs(x, *parameters),
        }
    peers = row_peers(cell, EPS)
    if cell.compiled:
        peers["compile"] = compiled(torchs)
    if cell.way == "backward":
        functions = {"ours": ours, "eager": torchs, **peers}
        return found | {name: backward(f, inputs, other) for name, f in functions.items()}
    ready: Any = torch.empty_like(x)
    if cell.way == "add":
        ready = ready, torch.empty_like(x)
    found["ours"] = lambda: ours(*inputs)
    found[OUT] = lambda: ours(*inputs, out=ready)
    found["eager"] = lambda: torchs(*inputs)
    return found | {name: functools.partial(f, *inputs) for name, f in peers.items()}


def _tensors(cell: Cell) -> list[Tensor]:
    axis = cell.shape[-1:]
    return tensors(cell, *[cell.shape] * 2, *[axis] * NORMS[cell.op].parameters)


def _plain(cell: Cell) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The norm: ours, and torch's."""
    norm, axis = NORMS[cell.op], cell.shape[-1:]

    def torchs(x: Tensor, *parameters: Tensor) -> Tensor:
        return norm.torchs(x, axis, *parameters, eps=EPS)

    return lambda x, *parameters, **out: norm.ours(x, axis, *parameters, eps=EPS, **out), torchs


def _added(cell: Cell) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The norm of a sum, and the sum: ours in one go, and torch's in two."""
    norm, axis = NORMS[cell.op], cell.shape[-1:]

    def torchs(x: Tensor, residual: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return norm.torchs(total, axis, *parameters, eps=EPS), total

    def ours(x: Tensor, residual: Tensor, *parameters: Tensor, **out: Any) -> tuple[Tensor, Tensor]:
        return norm.ours_after_add(x, residual, axis, *parameters, eps=EPS, **out)

    return ours, torchs

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
from benchmarks import onnx_peer
from benchmarks.cells import OUT, Call, Cell, backward, tensors
from benchmarks.compiling import compiled

__all__ = ["candidates", "cells"]

SHAPES = [(1, 64), (1, 4096), (64, 768), (512, 768), (4096, 768), (2048, 4096), (4096, 4096)]
QUICK = [(64, 768), (4096, 768)]
HEADS = [(2, 12, 512, 64)]  # of an attention, whose queries and keys are normalised
EPS = 1e-5


@dataclass(frozen=True)
class Norm:
    ours: Callable[..., Any]
    ours_after_add: Callable[..., Any]
    torchs: Callable[..., Any]
    parameters: int


NORMS = {
    "LayerNorm": Norm(N.layer_norm, N.add_layer_norm, F.layer_norm, parameters=2),
    "RMSNorm": Norm(N.rms_norm, N.add_rms_norm, F.rms_norm, parameters=1),
}


def cells(quick: bool) -> list[Cell]:
    """All combinations; a smoke run has a few, in float32, and compiles the forward alone.

    A compiler takes its time: bfloat16 with one thread goes without.
    """
    grid = [(d, t) for d in ("fp32", "bf16") for t in (2, 1)][: 1 if quick else 4]
    found = [
        Cell("rows", op, way, shape, dtype, threads, compiled=_compiles(quick, way, dtype, threads))
        for op in NORMS
        for way in ("forward", "backward", "add")
        for dtype, threads in grid
        for shape in (QUICK if quick else SHAPES)
    ]
    found += [
        Cell("rows", "RMSNorm", way, shape, dtype, threads, compiled=False)
        for way in ("forward", "backward")
        for dtype, threads in grid
        for shape in HEADS
    ]
    found += [
        Cell("rows", op, "in place", shape, dtype, threads, compiled=False)
        for op in NORMS
        for dtype, threads in grid
        for shape in ([QUICK[-1]] if quick else SHAPES[-3:])
    ]
    return found


def candidates(cell: Cell) -> dict[str, Call]:
    """Ours and the peers on the same tensors; ``copy_`` of the input is what memory allows at best."""
    axis = cell.shape[-1:]
    x, other, *parameters = tensors(cell, *[cell.shape] * 2, *[axis] * NORMS[cell.op].parameters)
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
    if cell.way == "backward":
        functions = {"ours": ours, "eager": torchs}
        if cell.compiled:
            functions["compile"] = compiled(torchs)
        return found | {name: backward(f, inputs, grad=other) for name, f in functions.items()}
    ready: Any = torch.empty_like(x)
    if cell.way == "add":
        ready = ready, torch.empty_like(x)
    found["ours"] = lambda: ours(*inputs)
    found[OUT] = lambda: ours(*inputs, out=ready)
    found["eager"] = lambda: torchs(*inputs)
    if cell.compiled:
        found["compile"] = functools.partial(compiled(torchs), *inputs)
    onnx = (
        onnx_peer.session(cell.op, cell.way, inputs, EPS, cell.threads)
        if cell.dtype == "fp32" and x.ndim == 2
        else None
    )
    return found | ({} if onnx is None else {"onnx": onnx})


def _compiles(quick: bool, way: str, dtype: str, threads: int) -> bool:
    return way == "forward" if quick else (dtype, threads) != ("bf16", 1)


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

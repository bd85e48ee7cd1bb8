"""Norms of the last axis, at the shapes of models; beside the peers of the package, ONNX Runtime."""

from __future__ import annotations

from benchmarks import onnx_peer
from normkit.bench import rows
from normkit.bench.cells import Call, Cell
from normkit.bench.rows import EPS, NORMS

__all__ = ["candidates", "cells"]

SHAPES = [(1, 64), (1, 4096), (64, 768), (512, 768), (4096, 768), (2048, 4096), (4096, 4096)]
QUICK = [(64, 768), (4096, 768)]
HEADS = [(2, 12, 512, 64)]  # of an attention, whose queries and keys are normalised


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
    """Those of the package, and ONNX Runtime."""
    found = rows.candidates(cell)
    if cell.way in ("forward", "add") and cell.dtype == "fp32" and len(cell.shape) == 2:
        onnx = onnx_peer.session(cell.op, cell.way, rows.inputs_of(cell), EPS, cell.threads)
        found |= {} if onnx is None else {"onnx": onnx}
    return found


def _compiles(quick: bool, way: str, dtype: str, threads: int) -> bool:
    return way == "forward" if quick else (dtype, threads) != ("bf16", 1)

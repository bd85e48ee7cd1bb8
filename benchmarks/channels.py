"""Norms of images and batches, at the shapes of models."""

from __future__ import annotations

from normkit.bench.cells import Cell
from normkit.bench.channels import candidates

__all__ = ["candidates", "cells"]

Shape = tuple[int, ...]
IMAGES: list[Shape] = [(8, 64, 56, 56), (2, 320, 32, 32), (32, 256, 14, 14), (32, 256, 7, 7)]
SEQUENCES: list[Shape] = [(64, 128, 197)]
TOKENS: list[Shape] = [(4096, 768)]
QUICK: list[Shape] = [(32, 256, 7, 7)]
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


def _inputs(op: str, quick: bool) -> list[tuple[Shape, str]]:
    images = QUICK if quick else IMAGES
    found = [(shape, layout) for layout in ("contiguous", "channels_last") for shape in images]
    if not quick:
        found += [(shape, "contiguous") for shape in SEQUENCES]
        found += [(shape, "contiguous") for shape in TOKENS if op.startswith("BatchNorm")]
    return found

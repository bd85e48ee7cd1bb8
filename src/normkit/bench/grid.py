"""What ``normkit bench`` measures: row norms over D, group and batch norms of images, in two dtypes."""

from __future__ import annotations

import math
from types import ModuleType

import torch

from normkit.bench import channels, rows
from normkit.bench.cells import DTYPES, Cell, Row

__all__ = ["FAMILIES", "cells_of", "gigabytes", "rate"]

FAMILIES: dict[str, ModuleType] = {"rows": rows, "channels": channels}
DIMS = (256, 1024, 4096, 8192, 16384, 65536)
QUICK_DIMS = (1024, 4096)
# How many numbers an input has: enough to be bound by memory, and to be measured in a minute or ten.
VALUES = {"cpu": 1 << 22, "gpu": 1 << 25}
QUICK_VALUES = {"cpu": 1 << 18, "gpu": 1 << 23}
IMAGE = (64, 32, 32)  # channels, height, width
CHANNEL_OPS = ("GroupNorm", "BatchNorm train")
# What a call cannot do without, in sizes of its input: each operand is read once, each result written once.
PASSES = {"forward": 2, "backward": 3, "add": 4, "copy_": 2}


def cells_of(device: str, quick: bool) -> list[Cell]:
    """All of them, the most telling first, since Ctrl-C keeps what was measured."""
    kind = "cpu" if device == "cpu" else "gpu"
    values = (QUICK_VALUES if quick else VALUES)[kind]
    dtypes = ("fp32",) if quick and kind == "cpu" else ("bf16", "fp32")
    # A C++ compiler takes its time, and measures the same for any D.
    compiled = not quick and kind == "gpu"
    shared = {"threads": torch.get_num_threads(), "device": device}
    found = [
        Cell(
            *("rows", op, way, (values // dim, dim), dtype),
            compiled=compiled or (not quick and way == "forward" and dtype == "fp32"),
            **shared,  # type: ignore[arg-type]  # a number and a word
        )
        for way in ("forward", "backward", "add")
        for op in rows.NORMS
        for dtype in dtypes
        for dim in (QUICK_DIMS if quick else DIMS)
    ]
    shape = (max(1, values // math.prod(IMAGE)), *IMAGE)
    return found + [
        Cell("channels", op, way, shape, dtype, layout=layout, compiled=compiled, **shared)  # type: ignore[arg-type]
        for op in CHANNEL_OPS
        for way in ("forward", "backward")
        for dtype in dtypes
        for layout in ("contiguous", "channels_last")
    ]


def gigabytes(row: Row, candidate: str) -> float:
    """What one call reads and writes at least, in 1e9 bytes; a copy is the same for every way."""
    passes = PASSES["copy_" if candidate == "copy_" else row.way.removesuffix(" out=")]
    return passes * math.prod(row.shape) * DTYPES[row.dtype].itemsize / 1e9


def rate(row: Row, candidate: str) -> float | None:
    """GB/s at the median; None if it took no part."""
    if row.median is None or candidate not in row.median:
        return None
    return gigabytes(row, candidate) / (row.median[candidate] / 1e6)

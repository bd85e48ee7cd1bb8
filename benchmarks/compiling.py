"""torch.compile as a peer: compiled once for every shape, from a cache that all cores fill first."""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
import torch._functorch.config

from benchmarks.cells import Cell

__all__ = ["compiled", "fill_cache"]

# Otherwise a compiled backward may write over what it saved, and cannot be called again for the timer.
torch._functorch.config.donated_buffer = False


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled for the shapes of its first call."""
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)


def fill_cache(cells: list[Cell]) -> Iterator[None]:
    """Compile every cell in child processes; the one that measures then finds the code on disk."""
    wanted = [cell for cell in cells if cell.compiled]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(8, os.cpu_count() or 1), mp_context=context) as pool:
        yield from pool.map(_compile, wanted)


def _compile(cell: Cell) -> None:
    family = importlib.import_module(f"benchmarks.{cell.family}")
    torch.set_num_threads(cell.threads)
    with torch.no_grad():
        family.candidates(cell)["compile"]()

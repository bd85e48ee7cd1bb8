"""torch.compile as a peer: compiled once for every shape, from a cache that all cores fill first."""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
import torch._functorch.config

from normkit.bench.cells import Cell

__all__ = ["compiled", "fill_cache"]

# Otherwise a compiled backward may write over what it saved, and cannot be called again for the timer.
torch._functorch.config.donated_buffer = False


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled for the shapes of its first call."""
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)


def fill_cache(cells: list[Cell], home: str) -> Iterator[None]:
    """Compile every cell in child processes; the one that measures then finds the code on disk.

    ``home`` is the package whose modules, named after the families, know a cell's candidates.
    """
    wanted = [cell for cell in cells if cell.compiled]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(8, os.cpu_count() or 1), mp_context=context) as pool:
        yield from pool.map(functools.partial(_compile, home), wanted)


def _compile(home: str, cell: Cell) -> None:
    family = importlib.import_module(f"{home}.{cell.family}")
    torch.set_num_threads(cell.threads)
    with torch.no_grad():
        family.candidates(cell)["compile"]()

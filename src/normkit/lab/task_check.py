"""Does a task of one's own do what a task must? Asked once, before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from normkit.errors import user_error
from normkit.lab import own
from normkit.lab.task import Task
from normkit.transformer.description import short

__all__ = ["check_task"]

ROWS = 4


def check_task(task: Task, seed: int = 0) -> None:
    """What a method gives is looked at by kind; ``batch`` must give the same for the same generator."""
    divided = task.split(seed)
    _is("split()", divided, Task, "a Task, self or another one")
    for name in ("held_out", "validation"):
        found = getattr(divided, name)()
        if name == "held_out" or found is not None:
            _is(f"{name}()", found, Iterable, "a list of batches")
    baselines = divided.baselines()
    _is("baselines()", baselines, Mapping, "a dictionary of losses by name")
    for name, loss in baselines.items():
        if isinstance(loss, float) and math.isnan(loss):
            raise user_error(f"baselines() of the task gave NaN for {name!r}.", expected="a loss")
    one, other = (_seen(divided.batch(ROWS, torch.Generator().manual_seed(0))) for _ in range(2))
    if one != other:
        raise user_error(
            "batch() of the task gave other numbers for a generator in the same state.",
            expected="all that is random drawn with the generator that it is given",
            fix="generator=generator in torch.randn(…), torch.randint(…), torch.randperm(…).",
        )


def _is(method: str, found: Any, kind: Any, expected: str) -> None:
    if not isinstance(found, kind):
        raise user_error(f"{method} of the task gave {short(found)}.", expected=expected)


def _seen(batch: Any) -> str:
    if batch is None:
        raise user_error("batch() of the task gave None.", expected="a tensor, or a tuple of them")
    return own.identity([batch])

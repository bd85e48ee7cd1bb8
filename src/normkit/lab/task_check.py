"""Does a task of one's own do what a task must? Asked once, before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from normkit.errors import user_error
from normkit.lab import own
from normkit.lab.task import Task
from normkit.transformer.description import short

__all__ = ["check_task"]

ROWS = 4
T = TypeVar("T")


def check_task(task: Task, seed: int = 0) -> None:
    """What a method gives is looked at by kind; ``batch`` must give the same for the same generator. Those
    that come with normkit have tests."""
    if type(task).__module__.startswith("normkit."):
        return
    divided = task.split(seed)
    if not isinstance(divided, Task):
        raise user_error(
            f"split() of the task gave {short(divided)}.", expected="a Task: self, or another one"
        )
    for name in ("held_out", "validation"):
        found = getattr(divided, name)()
        if name == "held_out" or found is not None:
            _made(f"{name}()", found, iter, "a list of batches")
    baselines = _made("baselines()", divided.baselines(), dict, "a dictionary of losses by name")
    for name, loss in baselines.items():
        if isinstance(loss, float) and math.isnan(loss):
            raise user_error(f"baselines() of the task gave NaN for {name!r}.", expected="a loss")
    one, other = (_seen(divided.batch(ROWS, torch.Generator().manual_seed(0))) for _ in range(2))
    if one != other:
        raise user_error(
            "batch() of the task gave another batch for a generator in the same state.",
            expected="the same one: all that is random drawn with the generator that it is given",
            fix="generator=generator in torch.randn(…), torch.randint(…), torch.randperm(…).",
        )


def _made(method: str, found: Any, kind: Callable[[Any], T], expected: str) -> T:
    try:
        return kind(found)
    except (TypeError, ValueError):
        raise user_error(f"{method} of the task gave {short(found)}.", expected=expected) from None


def _seen(batch: Any) -> str:
    if batch is None:
        raise user_error("batch() of the task gave None.", expected="a tensor, or a tuple of them")
    return own.identity([batch])

"""What a run will cost, in seconds of one worker, from a few steps of one like it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from statistics import median
from typing import Any

from normkit.errors import NormkitError
from normkit.lab import machine
from normkit.lab.devices import check_device
from normkit.lab.measuring import measure
from normkit.lab.norm_check import blames_the_norm
from normkit.lab.run import Run
from normkit.lab.task import Task, explained
from normkit.lab.training import Training

__all__ = ["Costs"]

STEPS = 6  # that are timed, of each size


class Costs:
    """Every arm is tried before the start, if only for a step: what cannot be trained is found at once.

    Args:
        tasks: by their options.
        limit: a context for what may take too long.
    """

    def __init__(self, tasks: Mapping[Any, Task], limit: Callable[[], AbstractContextManager[None]]) -> None:
        self.tasks, self.limit = tasks, limit
        self.sizes: dict[Run, tuple[float, float]] = {}  # of a whole run without its steps, and of a step
        self.tried: set[Run] = set()
        self.prepare = 0.0  # seconds that loading and dividing the data take, once a worker and seed
        self.share = 0.0  # of that, a run

    def try_all(self, runs: Sequence[Run]) -> None:
        """Measure one of each size, and make a step of every arm."""
        with machine.borrowed_process():
            for run in runs:
                arm = _here(replace(run, seed=0, lr=1e-3, until=None))
                if arm not in self.tried:
                    self.tried.add(arm)
                    with explained(str(run), run.task), self.limit(), blames_the_norm(run):
                        self._try(arm)

    def _try(self, arm: Run) -> None:
        task = self.tasks[arm.options]
        size = _size(arm)
        if size in self.sizes:
            Training(arm, task).advance()
            return
        times = [time.perf_counter()]
        for _ in range(2):  # the first one loads and divides the data
            measure(replace(arm, until=2), task)
            times.append(time.perf_counter())
        around = times[2] - times[1]
        self.prepare = max(self.prepare, times[1] - times[0] - around)
        step = _seconds_a_step(Training(arm, task))
        self.sizes[size] = max(0.0, around - 2 * step), step

    def of(self, run: Run) -> float:
        """Seconds of one worker."""
        around, step = self.sizes[_size(_here(run))]
        return around + step * run.last + self.share


def _size(run: Run) -> Run:
    """What decides about the time of a step: not the norm, by much, nor its place."""
    return replace(run, seed=0, lr=1e-3, until=None, steps=1, warmup=0, norm="layer", placement="pre")


def _here(run: Run) -> Run:
    """On this machine, which may be without the device that a cluster has."""
    with contextlib.suppress(NormkitError):
        check_device(run.device)
        return run
    return replace(run, device="cpu")


def _seconds_a_step(training: Training) -> float:
    times = []
    for _ in range(STEPS + 1):
        start = time.perf_counter()
        training.advance()
        times.append(time.perf_counter() - start)
    return median(times[1:])

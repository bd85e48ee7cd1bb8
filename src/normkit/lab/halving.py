"""Successive halving: short runs first, and only what looks good is trained in full, on every seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from normkit.lab.measuring import Outcome
from normkit.lab.run import Run

__all__ = ["RUNGS", "first_rung", "next_rung", "steps"]

# How far the runs of a rung go, as a share of their steps. After each, the better half goes on; the last one
# trains what is left, with all seeds.
RUNGS = (0.25, 0.5, 1.0)


def first_rung(runs: Sequence[Run]) -> list[Run]:
    """Every cell, with the first seed alone."""
    seed = runs[0].seed
    return [_until(run, RUNGS[0]) for run in runs if run.seed == seed]


def next_rung(runs: Sequence[Run], results: Sequence[tuple[Run, Outcome]], rung: int) -> list[Run]:
    """The better half of the cells of a rung, for the next one.

    Args:
        runs: all runs of the comparison.
        results: those of the rung before.
        rung: the number of the next one.
    """
    ranked = sorted(results, key=lambda result: _loss(result[1]))
    kept = {_cell(run) for run, _ in ranked[: math.ceil(len(ranked) / 2)]}
    last = rung == len(RUNGS) - 1
    seed = runs[0].seed
    return [
        run if last else _until(run, RUNGS[rung])
        for run in runs
        if _cell(run) in kept and (last or run.seed == seed)
    ]


def steps(runs: Sequence[Run]) -> int:
    """How many steps all rungs together take, if no run dies."""
    seeds = len({run.seed for run in runs})
    cells, total = len(runs) // seeds, 0
    for share in RUNGS:
        total += cells * math.ceil(runs[0].steps * share) * (seeds if share == 1.0 else 1)
        cells = math.ceil(cells / 2)
    return total


def _until(run: Run, share: float) -> Run:
    return replace(run, until=max(1, math.ceil(run.steps * share)))


def _cell(run: Run) -> Run:
    """A run, whatever its seed and however long."""
    return replace(run, seed=0, until=None)


def _loss(outcome: Outcome) -> float:
    return math.inf if outcome.diverged or outcome.final_loss is None else outcome.final_loss

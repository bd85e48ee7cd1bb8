"""Successive halving: short runs first. Each arm keeps the better half of its learning rates and those that
are close, and an arm that cannot win goes no further; what is left is trained in full, on every seed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from normkit.lab.measuring import Outcome
from normkit.lab.run import Run

__all__ = ["RUNGS", "arm_of", "cell_of", "rounds", "rungs_of", "validation_loss"]

# How far the runs of a rung go, as a share of their steps. The last one has all seeds.
RUNGS = (0.25, 0.5, 1.0)
LEARNT = 0.1  # of the worst baseline: until the best has learnt that much, nobody can be told to be worse
HOPELESS = 0.25  # of what the best arm has learnt so far: who is further behind cannot win
CLOSE = 0.1  # of the same: a rate that is no further behind the best of its arm goes on

Results = Sequence[tuple[Run, Outcome]]


def rounds(runs: Sequence[Run], problem: Sequence[str] = ()) -> Generator[list[Run], Results, None]:
    """Round by round: gives the runs of each, and wants their results.

    Args:
        runs: all of the comparison.
        problem: fields that make it another problem; arms are compared within each.
    """
    seed = runs[0].seed
    cells = [run for run in runs if run.seed == seed]
    rungs = rungs_of(runs)
    for number, share in enumerate(rungs[:-1], start=2):
        results = yield [_until(run, share) for run in cells]
        kept = survivors(results, problem, last=number == len(rungs))
        cells = [run for run in cells if cell_of(run) in kept]
        if not cells:  # all of them diverged, or leak: no longer run would help
            return
    kept = {cell_of(run) for run in cells}
    yield [run for run in runs if cell_of(run) in kept]


def rungs_of(runs: Sequence[Run]) -> tuple[float, ...]:
    """Where every arm has one learning rate, one short round is enough to see who cannot win."""
    rates: dict[Run, set[float]] = defaultdict(set)
    for run in runs:
        rates[arm_of(run)].add(run.lr)
    return RUNGS if max(map(len, rates.values())) > 1 else (RUNGS[0], RUNGS[-1])


def survivors(results: Results, problem: Sequence[str] = (), *, last: bool = False) -> set[Run]:
    """The cells that go on: of each arm that can still win the better half of its rates, and those that are
    close. Short runs flatter large rates: cut at half, arms would end at rates of their own, and differ by
    them. To the ``last`` round, which is dear, at most the half or the best two go."""
    problems: dict[tuple[Any, ...], dict[Run, list[tuple[float, Run]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    plateaus: dict[tuple[Any, ...], float | None] = {}
    for run, outcome in results:
        which = tuple(run.value(name) for name in problem)
        plateaus[which] = outcome.plateau
        loss = validation_loss(outcome)
        if math.isfinite(loss) and not outcome.leak:
            problems[which][arm_of(run)].append((loss, run))
    kept: set[Run] = set()
    for which, arms in problems.items():
        best, plateau = min(loss for cells in arms.values() for loss, _ in cells), plateaus[which]
        early = plateau is None or plateau - best < LEARNT * abs(plateau)
        furthest = math.inf if plateau is None or early else best + HOPELESS * (plateau - best)
        for cells in arms.values():
            ranked = sorted(cells, key=lambda cell: cell[0])
            if ranked[0][0] <= furthest:
                half = math.ceil(len(ranked) / 2)
                near = ranked[0][0] + CLOSE * (furthest - best) / HOPELESS
                many = half if math.isinf(near) else len(ranked)  # where little is learnt, all is close
                close = sum(loss <= near for loss, _ in ranked[: 2 if last else many])
                kept |= {cell_of(run) for _, run in ranked[: max(half, close)]}
    return kept


def validation_loss(outcome: Outcome) -> float:
    """Infinite where there is none."""
    loss = outcome.chosen_by
    return math.inf if loss is None else loss


def cell_of(run: Run) -> Run:
    """A run, whatever its seed and however long."""
    return replace(run, seed=0, until=None)


def arm_of(run: Run) -> Run:
    """The same, at whatever learning rate."""
    return replace(run, seed=0, until=None, lr=1.0)


def _until(run: Run, share: float) -> Run:
    return replace(run, until=max(1, math.ceil(run.steps * share)))

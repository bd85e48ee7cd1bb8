"""A time instead of steps: how far it goes on this machine, and what is done with what is left of it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from normkit.errors import user_error
from normkit.lab import halving
from normkit.lab.analysis import Summary
from normkit.lab.halving import Results, arm_of, cell_of
from normkit.lab.run import Run
from normkit.lab.task import loaded_defaults
from normkit.transformer.description import short

__all__ = [
    "MORE_SEEDS",
    "budget_seconds",
    "fewer_rates",
    "fitting_steps",
    "least_seconds",
    "most_steps",
    "planned_cost",
    "rounds",
]

FIRST = 0.8  # of the budget is planned; the rest is for seeds where arms are close, and for a loaded machine
LAST = 0.03  # of the budget: for runs that take longer than they should, and for the page
FEWEST = 40  # steps; in fewer nobody can say whether a run has learnt
LONGEST = 10  # times the steps that a task has by default
MORE_SEEDS = 24  # at most, beyond those that were planned
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_ROUND = (1, 1.2, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9)
MORE = 0.5  # rates an arm, beside the better half: about every second arm keeps one that is close

Cost = Callable[[Run], float]


def most_steps(task: str) -> int:
    """Of a run: from there on a budget goes into seeds."""
    usual: int = loaded_defaults(task).get("steps", Run.steps)
    return LONGEST * usual


def budget_seconds(given: Any) -> float:
    """Of "10m", "90s", "1h30m", or a number of seconds.

    Example:
        >>> budget_seconds("1h30m"), budget_seconds("90s"), budget_seconds(600)
        (5400.0, 90.0, 600.0)
    """
    text = str(given).strip().lower().replace(" ", "")
    parts = re.findall(r"([0-9]*\.?[0-9]+)(s|m|h)", text) if isinstance(given, str) else []
    if parts and "".join(number + unit for number, unit in parts) == text:
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    elif re.fullmatch(r"[0-9]*\.?[0-9]+", text) and not isinstance(given, bool):
        seconds = float(text)
    else:
        seconds = -1.0
    if not 0 < seconds < 1e8:
        raise user_error(f"budget= got {short(given)}.", expected="a time, for example 90s, 10m or 1h30m")
    return seconds


def planned_cost(runs: Sequence[Run], cost: Cost, steps: int, rungs: int | None = None) -> float:
    """Seconds of one worker for all rounds of halving, or for the first of them, if no arm is dropped."""
    seed = runs[0].seed
    seeds = len({run.seed for run in runs})
    cells = [replace(run, steps=steps) for run in runs if run.seed == seed]
    total = 0.0
    shares = halving.rungs_of(runs)
    rates = max(1, len(cells) // len({arm_of(run) for run in cells}))
    kept: float = rates
    for share in shares[:rungs]:
        full = share == shares[-1]
        each = [cost(replace(run, until=None if full else max(1, math.ceil(share * steps)))) for run in cells]
        total += sum(each) * kept / rates * (seeds if full else 1)
        kept = math.ceil(math.floor(kept) / 2) + (MORE if kept > 1 else 0.0)
    return total


def fitting_steps(runs: Sequence[Run], cost: Cost, seconds: float, most: int) -> int:
    """The most steps that the first part of a budget is enough for, in round numbers; below ``FEWEST`` if it
    is not enough at all.

    Args:
        cost: seconds of one worker, of a run.
        seconds: of all workers together.
        most: never more than that.
    """
    grid = [
        round(k * 10**power) for power in range(1, 8) for k in _ROUND if k * 10**power == round(k * 10**power)
    ]
    fits = [n for n in (FEWEST // 2, *grid) if n <= most and planned_cost(runs, cost, n) <= FIRST * seconds]
    return max(fits, default=0)


def least_seconds(runs: Sequence[Run], cost: Cost) -> float:
    """What all arms need at least, of all workers together."""
    return planned_cost(runs, cost, FEWEST) / FIRST


def fewer_rates(rates: Sequence[float]) -> list[float]:
    """Without the ends of a range, which are rarely the best.

    Example:
        >>> fewer_rates([1e-3, 3e-3, 1e-2, 3e-2])
        [0.003, 0.01]
    """
    return list(rates[1:-1] if len(rates) > 3 else rates)


def rounds(
    runs: Sequence[Run],
    problem: Sequence[str],
    *,
    seconds: Callable[[], float],
    cost: Cost,
    judge: Callable[[Results], Summary | None],
    say: Callable[[str], None],
) -> Generator[list[Run], Results, None]:
    """Halving; then, with what is left, more seeds for the arms that are close. That happens once: who looks
    again and again finds a difference in the end.

    Args:
        seconds: what is left of the budget, of all workers together.
        cost: seconds of a run as the machine now is; nothing for one that is stored.
    """
    seeds = len({run.seed for run in runs})

    def in_full(arm: Run) -> float:
        return seeds * cost(replace(arm, until=None))

    def free(_: Run) -> float:
        return 0.0

    halved = halving.rounds(runs, problem)
    found: dict[Run, Any] = {}
    now = next(halved)
    while True:
        results = yield now
        found |= dict(results)
        try:
            now = halved.send(results)
        except StopIteration:
            break
        full = all(run.until is None for run in now)
        now = _affordable(now, results, free if full else in_full, seconds(), cost, say, problem)
    while more := _close(list(found.items()), judge, seconds(), cost):
        stored = not sum(map(cost, more))
        arms = len({arm_of(run) for run in more})
        if not stored:
            seeds = len(more) // arms
            say(f"close    {seeds} more seed{'s' * (seeds > 1)} for the {arms} arms that are close")
        found |= dict((yield more))
        if not stored:
            return


def _affordable(
    runs: list[Run],
    results: Results,
    later: Cost,
    seconds: float,
    cost: Cost,
    say: Callable[[str], None],
    problem: Sequence[str] = (),
) -> list[Run]:
    """Those of the best arms, as many as there is time for; two at least of each problem.

    Args:
        results: of the round before.
        later: what an arm will cost after this round.
    """
    losses = {cell_of(run): halving.validation_loss(outcome) for run, outcome in results}
    arms: dict[Run, list[Run]] = {}
    rank: dict[Run, int] = {}  # of an arm among those of its problem
    seen: Counter[tuple[Any, ...]] = Counter()
    for cell in sorted({cell_of(run) for run in runs}, key=lambda cell: losses.get(cell, math.inf)):
        arms.setdefault(arm_of(cell), []).append(cell)
        if arm_of(cell) not in rank:
            which = tuple(cell.value(name) for name in problem)
            rank[arm_of(cell)] = seen[which]
            seen[which] += 1
    arms = dict(sorted(arms.items(), key=lambda pair: rank[pair[0]]))
    needed = {cell: sum(cost(run) for run in runs if cell_of(run) == cell) for cell in losses}
    kept = [cell for cells in arms.values() for cell in cells]

    def total() -> float:
        return sum(needed[cell] for cell in kept) + sum(later(arm) for arm in {arm_of(cell) for cell in kept})

    # What is given up first comes last: the second rates of all arms, then the arms, but for two a problem.
    spare = [cell for cells in arms.values() for cell in cells[1:]][::-1]
    spare += [cells[0] for arm, cells in arms.items() if rank[arm] >= 2][::-1]
    for cell in spare:
        if total() <= seconds:
            break
        kept.remove(cell)
    lost = len(arms) - len({arm_of(cell) for cell in kept})
    if lost:
        say(f"pruned   {lost} of {len(arms)} arms, the last ones: the budget is short on this machine")
    return [run for run in runs if cell_of(run) in kept]


def _close(
    results: Results, judge: Callable[[Results], Summary | None], seconds: float, cost: Cost
) -> list[Run]:
    """More seeds for arms that are neither separated nor equal: as many as needed, or as time allows."""
    summary = judge(results)
    if summary is None:
        return []
    wanted: Mapping[str, int] = {
        label: int(answer.change["seeds"])
        for answer in summary.answers
        if "seeds" in answer.change
        for label in answer.open
    }
    arms = {arm.label: arm for arm in summary.arms if arm.label in wanted}
    full = [run for run, _ in results if run.until is None]
    cells = {
        cell_of(run): wanted[label] - len(arm.best.losses)
        for label, arm in arms.items()
        for run in full
        if run.lr == arm.best.lr and all(run.value(name) == value for name, value in arm.values.items())
    }
    if not cells:
        return []
    used = 1 + max(run.seed for run in full)
    more: list[Run] = []
    for seed in range(used, used + min(MORE_SEEDS, max(cells.values()))):
        new = [replace(cell, seed=seed) for cell in cells]
        price = sum(map(cost, new))
        if price > seconds or (price and more and not sum(map(cost, more))):
            break  # those that an earlier budget has paid for come first, and are judged before others are
        seconds -= price
        more += new
    return more

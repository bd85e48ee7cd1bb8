"""Arms: runs that differ in nothing but learning rate and seed, and what they came to."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles, variance
from typing import Any

from normkit.lab import own
from normkit.lab.intervals import Interval, interval
from normkit.lab.measuring import Outcome, learnt_nothing
from normkit.lab.run import Run

__all__ = ["LEAKS", "Arm", "Point", "Result", "build_arm", "difference", "label_of", "labels_of", "others"]

Result = tuple[Run, Outcome]
# How an arm may come out, beside the endings of a run.
LEAKS = "it sees what it must not see, such as later tokens: refused as the answer, whatever its loss"


@dataclass(frozen=True)
class Point:
    """An arm at one learning rate. By seed: the validation loss, which chooses the rate; the held-out loss,
    which judges, and is the worst baseline where a run diverged; its parts; and the best baseline that must
    be beaten."""

    lr: float
    chosen: dict[int, float]
    losses: dict[int, float]
    parts: dict[int, list[float]]
    floors: dict[int, float]
    endings: dict[int, str]

    @property
    def below(self) -> Interval | None:
        """By how much it is below the best baseline that must be beaten, seed by seed."""
        known = [self.floors[seed] - loss for seed, loss in self.losses.items() if seed in self.floors]
        return interval(known) if known else None

    @property
    def loss(self) -> Interval:
        return interval(list(self.losses.values()), _sampling(list(self.parts.values())))

    @property
    def chosen_by(self) -> float:
        return interval(list(self.chosen.values())).mean

    @property
    def diverged(self) -> int:
        return sum(ending == "diverged" for ending in self.endings.values())


@dataclass(frozen=True)
class Arm:
    """All runs that differ in nothing but learning rate and seed."""

    label: str
    values: dict[str, Any]
    problem: tuple[Any, ...]
    points: tuple[Point, ...]
    tried: tuple[float, ...]  # learning rates, those of short runs included
    baselines: dict[str, float]  # means over seeds
    floor: float | None  # the best of those that must be beaten
    leak: float
    validation: tuple[tuple[int, float], ...]  # the mean over seeds, at the best rate
    max_stable_lr: float | None
    sensitivity: float | None
    step_ms: float
    units_per_second: float
    speeds: tuple[float, float]  # the quartiles of the same
    peak_mb: float | None
    parameters: int
    pruned: bool = False

    @property
    def best(self) -> Point:
        """At the learning rate that validation chose, of those that most seeds have seen."""
        most = max(len(p.losses) for p in self.points)
        return min((p for p in self.points if len(p.losses) == most), key=lambda p: p.chosen_by)

    @property
    def plateau(self) -> float | None:
        """The worst of the baselines."""
        return max(self.baselines.values(), default=None)

    @property
    def ending(self) -> str:
        """In one word, how it came out at its best rate; "leaks" if it saw what it must not see."""
        if self.leak > 0:
            return "leaks"
        if self.pruned:
            return "stopped"
        if self.best.diverged or math.isinf(self.best.loss.mean):
            return "diverged"
        return "at baseline" if learnt_nothing(self.best.loss.mean, self.floor) else "ok"

    @property
    def can_win(self) -> bool:
        return self.ending == "ok"

    @property
    def learnt(self) -> bool:
        """Is it better than the worst baseline?"""
        worst = math.inf if self.plateau is None else self.plateau
        return self.best.loss.mean < worst

    @property
    def loss(self) -> str:
        """For a table: a number that stands for nothing is not shown."""
        return self.ending if self.ending in ("stopped", "diverged") else str(self.best.loss)

    @property
    def stable(self) -> str:
        """The largest stable learning rate; with a mark if it was the largest that was tried."""
        if self.max_stable_lr is None:
            return "–"
        largest = len(self.points) > 1 and self.max_stable_lr == max(p.lr for p in self.points)
        return f"{'≥ ' if largest else ''}{self.max_stable_lr:.2g}"

    @property
    def at_edge(self) -> str | None:
        """Whether the best learning rate is the last one on a side of the range."""
        rates = self.tried
        if len(rates) < 2 or min(rates) < self.best.lr < max(rates):
            return None
        return "largest" if self.best.lr == max(rates) else "smallest"


def label_of(run: Run, varied: Sequence[str]) -> str:
    """What tells an arm from the others: norm and placement, and whatever else varies."""
    return " · ".join([run.norm, run.placement, *(f"{name} {run.value(name)}" for name in others(varied))])


def labels_of(runs: Sequence[Run], varied: Sequence[str]) -> dict[str, str]:
    """The labels of runs, as they are shown: without the hashes of objects, where that is clear."""
    whole = sorted({label_of(run, varied) for run in runs})
    short = [re.sub(rf"{own.HASH}[0-9a-f]{{{own.LENGTH}}}\b", "", label) for label in whole]
    return dict(zip(whole, short if len(set(short)) == len(whole) else whole, strict=True))


def others(varied: Sequence[str]) -> list[str]:
    return [name for name in varied if name not in ("norm", "placement", "lr", "seed")]


def difference(best: Arm, other: Arm) -> Interval:
    """By how much the other is worse, over the seeds that both have."""
    ours, theirs = best.best, other.best
    common = [seed for seed in ours.losses if seed in theirs.losses]
    if math.isinf(theirs.loss.mean):
        return Interval(math.inf, None, len(common))
    if not common:
        return Interval(theirs.loss.mean - ours.loss.mean, None, 0)
    values = [theirs.losses[seed] - ours.losses[seed] for seed in common]
    pairs = [
        [b - a for a, b in zip(ours.parts[seed], theirs.parts[seed], strict=True)]
        for seed in common
        if len(ours.parts[seed]) == len(theirs.parts[seed])
    ]
    return interval(values, _sampling(pairs))


def _sampling(parts: Sequence[Sequence[float]]) -> float:
    """What the choice of the held-out data adds to the variance of a mean over seeds, as if all seeds had the
    same: those that are drawn anew for each share much of it."""
    known = [variance(p) / len(p) for p in parts if len(p) > 1]
    return fmean(known) if known else 0.0


def clipped(outcome: Outcome, loss: float | None) -> float:
    """Whatever has diverged counts as the worst baseline."""
    worst = math.inf if outcome.plateau is None else outcome.plateau
    return worst if outcome.diverged or loss is None else loss


def build_arm(
    label: str, members: list[Result], varied: Sequence[str], problem: Sequence[str], halved: bool
) -> Arm:
    complete = [(run, o) for run, o in members if run.last == run.steps]
    used = complete or members
    by_rate: dict[float, dict[int, Outcome]] = defaultdict(dict)
    for run, outcome in sorted(used, key=lambda result: (result[0].seed, result[0].last)):
        by_rate[run.lr][run.seed] = outcome  # of several lengths the longest
    points = tuple(
        Point(
            lr,
            {s: clipped(o, o.chosen_by) for s, o in seeds.items()},
            {s: clipped(o, o.final_loss) for s, o in seeds.items()},
            {s: o.judged for s, o in seeds.items()},
            {s: o.floor for s, o in seeds.items() if o.floor is not None},
            {s: o.status for s, o in seeds.items()},
        )
        for lr, seeds in sorted(by_rate.items())
    )
    run, first = used[0]
    names = {name for _, o in used for name in o.baselines}
    known = {n: [o.baselines[n] for _, o in used if n in o.baselines] for n in sorted(names)}
    floors = [o.floor for _, o in used if o.floor is not None]
    memories = [o.peak_mb for _, o in used if o.peak_mb is not None]
    arm = Arm(
        label=label,
        values={"norm": run.norm, "placement": run.placement, **{n: run.value(n) for n in others(varied)}},
        problem=tuple(run.value(name) for name in problem),
        points=points,
        tried=tuple(sorted({run.lr for run, _ in members})),
        baselines=dict(sorted(((n, fmean(v)) for n, v in known.items()), key=lambda pair: -pair[1])),
        floor=fmean(floors) if floors else None,
        leak=max((o.leak or 0.0 for _, o in used), default=0.0),
        validation=(),
        max_stable_lr=None,
        sensitivity=None,
        step_ms=median(o.step_ms for _, o in used),
        units_per_second=median(o.units_per_second for _, o in used),
        speeds=_quartiles([o.units_per_second for _, o in used]),
        peak_mb=median(memories) if memories else None,
        parameters=first.parameters,
        pruned=not complete,
    )
    curves = [dict(o.validation) for o in by_rate[arm.best.lr].values()]
    steps = sorted(set.intersection(*map(set, curves))) if curves else []
    mean = [(s, [c[s] for c in curves]) for s in steps]
    return _with(arm, halved, tuple((s, fmean(v)) for s, v in mean if None not in v))  # type: ignore[arg-type]


def _with(arm: Arm, halved: bool, validation: tuple[tuple[int, float], ...]) -> Arm:
    from dataclasses import replace

    plateau, least, stable = arm.plateau, min(p.loss.mean for p in arm.points), None
    if plateau is not None and not halved and least < plateau:
        stable = max(p.lr for p in arm.points if p.loss.mean <= least + 0.5 * (plateau - least))
    return replace(arm, validation=validation, max_stable_lr=stable)


def _quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high

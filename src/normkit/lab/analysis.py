"""From rows to an answer: which arm is best, how sure that is, and what the seeds do not decide."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, quantiles, stdev
from typing import Any

from normkit.lab.measuring import Outcome
from normkit.lab.run import Run

__all__ = ["Arm", "Interval", "Point", "Summary", "interval", "row", "summarise"]

CONFIDENCE = 0.95
Result = tuple[Run, Outcome]


@dataclass(frozen=True)
class Interval:
    """A mean, and the half-width of its confidence interval over seeds; None for a single seed."""

    mean: float
    half: float | None
    seeds: int

    @property
    def includes_zero(self) -> bool:
        return self.half is not None and abs(self.mean) <= self.half

    def __str__(self) -> str:
        plain = self.mean == 0 or 0.01 <= abs(self.mean) < 10_000
        form = ".3f" if plain else ".2g"
        return f"{self.mean:{form}}" + ("" if self.half is None else f" ± {self.half:{form}}")


def interval(values: Sequence[float]) -> Interval:
    """Student's, two-sided.

    Example:
        >>> print(interval([1.0, 2.0, 3.0]))
        2.000 ± 2.484
    """
    if len(values) < 2:
        return Interval(fmean(values), None, len(values))
    from scipy.special import stdtrit

    quantile = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2))
    return Interval(fmean(values), quantile * stdev(values) / math.sqrt(len(values)), len(values))


@dataclass(frozen=True)
class Point:
    """An arm at one learning rate: the final loss of each seed, clipped at the plateau."""

    lr: float
    losses: dict[int, float]
    diverged: int

    @property
    def loss(self) -> Interval:
        return interval(list(self.losses.values()))


@dataclass(frozen=True)
class Arm:
    """All runs that differ in nothing but learning rate and seed."""

    label: str
    values: dict[str, Any]
    points: tuple[Point, ...]
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
        """At its best learning rate, of those that all seeds have seen."""
        most = max(len(p.losses) for p in self.points)
        return min((p for p in self.points if len(p.losses) == most), key=lambda p: p.loss.mean)

    @property
    def at_edge(self) -> str | None:
        """Whether the best learning rate is the last one on a side of the range."""
        rates = [p.lr for p in self.points]
        if len(rates) < 2 or min(rates) < self.best.lr < max(rates):
            return None
        return "largest" if self.best.lr == max(rates) else "smallest"


@dataclass(frozen=True)
class Summary:
    """Arms from the best to the worst; ``behind`` has how much each loses to the first, over the same seeds;
    ``ties`` are those that the seeds do not separate from it."""

    arms: tuple[Arm, ...]
    behind: dict[str, Interval]
    ties: tuple[str, ...]
    plateau: float | None
    lowest: float
    recommendation: str
    warnings: tuple[str, ...] = field(default=())


def row(run: Run, outcome: Outcome) -> dict[str, Any]:
    """A run as one flat row, for tables and exports."""
    return {
        "task": run.task,
        "norm": run.norm,
        "placement": run.placement,
        **dict(run.options),
        **{n: getattr(run, n) for n in ("lr", "depth", "width", "batch_size", "warmup", "steps", "schedule")},
        "seed": run.seed,
        "status": outcome.status,
        "diverged": outcome.diverged,
        "best_loss": outcome.best_loss,
        "final_loss": outcome.final_loss,
        "plateau": outcome.plateau,
        "steps_done": outcome.steps,
        "step_ms": outcome.step_ms,
        "units_per_second": outcome.units_per_second,
        "peak_mb": outcome.peak_mb,
        "parameters": outcome.parameters,
        "seconds": outcome.seconds,
        **{name.replace(" ", "_"): value for name, value in outcome.metrics.items()},
        "error_text": outcome.error,
    }


def summarise(results: Sequence[Result], varied: Sequence[str], loss_name: str = "loss") -> Summary | None:
    """The answer, or None where no run has a loss.

    The learning rate of an arm is chosen by the mean over seeds; arms are compared seed by seed.
    """
    full = [(run, o) for run, o in results if o.status != "failed"]
    plateaus = [o.plateau for _, o in full if o.plateau is not None]
    losses = [o.final_loss for _, o in full if o.final_loss is not None]
    if not losses:
        return None
    plateau = max(plateaus, default=None)
    halved = any(run.until is not None for run, _ in full)  # then learning rates are missing
    worst = plateau if plateau is not None else max(losses)
    longest = max(run.last for run, _ in full)
    groups: dict[str, list[Result]] = defaultdict(list)
    for run, outcome in full:
        groups[_label(run, varied)].append((run, outcome))
    lowest = min(
        _clipped(o, worst) for run, o in full if run.last == longest
    )  # the global best, one for all arms
    arms = [
        _arm(label, members, varied, worst, None if halved else plateau, lowest)
        for label, members in groups.items()
    ]
    arms.sort(key=lambda arm: (arm.pruned, arm.best.loss.mean))
    best = arms[0]
    rivals = [arm for arm in arms[1:] if not arm.pruned]
    behind = {arm.label: _difference(best, arm) for arm in rivals}
    ties = tuple(arm.label for arm in rivals if behind[arm.label].includes_zero)
    return Summary(
        arms=tuple(arms),
        behind=behind,
        ties=ties,
        plateau=plateau,
        lowest=lowest,
        recommendation=_recommend(best, rivals, behind, ties, loss_name, worst),
        warnings=tuple(_warn(arms, results)),
    )


def _label(run: Run, varied: Sequence[str]) -> str:
    """What tells an arm from the others: norm and placement, and whatever else varies."""
    parts = [run.norm, run.placement]
    options = dict(run.options)
    for name in varied:
        if name not in ("norm", "placement", "lr", "seed"):
            parts.append(f"{name} {options[name] if name in options else getattr(run, name)}")
    return " · ".join(parts)


def _clipped(outcome: Outcome, worst: float) -> float:
    """Whatever has diverged, and all that is worse than a blind guess, counts as the guess."""
    lost = outcome.diverged or outcome.final_loss is None
    return worst if lost else min(worst, outcome.final_loss or 0.0)


def _arm(
    label: str,
    members: list[Result],
    varied: Sequence[str],
    worst: float,
    plateau: float | None,
    lowest: float,
) -> Arm:
    complete = [(run, o) for run, o in members if run.last == run.steps]
    used = complete or members
    by_rate: dict[float, list[Result]] = defaultdict(list)
    for run, outcome in used:
        by_rate[run.lr].append((run, outcome))
    points = tuple(
        Point(
            lr,
            {run.seed: _clipped(o, worst) for run, o in sorted(runs, key=lambda r: r[0].seed)},
            sum(o.diverged for _, o in runs),
        )
        for lr, runs in sorted(by_rate.items())
    )
    least = min(p.loss.mean for p in points)
    stable = None
    if plateau is not None:
        limit = least + 0.5 * (plateau - least)
        stable = max((p.lr for p in points if p.loss.mean <= limit and least < plateau), default=None)
    run = used[0][0]
    memories = [o.peak_mb for _, o in used if o.peak_mb is not None]
    return Arm(
        label=label,
        values={"norm": run.norm, "placement": run.placement, **_rest(run, varied)},
        points=points,
        max_stable_lr=stable,
        sensitivity=fmean(p.loss.mean - lowest for p in points) if plateau is not None else None,
        step_ms=median(o.step_ms for _, o in used),
        units_per_second=median(o.units_per_second for _, o in used),
        speeds=_quartiles([o.units_per_second for _, o in used]),
        peak_mb=median(memories) if memories else None,
        parameters=used[0][1].parameters,
        pruned=not complete,
    )


def _quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high


def _rest(run: Run, varied: Sequence[str]) -> dict[str, Any]:
    options = dict(run.options)
    names = [n for n in varied if n not in ("norm", "placement", "lr", "seed")]
    return {n: options[n] if n in options else getattr(run, n) for n in names}


def _difference(best: Arm, other: Arm) -> Interval:
    """By how much the other is worse, over the seeds that both have."""
    ours, theirs = best.best.losses, other.best.losses
    common = [seed for seed in ours if seed in theirs]
    if not common:
        return Interval(other.best.loss.mean - best.best.loss.mean, None, 0)
    return interval([theirs[seed] - ours[seed] for seed in common])


def _recommend(
    best: Arm, rivals: list[Arm], behind: dict[str, Interval], ties: tuple[str, ...], unit: str, worst: float
) -> str:
    """One sentence with its uncertainty."""
    loss = best.best.loss
    if loss.mean >= worst:
        return "No arm has learnt anything: try smaller learning rates, more steps, or a warm-up."
    seeds = f"95 % over {loss.seeds} seeds" if loss.half is not None else "one seed, so no interval"
    choice = ", ".join(f"{name}={value}" for name, value in best.values.items())
    text = f"Use {choice}, lr={best.best.lr:.3g}: held-out loss {loss} {unit} ({seeds})"
    if not rivals:
        return text + "; there was nothing to compare it with."
    if loss.half is None:
        nearest = rivals[0]
        return (
            f"{text}; next is {nearest.label}, {behind[nearest.label]} behind, which one seed cannot judge."
        )
    if len(ties) == len(rivals):
        others = "the other" if len(rivals) == 1 else f"any of the other {len(rivals)}"
        return f"{text}. The seeds do not separate it from {others}: a tie."
    beaten = next(arm for arm in rivals if arm.label not in ties)
    gap = f"{beaten.label} is behind by {behind[beaten.label]}"
    if not ties:
        return f"{text}; it beats every other arm, and the nearest, {gap}."
    tied = ties[0] if len(ties) == 1 else ", ".join(ties[:-1]) + " and " + ties[-1]
    return f"{text}. The seeds do not separate it from {tied}: a tie. Of the rest, {gap}."


def _warn(arms: list[Arm], results: Sequence[Result]) -> list[str]:
    """What weakens the answer."""
    said = []
    edge = arms[0].at_edge
    if edge is not None:
        said.append(
            f"The best learning rate of {arms[0].label} is the {edge} one that was tried: widen the range."
        )
    failures = sum(o.status == "failed" for _, o in results)
    if failures:
        said.append(f"{failures} runs failed and are left out; the table says why.")
    if any(len(p.losses) < 3 for p in arms[0].points):
        said.append("Fewer than three seeds: intervals are missing or very wide.")
    return said

"""From rows to an answer: which arm is best, how sure that is, and what the seeds do not decide."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median, quantiles, stdev
from typing import Any

from normkit.lab.measuring import Outcome
from normkit.lab.run import Run

__all__ = ["Arm", "Interval", "Point", "Summary", "interval", "row", "summarise"]

CONFIDENCE = 0.95
BEYOND = 1e150  # a loss from here on is as good as infinite: its square would be
Result = tuple[Run, Outcome]


@dataclass(frozen=True)
class Interval:
    """A mean, and the half-width of its confidence interval over seeds; None for a single seed.

    The mean is infinite if one of the values is: a run that diverged, where nobody knows how bad a blind
    guess is.
    """

    mean: float
    half: float | None
    seeds: int

    @property
    def includes_zero(self) -> bool:
        return self.half is not None and abs(self.mean) <= self.half

    def __str__(self) -> str:
        if math.isinf(self.mean):
            return "diverged"
        plain = self.mean == 0 or 0.01 <= abs(self.mean) < 10_000
        form = ".3f" if plain else ".2g"
        return f"{self.mean:{form}}" + ("" if self.half is None else f" ± {self.half:{form}}")


def interval(values: Sequence[float]) -> Interval:
    """Student's, two-sided.

    Example:
        >>> print(interval([1.0, 2.0, 3.0]))
        2.000 ± 2.484
    """
    if not all(abs(value) < BEYOND for value in values):
        return Interval(math.inf, None, len(values))
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
    problem: tuple[Any, ...]
    points: tuple[Point, ...]
    plateau: float | None
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
        """At its best learning rate, of those that most seeds have seen."""
        most = max(len(p.losses) for p in self.points)
        return min((p for p in self.points if len(p.losses) == most), key=lambda p: p.loss.mean)

    @property
    def learnt(self) -> bool:
        """Is it better than a blind guess?"""
        worst = math.inf if self.plateau is None else self.plateau
        return self.best.loss.mean < worst

    @property
    def loss(self) -> str:
        """For a table: a number that stands for nothing is not shown."""
        if self.pruned:
            return "pruned"
        return str(self.best.loss) if self.learnt else "learnt nothing"

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
        rates = [p.lr for p in self.points]
        if len(rates) < 2 or min(rates) < self.best.lr < max(rates):
            return None
        return "largest" if self.best.lr == max(rates) else "smallest"


@dataclass(frozen=True)
class Summary:
    """Arms from the best to the worst; ``behind`` has how much each loses to the best of the same problem,
    over the same seeds; ``ties`` are those that the seeds do not separate from it."""

    arms: tuple[Arm, ...]
    behind: dict[str, Interval]
    ties: tuple[str, ...]
    recommendation: str
    warnings: tuple[str, ...] = field(default=())

    @property
    def plateau(self) -> float | None:
        """Of all arms, where they have the same."""
        found = {arm.plateau for arm in self.arms}
        return found.pop() if len(found) == 1 else None


def row(run: Run, outcome: Outcome) -> dict[str, Any]:
    """A run as one flat row, for tables and exports."""
    found = {
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
        "error_text": outcome.error,
    }
    for name, value in outcome.metrics.items():
        name = name.replace(" ", "_")
        found[f"metric_{name}" if name in found else name] = value
    return found


def summarise(
    results: Sequence[Result], varied: Sequence[str], loss_name: str = "loss", problem: Sequence[str] = ()
) -> Summary | None:
    """The answer, or None where no run has ended.

    The learning rate of an arm is chosen by the mean over seeds; arms are compared seed by seed, and only
    with those that solve the same problem.

    Args:
        results: the runs.
        varied: what differs between them.
        problem: fields that make it another problem.
    """
    full = [(run, o) for run, o in results if o.status != "failed"]
    if not full:
        return None
    halved = any(run.until is not None for run, _ in full)  # then learning rates are missing
    groups: dict[str, list[Result]] = defaultdict(list)
    for run, outcome in full:
        groups[_label(run, varied)].append((run, outcome))
    fields = [name for name in problem if name in varied]
    arms = [_arm(label, members, varied, fields, halved) for label, members in groups.items()]
    seeds = [set(arm.best.losses) for arm in arms if not arm.pruned]
    common = set.intersection(*seeds) if seeds else set()

    def rank(arm: Arm) -> tuple[bool, float]:
        fair = common and not arm.pruned
        losses = [loss for seed, loss in arm.best.losses.items() if seed in common or not fair]
        return arm.pruned, interval(losses).mean

    problems = {
        which: sorted((arm for arm in arms if arm.problem == which), key=rank)
        for which in dict.fromkeys(arm.problem for arm in arms)
    }
    behind: dict[str, Interval] = {}
    ties: list[str] = []
    answers: list[str] = []
    for members in problems.values():
        best, rivals = members[0], [arm for arm in members[1:] if not arm.pruned]
        behind |= {arm.label: _difference(best, arm) for arm in rivals}
        ties += [arm.label for arm in rivals if behind[arm.label].includes_zero]
        answers.append(_recommend(best, rivals, behind, [t for t in ties if t in behind], loss_name))
    ranked = [
        _sensitive(arm, problems[arm.problem][0], halved) for members in problems.values() for arm in members
    ]
    text = answers[0]
    if len(problems) > 1:
        text = (
            f"{len(problems)} different problems ({', '.join(fields)}): losses are compared within each. "
            + " ".join(answers)
        )
    lost = sorted({_label(run, varied) for run, _ in results} - set(groups))
    return Summary(tuple(ranked), behind, tuple(ties), text, tuple(_warn(ranked, results, lost)))


def _label(run: Run, varied: Sequence[str]) -> str:
    """What tells an arm from the others: norm and placement, and whatever else varies."""
    return " · ".join([run.norm, run.placement, *(f"{name} {run.value(name)}" for name in _others(varied))])


def _others(varied: Sequence[str]) -> list[str]:
    return [name for name in varied if name not in ("norm", "placement", "lr", "seed")]


def _clipped(outcome: Outcome) -> float:
    """Whatever has diverged, and all that is worse than a blind guess, counts as the guess."""
    worst = math.inf if outcome.plateau is None else outcome.plateau
    lost = outcome.diverged or outcome.final_loss is None
    return worst if lost else min(worst, outcome.final_loss or 0.0)


def _arm(
    label: str, members: list[Result], varied: Sequence[str], problem: Sequence[str], halved: bool
) -> Arm:
    complete = [(run, o) for run, o in members if run.last == run.steps]
    used = complete or members
    by_rate: dict[float, dict[int, Outcome]] = defaultdict(dict)
    for run, outcome in sorted(used, key=lambda result: (result[0].seed, result[0].last)):
        by_rate[run.lr][run.seed] = outcome  # of several lengths the longest
    points = tuple(
        Point(lr, {s: _clipped(o) for s, o in seeds.items()}, sum(o.diverged for o in seeds.values()))
        for lr, seeds in sorted(by_rate.items())
    )
    run, first = used[0]
    plateau, least = first.plateau, min(p.loss.mean for p in points)
    stable = None
    if plateau is not None and not halved and least < plateau:
        stable = max(p.lr for p in points if p.loss.mean <= least + 0.5 * (plateau - least))
    memories = [o.peak_mb for _, o in used if o.peak_mb is not None]
    return Arm(
        label=label,
        values={"norm": run.norm, "placement": run.placement, **{n: run.value(n) for n in _others(varied)}},
        problem=tuple(run.value(name) for name in problem),
        points=points,
        plateau=plateau,
        max_stable_lr=stable,
        sensitivity=None,
        step_ms=median(o.step_ms for _, o in used),
        units_per_second=median(o.units_per_second for _, o in used),
        speeds=_quartiles([o.units_per_second for _, o in used]),
        peak_mb=median(memories) if memories else None,
        parameters=first.parameters,
        pruned=not complete,
    )


def _sensitive(arm: Arm, best: Arm, halved: bool) -> Arm:
    """With the mean distance over learning rates from the best loss of all arms."""
    if halved or arm.plateau is None or math.isinf(best.best.loss.mean):
        return arm
    return replace(arm, sensitivity=fmean(p.loss.mean - best.best.loss.mean for p in arm.points))


def _quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high


def _difference(best: Arm, other: Arm) -> Interval:
    """By how much the other is worse, over the seeds that both have."""
    ours, theirs = best.best.losses, other.best.losses
    common = [seed for seed in ours if seed in theirs]
    if math.isinf(other.best.loss.mean):
        return Interval(math.inf, None, len(common))
    if not common:
        return Interval(other.best.loss.mean - best.best.loss.mean, None, 0)
    return interval([theirs[seed] - ours[seed] for seed in common])


def _recommend(
    best: Arm, rivals: list[Arm], behind: dict[str, Interval], all_ties: Sequence[str], unit: str
) -> str:
    """One sentence with its uncertainty."""
    loss = best.best.loss
    if not best.learnt:
        return "No arm has learnt anything: try smaller learning rates, more steps, or a warm-up."
    seeds = f"95 % over {loss.seeds} seeds" if loss.half is not None else "one seed, so no interval"
    choice = ", ".join(f"{name}={value}" for name, value in best.values.items())
    text = f"Use {choice}, lr={best.best.lr:.3g}: held-out loss {loss} {unit} ({seeds})"
    if not rivals:
        return text + "; there was nothing to compare it with."
    nearest = rivals[0]
    if loss.half is None:
        return (
            f"{text}; next is {nearest.label}, {behind[nearest.label]} behind, which one seed cannot judge."
        )
    ties = [arm.label for arm in rivals if arm.label in all_ties]
    if len(ties) == len(rivals):
        others = "the other" if len(rivals) == 1 else f"any of the other {len(rivals)}"
        return f"{text}. The seeds do not separate it from {others}: a tie."
    beaten = next(arm for arm in rivals if arm.label not in ties)
    lag = behind[beaten.label]
    gap = f"{beaten.label} {'diverged' if math.isinf(lag.mean) else f'is behind by {lag}'}"
    if not ties:
        return f"{text}; it beats every other arm that was trained, and the nearest, {gap}."
    tied = ties[0] if len(ties) == 1 else ", ".join(ties[:-1]) + " and " + ties[-1]
    return f"{text}. The seeds do not separate it from {tied}: a tie. Of the rest, {gap}."


def _warn(arms: list[Arm], results: Sequence[Result], lost: list[str]) -> list[str]:
    """What weakens the answer."""
    said = []
    if lost:
        said.append(f"All runs of {', '.join(lost)} failed: nothing is said about them.")
    failures = sum(o.status == "failed" for _, o in results)
    if failures:
        said.append(f"{failures} runs failed and are left out; the table says why.")
    edges = [(arm.label, arm.at_edge) for arm in arms if arm.at_edge and arm.learnt and not arm.pruned]
    for side in ("largest", "smallest"):
        names = [label for label, edge in edges if edge == side]
        if names:
            said.append(
                f"The best learning rate of {', '.join(names)} is the {side} that was tried: widen the range."
            )
    if any(len(p.losses) < 3 for p in arms[0].points):
        said.append("Fewer than three seeds: intervals are missing or very wide.")
    return said

"""From rows to an answer: arms from the best to the worst, and what is to be said of them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from normkit.lab.advice import EDGES, wider
from normkit.lab.answer import Answer, answer
from normkit.lab.arms import Arm, Point, Result, build_arm, label_of, labels_of
from normkit.lab.intervals import Interval, as_loss, interval
from normkit.lab.measuring import Outcome
from normkit.lab.run import Run

__all__ = ["Arm", "Interval", "Point", "Summary", "interval", "row", "summarise"]


@dataclass(frozen=True)
class Summary:
    """Arms from the best to the worst, those that cannot win last; one answer a problem. ``failed`` are the
    labels of those of which no run has ended."""

    arms: tuple[Arm, ...]
    answers: tuple[Answer, ...]
    problems: tuple[str, ...]
    warnings: tuple[str, ...] = field(default=())
    failed: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """Of several problems the one that says least."""
        states = [a.state for a in self.answers]
        return next(state for state in ("none", "tie", "recommendation") if state in states)

    @property
    def why(self) -> str:
        texts = [a.why for a in self.answers]
        if len(texts) == 1:
            return texts[0]
        names = ", ".join(self.problems)
        return (
            f"{len(texts)} different problems ({names}): losses are compared within each. {' '.join(texts)}"
        )

    @property
    def behind(self) -> dict[str, Interval]:
        return {label: gap for a in self.answers for label, gap in a.behind.items()}

    @property
    def ties(self) -> tuple[str, ...]:
        return tuple(label for a in self.answers for label in a.ties)

    def closeness(self, label: str) -> str:
        """Of an arm that the seeds do not separate from the best: "tie" if that is the answer, or "close"."""
        states = (a.state for a in self.answers if label in a.ties)
        return {None: "", "tie": "tie"}.get(next(states, None), "close")

    @property
    def baselines(self) -> dict[str, float]:
        """Of all arms, where they have the same problem."""
        return _baselines(self.arms) if len({arm.problem for arm in self.arms}) == 1 else {}

    @property
    def plateau(self) -> float | None:
        return max(self.baselines.values(), default=None)


def _baselines(every: Sequence[Arm]) -> dict[str, float]:
    """The mean over the arms of one problem, of those that have all seeds if there are any."""
    arms = [arm for arm in every if not arm.pruned] or every
    names = [name for arm in arms[:1] for name in arm.baselines]
    return {n: fmean(arm.baselines[n] for arm in arms if n in arm.baselines) for n in names}


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
        "validation_loss": outcome.chosen_by,
        "best_loss": outcome.best_loss,
        "final_loss": outcome.final_loss,
        "plateau": outcome.plateau,
        "leak": outcome.leak,
        "steps_done": outcome.steps,
        "step_ms": outcome.step_ms,
        "units_per_second": outcome.units_per_second,
        "peak_mb": outcome.peak_mb,
        "parameters": outcome.parameters,
        "seconds": outcome.seconds,
        "error_text": outcome.error,
    }
    extra = {f"baseline_{name}": loss for name, loss in outcome.baselines.items()}
    for name, value in {**extra, **outcome.metrics}.items():
        name = name.replace(" ", "_")
        found[f"metric_{name}" if name in found else name] = value
    return found


def summarise(
    results: Sequence[Result], varied: Sequence[str], loss_name: str = "loss", problem: Sequence[str] = ()
) -> Summary | None:
    """The answer, or None where no run has ended.

    The learning rate of an arm is chosen by validation, the mean over seeds; arms are judged on other data,
    seed by seed, and compared only with those that solve the same problem.

    Args:
        results: the runs.
        varied: what differs between them.
        problem: fields that make it another problem.
    """
    full = [(run, o) for run, o in results if o.status != "failed" and o.error is None]
    if not full:
        return None
    halved = any(run.until is not None for run, _ in full)  # then learning rates are missing
    groups: dict[str, list[Result]] = defaultdict(list)
    labels = labels_of([run for run, _ in results], varied)
    for run, outcome in full:
        groups[labels[label_of(run, varied)]].append((run, outcome))
    fields = [name for name in problem if name in varied]
    arms = [build_arm(label, members, varied, fields, halved) for label, members in groups.items()]
    seeds = [set(arm.best.losses) for arm in arms if not arm.pruned]
    common = set.intersection(*seeds) if seeds else set()

    def rank(arm: Arm) -> tuple[int, float]:
        fair = common and not arm.pruned
        losses = [loss for seed, loss in arm.best.losses.items() if seed in common or not fair]
        return _ORDER.index(arm.ending), interval(losses).mean

    problems = {
        which: sorted((arm for arm in arms if arm.problem == which), key=rank)
        for which in dict.fromkeys(arm.problem for arm in arms)
    }
    answers = tuple(answer(members, loss_name) for members in problems.values())
    for members, found in zip(problems.values(), answers, strict=True):
        members.sort(key=lambda arm: _place(arm, found))
    ranked = [_sensitive(arm, members[0], halved) for members in problems.values() for arm in members]
    lost = sorted(set(labels.values()) - set(groups))
    warnings = _warn(ranked, results, lost, answers)
    return Summary(tuple(ranked), answers, tuple(fields), tuple(warnings), tuple(lost))


_ORDER = ("ok", "at baseline", "diverged", "leaks", "stopped")


def _place(arm: Arm, found: Answer) -> tuple[int, float]:
    """Those that can win by their distance from the best, which has none."""
    gap = found.behind.get(arm.label)
    return _ORDER.index(arm.ending), gap.mean if gap is not None else -math.inf if arm.can_win else 0.0


def _sensitive(arm: Arm, best: Arm, halved: bool) -> Arm:
    """With the mean distance over learning rates from the best loss of all arms."""
    if halved or arm.plateau is None or math.isinf(best.best.loss.mean):
        return arm
    clipped = [min(p.loss.mean, arm.plateau) for p in arm.points]
    return replace(arm, sensitivity=fmean(clipped) - best.best.loss.mean)


def _warn(
    arms: list[Arm], results: Sequence[Result], lost: list[str], answers: Sequence[Answer]
) -> list[str]:
    """What weakens the answer."""
    able = [arm.label for arm in arms if arm.can_win]
    leading = {*able[:1], *(label for a in answers for label in a.ties)}
    said = []
    if lost:
        said.append(f"All runs of {', '.join(lost)} failed: nothing is said about them.")
    failures = sum(o.status == "failed" for _, o in results)
    if failures:
        said.append(f"{failures} runs failed and are left out; their tracebacks are below.")
    for best in {arm.problem: arm for arm in reversed(arms) if arm.can_win}.values():
        known = _baselines([arm for arm in arms if arm.problem == best.problem])
        name, loss = min(known.items(), key=lambda pair: pair[1], default=("", math.inf))
        if loss < best.best.loss.mean:
            ours = f"{best.label}, {as_loss(best.best.loss.mean)}"
            said.append(f"What is simpler is still better: {name}, {as_loss(loss)}; {ours}.")
    sides = {side: [a.label for a in arms if a.at_edge == side and a.label in leading] for side in EDGES}
    if any(sides.values()):
        where = ", and ".join(f"that of {', '.join(at)} is the {side}" for side, at in sides.items() if at)
        rates = wider(arms, *(side for side, at in sides.items() if at))
        said.append(
            f"The best learning rate{where.removeprefix('that')} that was tried. To go further and keep what "
            f"is done: --lr {rates}"
        )
    if any(arm.floor is None for arm in arms):
        said.append(
            "No baseline is known, so nobody says whether anything was learnt: give the task baselines()."
        )
    if any(len(parts) < 2 for arm in arms if not arm.pruned for parts in arm.best.parts.values() if parts):
        said.append("One row judges: nobody knows how much is chance. held_out() of the task can give more.")
    if any(len(p.losses) < 3 for p in arms[0].points):
        said.append("Fewer than three seeds: intervals are missing or very wide.")
    return said

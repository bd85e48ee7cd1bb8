"""The answer to a comparison: a recommendation, a tie, or none with the reason, and what would get one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from normkit.lab import own
from normkit.lab.advice import around, last_step, slope_of, steps_to, wider
from normkit.lab.arms import Arm, difference
from normkit.lab.intervals import Interval, as_loss

__all__ = ["STATES", "Answer", "answer"]

STATES = ("recommendation", "tie", "none")
EQUAL, OF_LOSS = 0.05, 0.2  # of what was learnt, of the loss: a difference that surely is smaller is none
MOST_SEEDS = 64
CLEARLY = 0.01  # of the loss, an e-fold of the steps: what falls less may be noise


@dataclass(frozen=True)
class Answer:
    """For the arms of one problem.

    state     "recommendation", "tie" or "none"
    winner    the arm that beats all others, or None
    choice    the arm to take: the winner, or the simplest and cheapest of a tie; None without an answer
    why       one sentence or two, with numbers
    change    what would get an answer: settings with their values
    behind    how much each arm that can win loses to the best, over the same seeds
    ties      the arms that are not separated from the best
    open      the best, and those of which more seeds would tell whether they are worse or equal
    """

    state: str
    why: str
    winner: Arm | None = None
    choice: Arm | None = None
    change: Mapping[str, Any] = field(default_factory=dict)
    behind: Mapping[str, Interval] = field(default_factory=dict)
    ties: tuple[str, ...] = ()
    open: tuple[str, ...] = ()


def answer(arms: Sequence[Arm], unit: str = "loss") -> Answer:
    """``arms`` of one problem, from the best to the worst."""
    able = [arm for arm in arms if arm.can_win]
    if not able:
        return _nothing(arms, unit)
    best, rivals = _first(able)
    behind = {arm.label: difference(best, arm) for arm in rivals}
    barred = _barred(arms) + _dropped(arms)
    doubt, change, near = _doubt(best, arms)
    if doubt:
        return Answer("none", f"No answer yet: {doubt}{barred}", change=change, behind=behind, open=near)
    if best.best.loss.half is None and not rivals:
        why = f"No answer yet: {best.label} has {_loss(best, unit)}.{barred}"
        return Answer("none", why, change={"seeds": 3}, behind=behind, open=(best.label,))
    if not rivals:
        rest = "there was nothing to compare it with" if len(arms) == 1 else "no other arm can be the answer"
        why = f"Use {_choice(best)}: {_loss(best, unit)}; {rest}.{barred}"
        return Answer("recommendation", why, best, best, behind=behind)
    if any(gap.half is None for gap in behind.values()):
        nearest = rivals[0]
        why = (
            f"No answer yet: {best.label} is ahead with {_loss(best, unit)}, and {nearest.label} is behind "
            f"by {as_loss(behind[nearest.label].mean)}, which one seed cannot judge.{barred}"
        )
        return Answer("none", why, change={"seeds": 3}, behind=behind, open=(best.label, *behind))
    close = [arm for arm in rivals if behind[arm.label].includes_zero]
    if not close:
        gap = behind[rivals[0].label]
        why = (
            f"Use {_choice(best)}: {_loss(best, unit)}. It beats every other arm; the nearest, "
            f"{rivals[0].label}, is behind by {gap}.{barred}"
        )
        return Answer("recommendation", why, best, best, behind=behind)
    ties = tuple(arm.label for arm in close)
    margin = _margin(best)
    open_ = [arm for arm in close if _reach(behind[arm.label]) > margin]
    if open_:
        text, change = _undecided(best, open_, behind, margin, unit)
        labels = (best.label, *(arm.label for arm in open_)) if "seeds" in change else ()
        return Answer("none", f"{text}{barred}", change=change, behind=behind, ties=ties, open=labels)
    group = [best, *close]
    choice = min(group, key=_cost)
    names = ", ".join(arm.label for arm in group[:-1]) + f" and {group[-1].label}"
    beaten = [arm for arm in rivals if arm not in close]
    lead = f" They beat {beaten[0].label} by {behind[beaten[0].label]}." if beaten else ""
    why = (
        f"A tie: {names} differ by less than {margin:.2g} {unit}, and any of them will do. Take the simplest "
        f"and cheapest, {_choice(choice)}: {_loss(choice, unit)}.{lead}{barred}"
    )
    return Answer("tie", why, None, choice, behind=behind, ties=ties)


def _first(able: list[Arm]) -> tuple[Arm, list[Arm]]:
    """The arm that no other is ahead of, over the seeds that both have, and the others."""
    best = able[0]
    for _ in able:
        ahead = {arm.label: difference(best, arm).mean for arm in able if arm is not best}
        leader = min(able, key=lambda arm: ahead.get(arm.label, 0.0))
        if leader is best:
            break
        best = leader
    others = [arm for arm in able if arm is not best]
    return best, sorted(others, key=lambda arm: difference(best, arm).mean)


def _doubt(best: Arm, arms: Sequence[Arm]) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """Has even the best surely learnt more than a baseline, and surely more than those that have not? If not:
    why, what would tell, and the arms of which more seeds would."""
    below, name = best.best.below, _named(_floor_name(best))
    longer = {"steps": steps_to(best, best.floor or 0.0) or 2 * last_step(best)}
    if below is not None and below.half is not None and below.includes_zero:
        why = f"{best.label} is below {name} by {below}, which the seeds do not support: it may be at it."
        return why, longer, ()
    gaps = {arm.label: difference(best, arm) for arm in arms if arm.ending == "at baseline"}
    gaps = {label: gap for label, gap in gaps.items() if gap.includes_zero}
    if not gaps:
        return "", {}, ()
    label, gap = next(iter(gaps.items()))
    why = (
        f"{best.label} is below {name}, but {label}, which is not, is behind it by {gap}: the seeds do not "
        "tell them apart."
    )
    needed = [gap.seeds_for(abs(gap.mean), MOST_SEEDS) for gap in gaps.values()]
    known = [seeds for seeds in needed if seeds is not None]
    if len(known) < len(needed):  # as good as equal: one of them must learn more
        return why, {"steps": max(longer["steps"], 2 * last_step(best))}, ()
    return f"{why} About {max(known)} seeds should.", {"seeds": max(known)}, (best.label, *gaps)


def _floor_name(arm: Arm) -> str:
    """Of the best baseline that must be beaten."""
    return _baseline_at(arm, arm.floor if arm.floor is not None else math.inf)


def _baseline_at(arm: Arm, loss: float) -> str:
    return min(arm.baselines, key=lambda n: abs(arm.baselines[n] - loss), default="the baseline")


def _undecided(
    best: Arm, open_: Sequence[Arm], behind: Mapping[str, Interval], margin: float, unit: str
) -> tuple[str, dict[str, Any]]:
    """The seeds neither separate the arms nor show that they are equal: how many would."""
    gaps = [behind[arm.label] for arm in open_]
    needed = [gap.seeds_for(max(abs(gap.mean), margin - abs(gap.mean)), MOST_SEEDS) for gap in gaps]
    more = f", and {len(open_) - 1} more are as close" if len(open_) > 1 else ""
    text = (
        f"No answer yet: {best.label} ({_loss(best, unit)}) is ahead of {open_[0].label} by {gaps[0]}{more}: "
        "neither a difference nor a tie."
    )
    known = [seeds for seeds in needed if seeds is not None]
    if len(known) < len(needed):
        return f"{text} Not even {MOST_SEEDS} seeds would tell: longer runs may.", {
            "steps": 3 * last_step(best)
        }
    return f"{text} About {max(known)} seeds should tell.", {"seeds": max(known)}


def _nothing(arms: Sequence[Arm], unit: str) -> Answer:
    """No arm can be the answer: why, and what to change."""
    tried = [arm for arm in arms if not arm.pruned]
    honest = [arm for arm in tried if arm.ending != "leaks"]
    barred = _barred(arms)
    if not honest and not barred and arms and all(p.diverged for arm in arms for p in arm.points):
        honest = list(arms)  # none of them went on
    if not honest:
        if not barred:
            return Answer("none", "No answer yet: no run has been trained to its end.")
        return Answer("none", f"No answer:{barred}", change={"norm": "layer,rms"})
    if all(arm.ending == "diverged" or arm.pruned for arm in honest):
        least = min(rate for arm in honest for rate in arm.tried)
        why = f"No answer: every arm diverged, at learning rates from {least:.2g} on."
        return Answer("none", why + barred, change={"lr": wider(honest, "smallest")})
    best = min((a for a in honest if a.ending != "diverged"), key=lambda a: a.best.loss.mean)
    floor = best.floor if best.floor is not None else math.inf
    name = _floor_name(best)
    steps = steps_to(best, floor)
    nothing = best.plateau is not None and best.best.loss.mean > best.plateau - 0.01 * abs(best.plateau)
    end, bar = _measured(best.best.loss, unit), _measured(as_loss(floor), unit)
    if nothing:
        text = (
            f"Nothing learnt anything: the best, {best.label}, ends at {end}, and {_named(name)} gets {bar}."
        )
    else:
        text = (
            f"No answer yet: no arm has learnt more than {_named(name)}, which gets {bar}; the best, "
            f"{best.label}, ends at {end}. The order says who starts fastest, and no more."
        )
    if steps is not None and nothing and best.best.loss.mean < 1.05 * abs(best.plateau or 0.0):
        worst = best.plateau or 0.0  # the bytes, where the bar is their pairs
        there = "that" if worst == best.floor else f"{_named(_baseline_at(best, worst))}, {as_loss(worst)}"
        text += f" Its curve has come down to {there}, and still falls a little: three times the steps"
        text += f" would show whether it goes below.{barred}"
        return Answer("none", text, change={"steps": 3 * last_step(best)})
    if steps is not None:
        text += f" Its curve should be below after about {steps:,} steps."
        return Answer("none", text + barred, change={"steps": steps})
    edge = best.at_edge
    if edge is not None and not (nothing and edge == "smallest"):  # then not to learn is the best
        text += f" Its best learning rate is the {edge} that was tried."
        return Answer("none", text + barred, change={"lr": wider([best], edge)})
    if slope_of(best) > CLEARLY * abs(best.best.loss.mean):
        text += (
            " Its curve still falls, but this early nobody can say how far: five times the steps would show."
        )
        return Answer("none", text + barred, change={"steps": 5 * last_step(best)})
    if len(best.tried) == 1:
        text += " Its curve is flat at the one learning rate that was tried: others may do better."
        return Answer("none", text + barred, change={"lr": around(best.tried[0])})
    text += (
        " Its curve is flat, at every learning rate: look whether the data hold what is asked for, then at "
        "the size of the model."
    )
    return Answer("none", text + barred)


def _named(baseline: str) -> str:
    words = {"unigram": "a table of bytes", "bigram": "a table of pairs of bytes"}
    return words.get(baseline, baseline)


def _barred(arms: Sequence[Arm]) -> str:
    """Of arms that cannot be the answer, whatever their loss."""
    leaks = [arm.label for arm in arms if arm.ending == "leaks"]
    if not leaks:
        return ""
    verb = "sees" if len(leaks) == 1 else "see"
    return (
        f" {', '.join(leaks)} {verb} the future (earlier outputs change if a later token does, "
        "as with BatchNorm's mean over all positions): refused as the answer."
    )


def _dropped(arms: Sequence[Arm]) -> str:
    """Of arms that nobody knows the loss of: a short run is no proof."""
    count = sum(arm.ending == "stopped" for arm in arms)
    if not count:
        return ""
    return f" {count} {'arm' if count == 1 else 'arms'} went no further than short runs with one seed."


def _margin(best: Arm) -> float:
    """What is no difference: a share of what the best has learnt beyond the worst baseline, and no large part
    of its loss, which may be a thousandth of that."""
    loss = best.best.loss.mean
    learnt = abs(best.plateau - loss) if best.plateau is not None else abs(loss)
    return min(EQUAL * learnt, OF_LOSS * abs(loss) or math.inf)


def _reach(gap: Interval) -> float:
    return abs(gap.mean) + (gap.half or 0.0)


def _cost(arm: Arm) -> tuple[float, float]:
    """Fewer weights, then less time; a percent of either is none."""
    return round(arm.parameters, -2), arm.step_ms


def _choice(arm: Arm) -> str:
    hashed = own.HASH in arm.label  # then the names alone do not tell them apart
    values = {n: own.short_name(v) if isinstance(v, str) and not hashed else v for n, v in arm.values.items()}
    return ", ".join([*(f"{name}={value}" for name, value in values.items()), f"lr={arm.best.lr:.3g}"])


def _loss(arm: Arm, unit: str) -> str:
    loss = arm.best.loss
    seeds = f"95 % over {loss.seeds} seeds" if loss.half is not None else "one seed, so no interval"
    return f"held-out loss {_measured(loss, unit)}, {seeds}"


def _measured(loss: object, unit: str) -> str:
    """With its unit, where it has one."""
    return f"{loss}" if unit == "loss" else f"{loss} {unit}"

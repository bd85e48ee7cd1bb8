"""The one timer: all candidates take turns in one process, so that noise meets them all alike."""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from statistics import quantiles
from time import perf_counter

from normkit.bench.stopwatch import Turn, host_turn

__all__ = ["Budget", "Timing", "measure"]

TURN = 1.5e-3  # seconds: a call that is shorter is repeated until its turn takes this long
SETTLE = 1e-3  # seconds of calls before the clock starts: caches and threads are as after many of them
# torch's threads spin for 10 ms after their work, on cores that a pool of another kind needs.
SETTLE_FOREIGN = 10e-3
LONG = 3e-3  # a call this long need not settle


@dataclass(frozen=True)
class Budget:
    """How long one cell may take, within a number of rounds."""

    seconds: float
    fewest: int
    most: int


@dataclass(frozen=True)
class Timing:
    """Seconds for one call: the low quartile, the median, and the width of the middle half over the first."""

    low: float
    median: float
    spread: float
    rounds: int


def measure(
    candidates: dict[str, Callable[[], object]],
    budget: Budget,
    foreign: Collection[str] = (),
    turn: Turn = host_turn,
) -> dict[str, Timing]:
    """Time every candidate in rounds; in each round they take one turn each, in an order drawn anew.

    Those in ``foreign`` have a thread pool of their own, not torch's. ``turn`` is how the device times one.
    """
    estimates = {name: _estimate(call, turn) for name, call in candidates.items()}
    repeats = {name: max(1, math.ceil(TURN / once)) for name, once in estimates.items()}
    settle = {n: SETTLE_FOREIGN if n in foreign else SETTLE if t < LONG else 0 for n, t in estimates.items()}
    if turn is not host_turn:
        settle = dict.fromkeys(settle, 0.0)  # a device has no threads to wake
    one_round = sum(repeats[n] * t + settle[n] for n, t in estimates.items())
    rounds = min(budget.most, max(budget.fewest, int(budget.seconds / one_round)))
    order, draw = list(candidates), random.Random(0)
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            draw.shuffle(order)
            for name in order:
                _settle(candidates[name], settle[name])
                samples[name].append(turn(candidates[name], repeats[name]))
    finally:
        gc.enable()
    return {name: _summary(values) for name, values in samples.items()}


def _estimate(call: Callable[[], object], turn: Turn) -> float:
    """Warm up, then one call; the shortest of several where they cost nothing."""
    call()
    once = turn(call, 1)
    return max(1e-7, once if once > LONG else min(once, *(turn(call, 1) for _ in range(5))))


def _settle(call: Callable[[], object], seconds: float) -> None:
    end = perf_counter() + seconds
    while perf_counter() < end:
        call()


def _summary(values: list[float]) -> Timing:
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return Timing(low, middle, (high - low) / low, len(values))

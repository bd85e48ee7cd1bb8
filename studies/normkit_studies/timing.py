"""How long calls take, next to each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter
from typing import Any

__all__ = ["take_turns"]

WARM_UP = 2  # turns that do not count


def take_turns(calls: Mapping[str, Callable[[], Any]], turns: int) -> dict[str, float]:
    """Seconds of each, taking turns: the median of its faster half, for others on the machine can only ever
    make a call longer."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(WARM_UP + turns):
        for name, call in calls.items():
            start = perf_counter()
            call()
            if turn >= WARM_UP:
                times[name].append(perf_counter() - start)
    return {name: median(sorted(values)[: max(1, turns // 2)]) for name, values in times.items()}

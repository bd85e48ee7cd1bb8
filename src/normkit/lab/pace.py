"""How long it will still take, by what has been done so far."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Mapping

__all__ = ["Pace"]

LEAST = 3.0  # seconds of a worker before anything is said
WINDOW = 30.0  # seconds: a machine's load changes, and what was a minute ago says little


class Pace:
    """Work is counted in the seconds that it was expected to take; the pace says how long those are.

    A run that ends early has done less than its work, and so, it is expected, will its like with other seeds.

    Args:
        work: of every run that is to be done, by key.
        like: what runs have in common that end alike.
        later: work that comes after these runs.
        workers: how many runs go on at a time.
    """

    def __init__(
        self,
        work: Mapping[str, float],
        like: Mapping[str, Hashable],
        *,
        workers: int = 1,
        later: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.work, self.like, self.later, self.clock = dict(work), dict(like), later, clock
        self.workers = max(1, workers)
        self.share = dict.fromkeys(self.work, 0.0)
        self.ended: set[str] = set()
        self.early: dict[Hashable, list[float]] = defaultdict(list)
        # When, how many seconds workers had been busy until then, and the work that was done.
        self.seen: deque[tuple[float, float, float]] = deque()

    def advance(self, key: str, share: float) -> None:
        """So much of a run is done."""
        if key in self.work and key not in self.ended:
            self.share[key] = share
            self._note()

    def finish(self, key: str, share: float) -> None:
        """A run has ended, after that share of it."""
        if key in self.work and key not in self.ended:
            self.share[key] = share
            self.ended.add(key)
            self.early[self.like[key]].append(share)
            self._note()

    def _note(self) -> None:
        now = self.clock()
        when, busy, _ = self.seen[-1] if self.seen else (now, 0.0, 0.0)
        going = min(self.workers, len(self.work) - len(self.ended) or 1)
        self.seen.append((now, busy + (now - when) * going, self.done))
        while len(self.seen) > 2 and self.seen[1][0] < now - WINDOW:
            self.seen.popleft()

    @property
    def done(self) -> float:
        return sum(self.work[key] * share for key, share in self.share.items() if share)

    def rest(self, key: str) -> float:
        """The work that is left of a run."""
        if key in self.ended:
            return 0.0
        known = self.early[self.like[key]]
        whole = sum(known) / len(known) if known else 1.0
        return self.work[key] * max(0.0, whole - self.share[key])

    def left(self) -> float:
        """Seconds, until all of it is done."""
        rests = [self.rest(key) for key in self.work]
        slowness = self.slowness
        # The last runs have no others beside them.
        return max((sum(rests) + self.later) / self.workers, max(rests, default=0.0)) * slowness

    @property
    def slowness(self) -> float:
        """How many seconds of a worker pass for a second of work."""
        if len(self.seen) < 2:
            return 1.0
        (_, busy, before), (_, since, after) = self.seen[0], self.seen[-1]
        if since - busy < LEAST or after <= before:
            return 1.0  # too little to say
        return (since - busy) / (after - before)

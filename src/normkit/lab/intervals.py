"""A mean and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

__all__ = ["Interval", "as_loss", "interval", "share_interval"]

CONFIDENCE = 0.95
BEYOND = 1e150  # a loss from here on is as good as infinite: its square would be


@dataclass(frozen=True)
class Interval:
    """A mean, and the half-width of its confidence interval over seeds; None for a single seed. Beside them
    the variance between seeds, and what the choice of the held-out data adds to that of the mean.

    The mean is infinite if one of the values is: a run that diverged, where no baseline is known.
    """

    mean: float
    half: float | None
    seeds: int
    variance: float = 0.0
    sampling: float = 0.0

    def seeds_for(self, half: float, most: int = 64) -> int | None:
        """How many seeds would give that half-width, if they scatter as these do; None: more than ``most``.
        No number of seeds makes the sampling error of the held-out data smaller.

        Example:
            >>> interval([0.0, 0.2, 0.1]).seeds_for(half=0.1)
            7
        """
        for count in range(self.seeds + 1, most + 1):
            if _quantile(count) * math.sqrt(self.variance / count + self.sampling) <= half:
                return count
        return None

    @property
    def includes_zero(self) -> bool:
        return self.half is not None and abs(self.mean) <= self.half

    def __str__(self) -> str:
        if math.isinf(self.mean):
            return "diverged"
        form = _form(self.mean)
        return f"{self.mean:{form}}" + ("" if self.half is None else f" ± {self.half:{form}}")


def interval(values: Sequence[float], sampling: float = 0.0, confidence: float = CONFIDENCE) -> Interval:
    """Student's, two-sided. ``sampling``: the variance of the mean that the held-out data add, by chance.

    Example:
        >>> print(interval([1.0, 2.0, 3.0]))
        2.000 ± 2.484
    """
    if not all(abs(value) < BEYOND for value in values):
        return Interval(math.inf, None, len(values))
    if len(values) < 2:
        return Interval(fmean(values), None, len(values))
    spread = variance(values)
    half = _quantile(len(values), confidence) * math.sqrt(spread / len(values) + sampling)
    return Interval(fmean(values), half, len(values), spread, sampling)


def as_loss(value: float) -> str:
    """For a reader.

    Example:
        >>> as_loss(1.8612), as_loss(0.00617)
        ('1.861', '0.0062')
    """
    return f"{value:{_form(value)}}"


def _form(value: float) -> str:
    return ".3f" if value == 0 or 0.01 <= abs(value) < 10_000 else ".2g"


def share_interval(hits: int, count: int) -> tuple[float, float]:
    """Clopper and Pearson's, of a share of seeds.

    Example:
        >>> low, high = share_interval(8, 8)
        >>> round(low, 2), high
        (0.63, 1.0)
    """
    from scipy.special import betaincinv

    tail = (1 - CONFIDENCE) / 2
    low = float(betaincinv(hits, count - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, count - hits, 1 - tail)) if hits < count else 1.0
    return low, high


def _quantile(count: int, confidence: float = CONFIDENCE) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, (1 + confidence) / 2))

"""Rules that decide a study: bounds for an effect, written down before the run. All of it is data."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from normkit.errors import NormkitError, user_error
from normkit.lab.intervals import interval, share_interval

__all__ = [
    "INCONCLUSIVE",
    "LEAST_SEEDS",
    "Effect",
    "Rows",
    "Rule",
    "Ruling",
    "by_chance",
    "estimate",
    "number",
    "slope",
]

LEAST_SEEDS = 3
SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE = "supported", "not supported", "inconclusive"
LARGEST = 700.0  # a logarithm beyond it is that of no float
EQUIVALENCE = 0.90  # the interval that two one-sided tests at 5 % ask for


class Rows(list[dict[str, Any]]):
    """The rows of one seed, for a rule to read.

    Args:
        rows: of the seed.
        every: of all seeds: by them a learning rate is chosen.
        without: the part of the held-out data to leave out.
        replaced: what is said of losses that are no numbers; it is added to.
        whole: the names of numbers that have no parts to leave out; it is added to.
    """

    def __init__(
        self,
        rows: Iterable[dict[str, Any]],
        every: Sequence[dict[str, Any]] | None = None,
        *,
        without: int | None = None,
        replaced: set[str] | None = None,
        whole: set[str] | None = None,
    ) -> None:
        super().__init__(rows)
        self.every = self if every is None else every
        self.without = without
        self.replaced = set() if replaced is None else replaced
        self.whole = set() if whole is None else whole

    def where(self, **wanted: Any) -> Rows:
        found = (row for row in self if _has(row, wanted))
        return Rows(found, self.every, without=self.without, replaced=self.replaced, whole=self.whole)

    def get(self, name: str, **wanted: Any) -> float:
        """The one value of a metric that these settings have. The loss of a run that diverged is its worst
        baseline, and the ruling says so."""
        found = [row for row in self.where(**wanted) if row.get(name) is not None or _diverged(row, name)]
        if len(found) != 1:
            raise user_error(f"{name} for {wanted} has {len(found)} values.", expected="one")
        return self._value(found[0], name)

    def best(self, name: str, **arm: Any) -> float:
        """The same at the learning rate that validation chose."""
        return self.get(name, lr=self.best_rate(**arm), **arm)

    def best_rate(self, **arm: Any) -> float:
        """The learning rate with the lowest validation loss, as the mean over all seeds."""
        rates: dict[float, list[float]] = defaultdict(list)
        for row in self.every:
            if _has(row, arm):
                rates[row["lr"]].append(row.get("validation_loss", row.get("plateau", math.inf)))
        if not rates:
            raise user_error(f"{arm} has no row.", expected="one at least")
        return min(rates, key=lambda rate: fmean(rates[rate]))

    def column(self, name: str, **wanted: Any) -> list[float]:
        return [self._value(row, name) for row in self.where(**wanted) if row.get(name) is not None]

    def _value(self, row: Mapping[str, Any], name: str) -> float:
        parts = row.get("parts") if name == "loss" else None
        if not parts:
            self.whole.add(name)
        if _diverged(row, name):
            self.replaced.add(f"seed {row.get('seed')} at {row.get('lr'):g}")
            return float(row["plateau"])
        if self.without is not None and parts:
            rest = parts[: self.without] + parts[self.without + 1 :]
            return fmean(rest) * row["loss"] / fmean(parts)  # parts may be of unequal size
        return float(row[name])


class _Row(dict[str, Any]):
    """One that notes which of its baselines are read: they have no parts."""

    def __init__(self, row: Mapping[str, Any], whole: set[str]) -> None:
        super().__init__(row)
        self.whole = whole

    def __getitem__(self, name: str) -> Any:
        if name.startswith("baseline_"):
            self.whole.add(name)
        return super().__getitem__(name)


def _has(row: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(row.get(name) == value for name, value in wanted.items())


def _diverged(row: Mapping[str, Any], name: str) -> bool:
    return name == "loss" and row.get("status") == "diverged" and row.get("plateau") is not None


@dataclass(frozen=True)
class Rule:
    """Bounds for an effect, written down before the run. Every seed gives the effect once.

    One bound: supported if the 95 % interval of the effect lies within, not supported if all of it lies
    beyond, else inconclusive. Two bounds say that there is no difference that matters: supported if two
    one-sided tests at 5 % say so, which is a 90 % interval between them.

    The interval is that over seeds. Where these divide the data anew, most of the sampling error of the
    held-out data is thereby in it; what their common source adds is at most that of all that was held out
    together. Where they all have the same, it is added whole.

    Args:
        yes, no: what follows for a reader, with ``{effect}`` for what was measured and ``{less}`` for the
            same with the other sign; a rule without them is no finding of its own.
        log: the effect is a ratio: its mean is the geometric one, its interval that of the logarithm.
        count: the effect is yes or no, and the bounds are shares of the seeds.
        aside: measured beside the hypothesis; it decides a claim, but not the study.
    """

    name: str
    says: str
    effect: Callable[[Rows], float]
    above: float | None = None
    below: float | None = None
    unit: str = ""
    log: bool = False
    count: bool = False
    aside: bool = False
    yes: str = ""
    no: str = ""

    @property
    def is_equivalence(self) -> bool:
        return self.above is not None and self.below is not None and not self.count

    @property
    def bound(self) -> str:
        above, below = self.above, self.below
        if self.count:
            above, below = (None if share is None else 100 * share for share in (above, below))
        parts = [
            f"> {above:g}" if above is not None else "",
            f"< {below:g}" if below is not None else "",
        ]
        unit = " % of seeds" if self.count else ""
        return " and ".join(part for part in parts if part) + unit

    def as_dict(self) -> dict[str, Any]:
        """What is stored beside the rows that it judges."""
        names = ("name", "says", "above", "below", "unit", "log", "count", "aside")
        return {name: getattr(self, name) for name in names}

    def judge(self, rows: Sequence[dict[str, Any]], *, divided: bool = True) -> Ruling:
        """One that these rows do not let it compute decides nothing, and says why.

        Args:
            divided: whether the seeds divide the data anew, or all hold out the same.
        """
        try:
            return self._judged(rows, divided)
        except (ArithmeticError, NormkitError) as error:
            none = Effect(math.nan)
            return Ruling(INCONCLUSIVE, none, none, [], self, problem=str(error).splitlines()[0])

    def _judged(self, rows: Sequence[dict[str, Any]], divided: bool) -> Ruling:
        replaced: set[str] = set()
        seeds = [
            Rows((r for r in rows if r["seed"] == seed), rows, replaced=replaced)
            for seed in sorted({row["seed"] for row in rows})
        ]
        values = [float(self.effect(own)) for own in seeds]
        if self.count:
            hits = sum(map(bool, values))
            effect = inner = Effect(hits / len(values), *share_interval(hits, len(values)), of=len(values))
        else:
            sampling = fmean(self._sampling(own) for own in seeds) / (len(seeds) if divided else 1)
            effect = estimate(values, log=self.log, sampling=sampling)
            inner = estimate(values, log=self.log, sampling=sampling, confidence=EQUIVALENCE)
        enough = len(values) >= LEAST_SEEDS
        verdict = self._verdict(effect, inner) if enough else INCONCLUSIVE
        return Ruling(verdict, effect, inner, values, self, tuple(sorted(replaced)))

    def _sampling(self, rows: Rows) -> float:
        """The variance of the effect that the choice of the held-out data adds: a jackknife over parts. None
        where a number of the effect has no parts: it was measured on the same data, and would not cancel."""
        count = min((len(row["parts"]) for row in rows if row.get("parts")), default=0)
        whole: set[str] = set()
        watched = [_Row(row, whole) for row in rows]
        found = [
            float(self.effect(Rows(watched, rows.every, without=part, whole=whole))) for part in range(count)
        ]
        if count < 2 or whole:
            return 0.0
        if self.log:
            found = _logarithms(found)
        mean = fmean(found)
        return (count - 1) / count * sum((value - mean) ** 2 for value in found)

    def _verdict(self, effect: Effect, inner: Effect) -> str:
        least = -math.inf if self.above is None else self.above
        most = math.inf if self.below is None else self.below
        decides = inner if self.is_equivalence else effect
        if effect.low is None or effect.high is None or decides.low is None or decides.high is None:
            return INCONCLUSIVE  # a value that is not finite has no interval
        if least < decides.low and decides.high < most:
            return SUPPORTED
        return NOT_SUPPORTED if effect.high <= least or effect.low >= most else INCONCLUSIVE


@dataclass(frozen=True)
class Effect:
    """A mean over seeds and its interval, which one seed alone does not have; or a count of seeds."""

    mean: float
    low: float | None = None
    high: float | None = None
    of: int | None = None

    def say(self, unit: str = "", digits: int = 3) -> str:
        """
        Example:
            >>> Effect(19.9, 11.7, 28.1).say("points")
            '19.9 points (11.7 to 28.1)'
            >>> Effect(0.875, 0.47, 1.0, of=8).say()
            '7 of 8 seeds'
        """
        if self.of is not None:
            return f"{round(self.mean * self.of)} of {self.of} seeds"
        text = f"{number(self.mean, digits)} {unit}".strip()
        if self.low is None or self.high is None:
            return text
        if self.low == self.high:
            return f"{text} (every seed)"
        mean, low, high = (number(value, digits) for value in (self.mean, self.low, self.high))
        return text if mean == low == high else f"{text} ({low} to {high})"

    def turned(self) -> Effect:
        """With the other sign."""
        low, high = (None if end is None else -end for end in (self.high, self.low))
        return Effect(-self.mean, low, high, self.of)


@dataclass(frozen=True)
class Ruling:
    """What a rule says on some rows. ``inner`` is the interval of two one-sided tests; ``replaced`` are the
    runs that diverged and count as the worst baseline; ``problem`` is why it could not be computed."""

    verdict: str
    effect: Effect
    inner: Effect
    values: list[float]
    rule: Rule
    replaced: tuple[str, ...] = ()
    problem: str = ""

    @property
    def said(self) -> str:
        """What was measured, with what one has to know to read it."""
        if self.problem:
            return f"cannot be computed: {self.problem}"
        text = self.effect.say(self.rule.unit)
        if self.rule.is_equivalence and self.inner.low != self.inner.high:
            text += f"; 90 %: {number(self.inner.low or 0)} to {number(self.inner.high or 0)}"
        if self.replaced:
            text += (
                f"; {len(self.replaced)} run{'s' * (len(self.replaced) > 1)} diverged and "
                f"count{'s' * (len(self.replaced) == 1)} as the worst baseline"
            )
        return text

    @property
    def finding(self) -> str:
        """What follows for a reader, in a sentence; nothing where the rule has none or does not decide."""
        text = {SUPPORTED: self.rule.yes, NOT_SUPPORTED: self.rule.no}.get(self.verdict, "")
        effect, less = (e.say(self.rule.unit, digits=2) for e in (self.effect, self.effect.turned()))
        return text.format(effect=effect, less=less)

    @property
    def answer(self) -> str:
        """The same, or that it is not decided, where the hypothesis hangs on it."""
        if self.verdict != INCONCLUSIVE or self.rule.aside or not (self.rule.yes or self.rule.no):
            return self.finding
        return (
            f"Not decided: “{self.rule.says}”, {self.problem or self.effect.say(self.rule.unit, digits=2)}."
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "mean": _or_none(self.effect.mean),
            "low": self.effect.low,
            "high": self.effect.high,
            "values": [_or_none(value) for value in self.values],
            "replaced": list(self.replaced),
        }


def estimate(
    values: Sequence[float], *, log: bool = False, sampling: float = 0.0, confidence: float = 0.95
) -> Effect:
    """Student's interval; for ratios that of their logarithm, of which ``sampling`` is then the variance."""
    found = interval(_logarithms(values) if log else values, sampling, confidence)
    back = math.exp if log else float
    if found.half is None or (log and abs(found.mean) + found.half > LARGEST):
        return Effect(back(found.mean))
    return Effect(back(found.mean), back(found.mean - found.half), back(found.mean + found.half))


def _logarithms(ratios: Sequence[float]) -> list[float]:
    if min(ratios) <= 0:
        raise user_error(f"a ratio got {min(ratios):g}.", expected="above 0")
    return [math.log(ratio) for ratio in ratios]


def _or_none(value: float) -> float | None:
    """JSON has no other numbers than finite ones."""
    return value if math.isfinite(value) else None


def number(value: float, digits: int = 3) -> str:
    """With so many significant digits; an integer as it is.

    Example:
        >>> number(0.12345), number(1234567.0), number(0.00012345)
        ('0.123', '1,200,000', '1.2e-04')
        >>> number(0.998, digits=2), number(18.0)
        ('1.0', '18')
    """
    if 1e4 <= abs(value) < 1e9:
        return f"{float(f'{value:.2g}'):,.0f}"
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        rounded = float(f"{value:.{digits}g}")
        if float(value).is_integer() or abs(rounded) >= 10 ** (digits - 1):
            return f"{rounded:,.0f}"
        return f"{rounded:#.{digits}g}"
    return f"{value:.1e}"


def by_chance(rules: Sequence[Rule]) -> float:
    """How many of them would be called supported by chance, if each true effect lay exactly at its bound: one
    in forty with one bound, one in twenty with two.

    Example:
        >>> rule = Rule("faster", "It is faster", lambda rows: rows.get("ratio"), below=1)
        >>> by_chance([rule] * 40)
        1.0
    """
    return math.fsum(0.05 if rule.is_equivalence else 0.025 for rule in rules)


def slope(x: Sequence[float], y: Sequence[float], *, log: bool = False) -> float:
    """Of a straight line through the points, by least squares; through their logarithms if asked.

    Example:
        >>> slope([1, 2, 4], [1, 4, 16], log=True)
        2.0
    """
    if log:
        x, y = ([math.log(value) for value in numbers] for numbers in (x, y))
    middle, mean = fmean(x), fmean(y)
    return sum((a - middle) * (b - mean) for a, b in zip(x, y, strict=True)) / sum(
        (a - middle) ** 2 for a in x
    )

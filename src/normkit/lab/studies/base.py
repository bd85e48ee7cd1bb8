"""A study: a question, what would refute its answer, a grid, and a rule that decides. All of it is data."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import product
from time import perf_counter
from typing import Any

from normkit import checks
from normkit.errors import user_error
from normkit.lab.analysis import interval, row
from normkit.lab.measuring import Outcome
from normkit.lab.plan import make_plan
from normkit.lab.run import Run, code_version

__all__ = [
    "Cell",
    "Effect",
    "Plot",
    "Rows",
    "Rule",
    "Ruling",
    "Study",
    "all_studies",
    "estimate",
    "find_study",
    "grid",
    "trained",
]

LEAST_SEEDS = 3
# Seeds below are for trying things out: no rule was written with a look at those that decide.
FIRST_SEED = 200
SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE = "supported", "not supported", "inconclusive"
PARTS = ("Question", "Hypothesis", "Method", "Refuted if")


@dataclass(frozen=True)
class Cell:
    """One measurement of a study that is not a training run: the settings, and a seed.

    ``run`` of the study's module does it: a pure function of both.
    """

    study: str
    settings: tuple[tuple[str, Any], ...]
    seed: int = 0

    last = 1  # for the progress: a cell is one step

    @property
    def code(self) -> str:
        return code_version()

    @property
    def label(self) -> str:
        return " ".join([self.study, *(str(value) for _, value in self.settings)])

    def __str__(self) -> str:
        named = [f"{name} {value}" for name, value in self.settings]
        return ", ".join([self.study, *named, f"seed {self.seed}"])

    def config(self) -> dict[str, Any]:
        return {"study": self.study, "settings": dict(self.settings), "seed": self.seed}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Cell:
        return cls(config["study"], tuple(config["settings"].items()), config["seed"])

    def key(self, data: str) -> str:
        text = json.dumps([self.config(), data, self.code, _source(_module(self.study))], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def perform(self) -> Outcome:
        start = perf_counter()
        measured = find_study(self.study).measure
        assert measured is not None
        metrics = measured({**dict(self.settings), "seed": self.seed})
        return Outcome("ok", metrics=metrics, seconds=perf_counter() - start)


class Rows(list[dict[str, Any]]):
    """The rows of one seed, for a rule to read."""

    def where(self, **wanted: Any) -> Rows:
        return Rows(r for r in self if all(r.get(name) == value for name, value in wanted.items()))

    def get(self, name: str, **wanted: Any) -> float:
        """The one value of a metric that these settings have."""
        found = [r[name] for r in self.where(**wanted) if r.get(name) is not None]
        if len(found) != 1:
            raise user_error(f"{name} for {wanted} has {len(found)} values.", expected="one")
        return float(found[0])

    def column(self, name: str, **wanted: Any) -> list[float]:
        return [float(r[name]) for r in self.where(**wanted) if r.get(name) is not None]

    def lowest(self, name: str, **wanted: Any) -> float:
        return min(self.column(name, **wanted))


@dataclass(frozen=True)
class Rule:
    """Bounds for an effect, written down before the run. Every seed gives the effect once.

    Supported if the 95 % interval of the effect lies within the bounds, not supported if all of it lies
    outside, else inconclusive.

    Args:
        log: the effect is a ratio: its mean is the geometric one, its interval that of the logarithm.
        aside: measured beside the hypothesis; it decides a claim, but not the study.
    """

    name: str
    says: str
    effect: Callable[[Rows], float]
    above: float | None = None
    below: float | None = None
    unit: str = ""
    log: bool = False
    aside: bool = False

    @property
    def bound(self) -> str:
        parts = [
            f"> {self.above:g}" if self.above is not None else "",
            f"< {self.below:g}" if self.below is not None else "",
        ]
        return " and ".join(part for part in parts if part)

    def judge(self, seeds: Mapping[int, Rows]) -> Ruling:
        values = [self.effect(rows) for _, rows in sorted(seeds.items())]
        effect = estimate(values, log=self.log)
        enough = len(values) >= LEAST_SEEDS
        return Ruling(self._verdict(effect) if enough else INCONCLUSIVE, effect, values)

    def _verdict(self, effect: Effect) -> str:
        least = -math.inf if self.above is None else self.above
        most = math.inf if self.below is None else self.below
        if effect.low is None or effect.high is None:  # a value that is not finite has no interval
            return INCONCLUSIVE
        if least < effect.low and effect.high < most:
            return SUPPORTED
        return NOT_SUPPORTED if effect.high <= least or effect.low >= most else INCONCLUSIVE


@dataclass(frozen=True)
class Effect:
    """A mean over seeds and its 95 % interval, which one seed alone does not have."""

    mean: float
    low: float | None = None
    high: float | None = None

    def say(self, unit: str = "") -> str:
        """
        Example:
            >>> Effect(19.9, 11.7, 28.1).say("points")
            '19.9 points (11.7 to 28.1)'
        """
        text = f"{_number(self.mean)} {unit}".strip()
        if self.low is None or self.high is None:
            return text
        low, high = _number(self.low), _number(self.high)
        return f"{text} (every seed)" if low == high else f"{text} ({low} to {high})"


def estimate(values: Sequence[float], *, log: bool = False) -> Effect:
    """Student's interval; for ratios that of their logarithm."""
    if log and min(values) <= 0:
        raise user_error(f"a ratio got {min(values):g}.", expected="above 0")
    found = interval([math.log(value) for value in values] if log else values)
    back = math.exp if log else float
    if found.half is None:
        return Effect(back(found.mean))
    return Effect(back(found.mean), back(found.mean - found.half), back(found.mean + found.half))


def _number(value: float) -> str:
    if 1e4 <= abs(value) < 1e9:
        return f"{float(f'{value:.2g}'):,.0f}"
    return f"{value:.3g}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.1e}"


@dataclass(frozen=True)
class Ruling:
    """What a rule says on some rows."""

    verdict: str
    effect: Effect
    values: list[float]

    def as_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "mean": self.effect.mean,
            "low": self.effect.low,
            "high": self.effect.high,
            "values": self.values,
        }


@dataclass(frozen=True)
class Plot:
    """A figure, as data: ``y`` against ``x``, one line or group of bars for each value of ``by``."""

    x: str
    y: str
    by: str | None
    sentence: str
    kind: str = "line"  # or "bar", or "rows", which are bars that lie, for long names
    log_x: bool = False
    log_y: bool = False
    where: Mapping[str, Any] = field(default_factory=dict)
    x_title: str = ""
    y_title: str = ""


@dataclass(frozen=True)
class Study:
    """Everything about a study but its words, which are the docstring of its module.

    Either ``runs`` are trained, or ``measure`` is called for every cell of ``cells``; or both.
    """

    claims: tuple[int, ...]
    rules: tuple[Rule, ...]
    plots: tuple[Plot, ...]
    cells: tuple[Mapping[str, Any], ...] = ()
    quick_cells: tuple[Mapping[str, Any], ...] | None = None
    measure: Callable[[Mapping[str, Any]], dict[str, float]] | None = None
    runs: tuple[Run, ...] = ()
    quick_runs: tuple[Run, ...] | None = None
    keep: tuple[str, ...] = ()
    seeds: int = 5
    cheap: bool = False
    limits: str = ""
    module: str = ""

    @property
    def name(self) -> str:
        return self.module.rpartition(".")[2].replace("_", "-")

    @cached_property
    def words(self) -> dict[str, str]:
        """Title, question, hypothesis, method, and what would refute it, from the module's docstring."""
        text = importlib.import_module(self.module).__doc__ or ""
        found = {"Title": text.strip().splitlines()[0].rstrip(".")}
        for paragraph in text.split("\n\n"):
            head, colon, rest = paragraph.strip().partition(":")
            if colon and head in PARTS:
                found[head] = " ".join(rest.split())
        missing = [part for part in PARTS if part not in found]
        assert not missing, f"{self.module} lacks {missing}"
        return found

    def work(self, seeds: int | None = None, *, quick: bool = False) -> list[Run | Cell]:
        """All that is to be done, seed by seed: as many as asked for, or as the study has."""
        from dataclasses import replace

        cells = self.quick_cells if quick and self.quick_cells is not None else self.cells
        runs = self.quick_runs if quick and self.quick_runs is not None else self.runs
        todo: list[Run | Cell] = []
        for seed in range(FIRST_SEED, FIRST_SEED + (seeds or self.seeds)):
            todo += [Cell(self.name, tuple(cell.items()), seed) for cell in cells]
            todo += [replace(run, seed=seed) for run in runs]
        return todo

    def rows(self, results: Iterable[tuple[Run | Cell, Outcome]]) -> list[dict[str, Any]]:
        """Flat and small, for rules, figures and the committed results."""
        return [self._row(work, outcome) for work, outcome in results]

    def _row(self, work: Run | Cell, outcome: Outcome) -> dict[str, Any]:
        if isinstance(work, Cell):
            found = {**dict(work.settings), "seed": work.seed, **outcome.metrics}
        else:
            found = row(work, outcome)
            for name in ("data", "error_text", "seconds", "peak_mb", "steps_done", "schedule"):
                found.pop(name, None)
            found |= {name: getattr(outcome, name) for name in self.keep}
            if found["final_loss"] is None or outcome.diverged:
                found["loss"] = outcome.plateau
            else:
                found["loss"] = min(found["final_loss"], outcome.plateau or found["final_loss"])
        return {name: _short(value) for name, value in found.items() if value is not None}

    def judge(self, rows: Sequence[dict[str, Any]]) -> dict[str, Ruling]:
        """What every rule says, by name."""
        seeds = sorted({r["seed"] for r in rows})
        by_seed = {seed: Rows(r for r in rows if r["seed"] == seed) for seed in seeds}
        return {rule.name: rule.judge(by_seed) for rule in self.rules}

    def verdict(self, rulings: Mapping[str, Ruling]) -> str:
        """Of the hypothesis: all its rules together."""
        verdicts = {rulings[rule.name].verdict for rule in self.rules if not rule.aside}
        if NOT_SUPPORTED in verdicts:
            return NOT_SUPPORTED
        return INCONCLUSIVE if INCONCLUSIVE in verdicts else SUPPORTED


def grid(**axes: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """Every combination.

    Example:
        >>> len(grid(norm=["layer", "rms"], depth=[2, 4, 8]))
        6
    """
    return tuple(dict(zip(axes, values, strict=True)) for values in product(*axes.values()))


def trained(*arms: Mapping[str, Any], **settings: Any) -> tuple[Run, ...]:
    """The training runs of one seed, with the settings of a comparison; ``arms`` have some of their own.

    Example:
        >>> layer, rms = {"norm": "layer", "lr": 1e-3}, {"norm": "rms", "lr": 3e-3}
        >>> [(run.norm, run.lr) for run in trained(layer, rms, placement="pre")]
        [('layer', 0.001), ('rms', 0.003)]
    """
    if arms:
        return tuple(run for arm in arms for run in trained(**settings, **arm))
    fields = {n: settings.pop(n) for n in list(settings) if n not in _SETTINGS}
    return make_plan({**settings, "set": fields or None, "seeds": [0]}).runs


_SETTINGS = ("task", "norm", "placement", "lr", "depth", "width", "batch_size", "warmup", "steps", "schedule")


@cache
def all_studies() -> dict[str, Study]:
    """Every study, in the order in which they are listed."""
    from normkit.lab import studies

    return {name: find_study(name) for name in studies.ORDER}


@cache
def find_study(name: str) -> Study:
    from dataclasses import replace

    from normkit.lab import studies

    checks.one_of(name, studies.ORDER, what="study")
    module = _module(name)
    found: Study = importlib.import_module(module).STUDY
    return replace(found, module=module)


def _module(study: str) -> str:
    return f"normkit.lab.studies.{study.replace('-', '_')}"


@cache
def _source(module: str) -> str:
    """Of a study, and of what it takes from others."""
    names = {getattr(item, "__module__", None) for item in vars(importlib.import_module(module)).values()}
    package, own = module.rpartition(".")[0], __name__
    files = sorted({module} | {n for n in names if n and n.startswith(f"{package}.") and n != own})
    return "".join((pkgutil.get_data(package, f"{f.rpartition('.')[2]}.py") or b"").decode() for f in files)


def _short(value: Any) -> Any:
    """Six digits are enough for a page, and keep the files small."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return [_short(item) for item in value] if isinstance(value, list | tuple) else value

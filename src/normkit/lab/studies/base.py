"""A study: a question, what would refute its answer, a grid, and a rule that decides. All of it is data."""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import product
from time import perf_counter
from typing import Any

from normkit import checks
from normkit.errors import refusal
from normkit.lab.analysis import Interval, interval, row
from normkit.lab.measuring import Outcome
from normkit.lab.plan import make_plan
from normkit.lab.run import Run, code_version

__all__ = ["Cell", "Plot", "Rows", "Rule", "Ruling", "Study", "all_studies", "find_study", "grid", "trained"]

SEEDS = 3
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
        module = importlib.import_module(f"normkit.lab.studies.{self.study.replace('-', '_')}")
        source = pkgutil.get_data(module.__package__ or "", f"{module.__name__.rpartition('.')[2]}.py")
        text = json.dumps([self.config(), data, self.code], sort_keys=True)
        return hashlib.sha256(text.encode() + (source or b"")).hexdigest()[:32]

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
            raise refusal(f"{name} for {wanted} has {len(found)} values.", expected="one")
        return float(found[0])

    def column(self, name: str, **wanted: Any) -> list[float]:
        return [float(r[name]) for r in self.where(**wanted) if r.get(name) is not None]

    def lowest(self, name: str, **wanted: Any) -> float:
        return min(self.column(name, **wanted))


@dataclass(frozen=True)
class Rule:
    """Holds for a seed if its effect is above, below, or between numbers that were written down before.

    A rule is supported if it holds for every seed, not supported if for none, else inconclusive.
    """

    name: str
    says: str
    effect: Callable[[Rows], float]
    above: float | None = None
    below: float | None = None
    unit: str = ""

    def holds(self, value: float) -> bool:
        return (self.above is None or value > self.above) and (self.below is None or value < self.below)

    @property
    def bound(self) -> str:
        parts = [
            f"> {self.above:g}" if self.above is not None else "",
            f"< {self.below:g}" if self.below is not None else "",
        ]
        return " and ".join(part for part in parts if part)

    def judge(self, seeds: Mapping[int, Rows]) -> Ruling:
        values = {seed: self.effect(rows) for seed, rows in sorted(seeds.items())}
        held = [self.holds(value) for value in values.values()]
        verdict = SUPPORTED if all(held) else INCONCLUSIVE if any(held) else NOT_SUPPORTED
        return Ruling(verdict, interval(list(values.values())), list(values.values()))


@dataclass(frozen=True)
class Ruling:
    """What a rule says on some rows."""

    verdict: str
    effect: Interval
    values: list[float]

    def as_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "mean": self.effect.mean,
            "half": self.effect.half,
            "values": self.values,
        }


@dataclass(frozen=True)
class Plot:
    """A figure, as data: ``y`` against ``x``, one line or group of bars for each value of ``by``."""

    x: str
    y: str
    by: str | None
    sentence: str
    kind: str = "line"
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

    def work(self, seeds: Iterable[int], *, quick: bool = False) -> list[Run | Cell]:
        """All that is to be done, seeds last."""
        from dataclasses import replace

        cells = self.quick_cells if quick and self.quick_cells is not None else self.cells
        runs = self.quick_runs if quick and self.quick_runs is not None else self.runs
        todo: list[Run | Cell] = []
        for seed in seeds:
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
        verdicts = {ruling.verdict for ruling in rulings.values()}
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


def trained(**settings: Any) -> tuple[Run, ...]:
    """The training runs of one seed, with the settings of a comparison."""
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
    module = f"normkit.lab.studies.{name.replace('-', '_')}"
    found: Study = importlib.import_module(module).STUDY
    return replace(found, module=module)


def _short(value: Any) -> Any:
    """Six digits are enough for a page, and keep the files small."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return [_short(item) for item in value] if isinstance(value, list | tuple) else value

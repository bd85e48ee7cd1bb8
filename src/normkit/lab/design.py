"""A study: a question, what would refute its answer, a grid, and a rule that decides. All of it is data."""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
import math
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

from normkit import checks
from normkit.errors import user_error
from normkit.lab.analysis import row
from normkit.lab.measuring import Outcome
from normkit.lab.plan import make_plan
from normkit.lab.rules import INCONCLUSIVE, NOT_SUPPORTED, SUPPORTED, Rows, Rule, Ruling, slope
from normkit.lab.run import Run, code_version
from normkit.lab.task import Task, task_class

__all__ = [
    "Cell",
    "Plot",
    "Rows",
    "Rule",
    "Study",
    "all_studies",
    "find_study",
    "grid",
    "slope",
    "source_files",
    "studies_package",
    "trained",
]

# Seeds below are for trying things out: no rule was written with a look at those that decide. It moves on
# when rules are changed after a result: 200 decided until November 2026.
FIRST_SEED = 300
PARTS = ("Question", "Hypothesis", "Method", "Refuted if")
# How a study comes to its verdict.
KINDS = {
    "proved": "an identity, checked in float64",
    "checked": "the behaviour of software",
    "measured": "numbers of models, untrained or trained",
}


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
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise user_error(f"{self}: {name} is {value}.", expected="a finite number, or none at all")
        return Outcome("ok", metrics=metrics, seconds=perf_counter() - start)


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
    names: Mapping[str, str] = field(default_factory=dict)  # of the lines, for a reader


@dataclass(frozen=True)
class Study:
    """Everything about a study but its words, which are the docstring of its module.

    Either ``runs`` are trained, or ``measure`` is called for every cell of ``cells``; or both.

    Args:
        scale: of what it measures, in few words: sizes, steps, data.
        paper: the headline number of the paper that it repeats.
        kind: how it comes to its verdict, a key of ``KINDS``.
        minutes: of one core, if they are more than a quick look takes; it is run with ``--long`` alone.
        headline: the rule whose sentence answers the question of the title; the first one by default.
        needs: called before anything is measured, where data or weights come in other packages: it raises
            an error that says how to get them. The smallest form does without.
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
    scale: str = ""
    paper: str = ""
    kind: str = "measured"
    minutes: int | None = None
    headline: str = ""
    needs: Callable[[], Any] | None = None
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

    @property
    def is_long(self) -> bool:
        return self.minutes is not None

    @cached_property
    def rules_hash(self) -> str:
        """Of the rules with their bounds, and of the text of their effects."""
        text = json.dumps([rule.as_dict() for rule in self.rules]) + _effects(self.module)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def rows(self, results: Iterable[tuple[Run | Cell, Outcome]]) -> list[dict[str, Any]]:
        """Flat and small, for rules, figures and the committed results."""
        return [self._row(work, outcome) for work, outcome in results]

    def _row(self, work: Run | Cell, outcome: Outcome) -> dict[str, Any]:
        if isinstance(work, Cell):
            found = {**dict(work.settings), "seed": work.seed, **outcome.metrics}
        else:
            found = row(work, outcome)
            for name in ("data", "error_text", "seconds", "peak_mb", "steps_done", "schedule", "best_loss"):
                found.pop(name, None)
            found |= {name: getattr(outcome, name) for name in self.keep}
            found |= {"loss": found.pop("final_loss"), "parts": outcome.judged or None}
        found["id"] = row_id(work)
        return {name: _short(value) for name, value in found.items() if value is not None}

    def judge(self, rows: Sequence[dict[str, Any]]) -> dict[str, Ruling]:
        """What every rule says, by name."""
        divided = all(task_class(name).split is not Task.split for name in {run.task for run in self.runs})
        return {rule.name: rule.judge(rows, divided=divided) for rule in self.rules}

    def answer(self, rulings: Mapping[str, Ruling]) -> str:
        """To its question, for a reader: what follows from the rules, and which of those that the hypothesis
        hangs on have not decided."""
        found = [ruling.answer for ruling in self.in_order(rulings)]
        return " ".join(text for text in found if text) or "Not decided by what was measured here."

    def in_order(self, rulings: Mapping[str, Ruling]) -> list[Ruling]:
        """As one reads them: the headline first, and what is not decided last where the hypothesis falls."""
        chosen = [rulings[rule.name] for rule in self.rules]
        chosen.sort(key=lambda ruling: ruling.rule.name != self.headline)
        if self.verdict(rulings) == NOT_SUPPORTED:
            chosen.sort(key=lambda ruling: ruling.verdict == INCONCLUSIVE)
        return chosen

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
    return {name: find_study(name) for name in studies_package().ORDER}


@cache
def find_study(name: str) -> Study:
    from dataclasses import replace

    checks.one_of(name, studies_package().ORDER, what="study")
    module = _module(name)
    found: Study = importlib.import_module(module).STUDY
    return replace(found, module=module)


def studies_package() -> Any:
    """The studies, which do not come with normkit: a package of their own, or those of the repository."""
    try:
        return importlib.import_module(PACKAGE)
    except ModuleNotFoundError as error:
        if error.name != PACKAGE:
            raise
    repository = Path(__file__).parents[3] / "studies"
    if not (repository / PACKAGE).is_dir():
        raise user_error(
            "The studies are not installed: they come apart from normkit.",
            expected=f"the package {PACKAGE}",
            fix="pip install 'normkit[studies]', or, in a clone of the repository, pip install ./studies",
        )
    sys.path.append(str(repository))
    return importlib.import_module(PACKAGE)


PACKAGE = "normkit_studies"


def _module(study: str) -> str:
    return f"{studies_package().__name__}.{study.replace('-', '_')}"


@cache
def _source(module: str) -> str:
    """Of a study, and of what it takes from others."""
    return "".join((pkgutil.get_data(PACKAGE, file) or b"").decode() for file in source_files(module))


def source_files(module: str) -> list[str]:
    """Of a study, and of the studies that it takes something from: their names."""
    names = {getattr(item, "__module__", None) for item in vars(importlib.import_module(module)).values()}
    modules = sorted({module} | {n for n in names if n and n.startswith(f"{PACKAGE}.")})
    return [f"{name.rpartition('.')[2]}.py" for name in modules]


@cache
def _effects(module: str) -> str:
    """The text of the rules of a study, and of all definitions that it reaches from there, without white
    space: what they are hashed by. Words, figures and grids may change; those may not."""
    text = (pkgutil.get_data(PACKAGE, f"{module.rpartition('.')[2]}.py") or b"").decode()
    tree = ast.parse(text)
    defined: dict[str, ast.stmt] = {}
    imported: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                defined |= {leaf.id: node for leaf in ast.walk(target) if isinstance(leaf, ast.Name)}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}."):
            imported |= {alias.asname or alias.name: node.module or "" for alias in node.names}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    todo: list[ast.AST] = [_effect(node) for node in calls if getattr(node.func, "id", None) == "Rule"]
    seen, others = {"STUDY", "run"}, set()
    found = []
    while todo:
        part = todo.pop(0)
        words = ast.get_docstring(part, clean=False) if isinstance(part, ast.FunctionDef) else None
        found.append((ast.get_source_segment(text, part) or "").replace(f'"""{words}"""', ""))
        names = sorted({leaf.id for leaf in ast.walk(part) if isinstance(leaf, ast.Name)} - seen)
        seen |= set(names)
        todo += [defined[name] for name in names if name in defined]
        others |= {imported[name] for name in names if name in imported}
    whole = "".join(found) + "".join(_effects(other) for other in sorted(others) if _has_rules(other))
    return re.sub(r",([)\]}])", r"\1", re.sub(r"\s+", "", whole))


def _effect(rule: ast.Call) -> ast.AST:
    """Of the third argument of a rule, by place or by name."""
    named = [k.value for k in rule.keywords if k.arg == "effect"]
    return (named or rule.args[2:3])[0]


def _has_rules(module: str) -> bool:
    return hasattr(importlib.import_module(module), "STUDY")


def row_id(work: Run | Cell) -> str:
    """What a row is known by, whatever the code that measured it; settings that are as usual do not count."""
    usual = {f.name: f.default for f in fields(work)}
    config = {name: value for name, value in work.config().items() if value != usual[name]}
    text = json.dumps(config, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _short(value: Any) -> Any:
    """Six digits are enough for a page, and keep the files small."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return [_short(item) for item in value] if isinstance(value, list | tuple) else value

"""The rows of a study, the rules that they were run under, and what those say of them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from normkit.errors import user_error
from normkit.lab.design import (
    FIRST_SEED,
    Cell,
    Study,
    _short,
    all_studies,
    find_study,
    row_id,
    studies_package,
)
from normkit.lab.extras import needs
from normkit.lab.rules import INCONCLUSIVE, Ruling
from normkit.lab.run import Run

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects as go

__all__ = ["StudyResult", "committed", "frozen", "results_folder"]

VERSION = "v1"
MOST_SEEDS = 1000
_ABOUT = ("rules", "hash", "data", "sittings", "seconds")
_ARM = (
    *("task", "norm", "placement", "qk_norm", "network", "jump"),
    *("warmup", "batch_size", "depth", "width", "steps"),
)


class StudyResult:
    """The rows of a study, and what its rules say of them. Everything is a function of the rows.

    ``about`` has how they came to be: ``rules`` and their ``hash``, ``sittings`` (date, commit, code, machine
    and how many rows), ``data``, ``seeds``, ``seconds``, and whether it was a smoke run.
    """

    def __init__(self, study: Study, rows: Sequence[dict[str, Any]], about: dict[str, Any]) -> None:
        self.study, self.rows, self.about = study, list(rows), about

    @property
    def name(self) -> str:
        return self.study.name

    @property
    def quick(self) -> bool:
        """A smoke run: too small to say anything."""
        return bool(self.about.get("quick"))

    @cached_property
    def judged(self) -> list[dict[str, Any]]:
        """The rows of the seeds that are complete."""
        count = Counter(row["seed"] for row in self.rows)
        whole = max(count.values(), default=0) if self.quick else len(self.study.work(1))
        return [row for row in self.rows if count[row["seed"]] == whole]

    @property
    def seeds(self) -> list[int]:
        """Those that are complete."""
        return sorted({row["seed"] for row in self.judged})

    @property
    def is_complete(self) -> bool:
        return len(self.seeds) >= self.study.seeds

    @cached_property
    def rulings(self) -> dict[str, Ruling]:
        """Before all seeds are there, nothing is decided: else it would be decided by when one looks."""
        found = self.study.judge(self.judged) if self.judged else {}
        if self.is_complete:
            return found
        return {name: replace(ruling, verdict=INCONCLUSIVE) for name, ruling in found.items()}

    @property
    def verdict(self) -> str:
        """Of the hypothesis: supported, not supported, or inconclusive; a smoke run gives none."""
        if self.quick:
            return "no verdict (smoke run)"
        if not self.is_complete:
            return f"{INCONCLUSIVE}: {len(self.seeds)} of {self.study.seeds} seeds so far"
        return self.study.verdict(self.rulings)

    @property
    def answer(self) -> str:
        """To the question of the study, in plain sentences."""
        if self.quick or not self.is_complete:
            return f"Not answered yet: {len(self.seeds)} of {self.study.seeds} seeds are done."
        return self.study.answer(self.rulings)

    @property
    def edges(self) -> list[str]:
        """The arms whose best learning rate is the smallest or the largest of three or more."""
        arms: dict[tuple[Any, ...], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
        for row in self.judged:
            if "lr" in row and "plateau" in row:
                arm = tuple((name, row[name]) for name in _ARM if name in row)
                # how far below the worst baseline
                arms[arm][row["lr"]].append(row["plateau"] - row.get("validation_loss", row["plateau"]))
        shared = set.intersection(*map(set, arms)) if arms else set()
        found = []
        for arm, rates in arms.items():
            best = max(rates, key=lambda lr: fmean(rates[lr]))
            if len(rates) > 2 and best in (min(rates), max(rates)) and fmean(rates[best]) > 0:
                own = [(name.replace("_", " "), value) for name, value in arm if (name, value) not in shared]
                words = ", ".join(f"{name} {str(value).rpartition(':')[2]}" for name, value in own)
                found.append(f"{words} at {best:g}".strip())
        return found

    @property
    def table(self) -> pandas.DataFrame:
        return needs("pandas").DataFrame(self.rows)

    @cached_property
    def figures(self) -> list[go.Figure]:
        needs("plotly")
        from normkit.lab.study_figures import draw

        return [draw(plot, self.judged) for plot in self.study.plots]

    def as_dict(self) -> dict[str, Any]:
        """What ``results/`` holds."""
        return {
            "study": self.name,
            "about": self.about,
            "verdict": self.verdict,
            "rulings": {name: ruling.as_dict() for name, ruling in self.rulings.items()},
            "rows": self.rows,
        }

    def save(self, folder: Path) -> Path:
        """As JSON, one row a line; put in place as a whole."""
        path = folder / f"{self.name}.json"
        lines = ",\n".join(json.dumps(row) for row in self.rows)
        head = json.dumps({**self.as_dict(), "rows": []}, indent=1)
        new = path.with_suffix(".new")
        try:
            new.write_text(head.replace('"rows": []', f'"rows": [\n{lines}\n ]') + "\n", encoding="utf-8")
            new.replace(path)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        return path

    @classmethod
    def load(cls, path: Path) -> StudyResult:
        """Refused if it was run under other rules than the study has now, or has rows of other settings."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            why = _unlike_saved(found)
        except (OSError, ValueError) as error:
            why = str(error)
        if not why and find_study(found["study"]).name != path.stem:
            why = f"it has the study {found['study']}"
        if why:
            raise user_error(
                f"{path} cannot be used: {why}.",
                expected="a file as normkit study --save writes it",
                fix=f"git checkout {path}, or move it away and run the study again.",
            )
        result = cls(find_study(found["study"]), found["rows"], found["about"])
        result.check(str(path))
        return result

    def check(self, where: str) -> None:
        """Are these rows of this study as it is, and of its rules?"""
        study, hashed = self.study, self.about.get("hash")
        if hashed != study.rules_hash or self.about.get("rules") != frozen(study)["rules"]:
            raise user_error(
                f"{where} was run under other rules of the study {study.name}: {hashed}.",
                expected=f"its rules as they are now, {study.rules_hash}",
                fix="git checkout the commit that it names, or run the study again, into another folder.",
            )
        seeds = {row["seed"] for row in self.rows}
        if not self.quick and seeds:
            last = min(max(seeds), FIRST_SEED + MOST_SEEDS - 1)
            known = {row_id(work): work for work in study.work(last - FIRST_SEED + 1)}
            other = sum(row["id"] not in known or not _is_of(known[row["id"]], row) for row in self.rows)
            if other:
                raise user_error(
                    f"{where} has {other} of {len(self.rows)} rows with settings that the study "
                    f"{study.name} does not have.",
                    expected="rows of the study as it is now",
                    fix="git checkout the commit that it names, or run the study again, into another folder.",
                )

    def __repr__(self) -> str:
        lines = [f"{self.name}: {self.verdict}", f"  {self.study.words['Question']}"]
        for ruling in self.rulings.values():
            said = "" if self.quick else f"{ruling.verdict}: "
            lines.append(f"  {said}{ruling.rule.says}: {ruling.said}")
        return "\n".join(lines)


def _unlike_saved(found: Any) -> str:
    """In what a file differs from what ``save`` writes."""
    if not isinstance(found, dict) or not {"study", "about", "rows"} <= set(found):
        return "it lacks study, about or rows"
    about, rows = found["about"], found["rows"]
    lacks = [name for name in _ABOUT if name not in about] if isinstance(about, dict) else ["about"]
    if lacks:
        return f"it lacks {', '.join(lacks)}"
    if not all(isinstance(row, dict) and {"id", "seed"} <= set(row) for row in rows):
        return "a row lacks its id or its seed"
    if not all(type(row["seed"]) is int and isinstance(row["id"], str) for row in rows):
        return "the id or the seed of a row is of another type"
    double = len(rows) - len({row["id"] for row in rows})
    if double:
        return f"{double} of its {len(rows)} rows are there twice"
    said = sum(sitting["rows"] for sitting in about["sittings"])
    return "" if said == len(rows) else f"it has {len(rows)} rows, and its sittings {said}"


def _is_of(work: Run | Cell, row: Mapping[str, Any]) -> bool:
    """Does the row say the settings that its id stands for?"""
    config = work.config()
    settings = {**config.get("settings", config), "seed": work.seed}
    return all(_short(settings[name]) == value for name, value in row.items() if name in settings)


def frozen(study: Study) -> dict[str, Any]:
    """The rules as they stand, for the rows to be kept with."""
    return {"rules": [rule.as_dict() for rule in study.rules], "hash": study.rules_hash}


def joined(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sittings one after the other; those of the same commit, day and machine as one."""
    found: list[dict[str, Any]] = []
    for sitting in results:
        rest = {name: value for name, value in sitting.items() if name != "rows"}
        if found and {n: v for n, v in found[-1].items() if n != "rows"} == rest:
            found[-1]["rows"] += sitting["rows"]
        else:
            found.append(dict(sitting))
    return found


def results_folder() -> Path:
    """Of the results that come with the studies."""
    (home,) = studies_package().__path__
    return Path(home) / "results" / VERSION


def committed() -> dict[str, StudyResult]:
    """Those of the run that comes with the studies, by name; those without one are left out."""
    found = {name: results_folder() / f"{name}.json" for name in all_studies()}
    return {name: StudyResult.load(path) for name, path in found.items() if path.exists()}

"""``study``: do what a study needs, on the engines and in the store of a comparison, and judge."""

from __future__ import annotations

import contextlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from normkit.errors import NormkitError, user_error
from normkit.lab import machine
from normkit.lab.console import plain_console
from normkit.lab.engines import engine as engine_named
from normkit.lab.extras import needs
from normkit.lab.jobs import perform
from normkit.lab.measuring import Outcome
from normkit.lab.run import Run, code_version
from normkit.lab.store import Store
from normkit.lab.studies.base import INCONCLUSIVE, LEAST_SEEDS, Cell, Ruling, Study, all_studies, find_study
from normkit.lab.worker import Job

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects as go

__all__ = ["RESULTS", "StudyResult", "committed", "stored_studies", "study", "verify"]

RESULTS = Path(__file__).parent / "results"
FOLDER = "runs/studies"
MOST_SEEDS = 1000
_ARM = ("task", "norm", "placement", "network", "jump", "warmup", "batch_size", "depth", "steps")


class StudyResult:
    """The rows of a study, and what its rules say of them. Everything is a function of the rows."""

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
    def rulings(self) -> dict[str, Ruling]:
        return self.study.judge(self.rows)

    @property
    def verdict(self) -> str:
        """Of the hypothesis: supported, not supported, or inconclusive; a smoke run gives none."""
        if self.quick:
            return "no verdict (smoke run)"
        if len({row["seed"] for row in self.rows}) < LEAST_SEEDS:
            return f"{INCONCLUSIVE}: fewer than {LEAST_SEEDS} seeds"
        return self.study.verdict(self.rulings)

    @property
    def edges(self) -> list[str]:
        """The arms whose best learning rate is the smallest or the largest of several."""
        arms: dict[tuple[Any, ...], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
        for row in self.rows:
            if "lr" in row and ("error" in row or "plateau" in row):
                arm = tuple((name, row[name]) for name in _ARM if name in row)
                # How good it is, where 0 is a blind guess.
                arms[arm][row["lr"]].append(
                    100 - row["error"] if "error" in row else row["plateau"] - row["loss"]
                )
        shared = set.intersection(*map(set, arms)) if arms else set()
        found = []
        for arm, rates in arms.items():
            best = max(rates, key=lambda lr: fmean(rates[lr]))
            if len(rates) > 1 and best in (min(rates), max(rates)) and fmean(rates[best]) > 0:
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

        return [draw(plot, self.rows) for plot in self.study.plots]

    def as_dict(self) -> dict[str, Any]:
        """What ``results/`` holds."""
        rulings = {name: ruling.as_dict() for name, ruling in self.rulings.items()}
        return {
            "study": self.name,
            "about": self.about,
            "verdict": self.verdict,
            "rulings": rulings,
            "rows": self.rows,
        }

    def save(self, folder: Path = RESULTS) -> Path:
        path = folder / f"{self.name}.json"
        lines = ",\n".join(json.dumps(row) for row in self.rows)
        head = json.dumps({**self.as_dict(), "rows": []}, indent=1)
        path.write_text(head.replace('"rows": []', f'"rows": [\n{lines}\n ]') + "\n", encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: Path) -> StudyResult:
        found = json.loads(path.read_text(encoding="utf-8"))
        return cls(find_study(found["study"]), found["rows"], found["about"])

    def __repr__(self) -> str:
        lines = [f"{self.name}: {self.verdict}", f"  {self.study.words['Question']}"]
        rules = {rule.name: rule for rule in self.study.rules}
        for name, ruling in self.rulings.items():
            said = "" if self.quick else f"{ruling.verdict}: "
            lines.append(f"  {said}{rules[name].says}: {ruling.effect.say(rules[name].unit)}")
        return "\n".join(lines)


def committed() -> dict[str, StudyResult]:
    """The full run that comes with normkit, by study; those without one are left out."""
    found = {name: RESULTS / f"{name}.json" for name in all_studies()}
    return {name: StudyResult.load(path) for name, path in found.items() if path.exists()}


def study(
    *names: str,
    seeds: int | None = None,
    quick: bool = False,
    out: str | os.PathLike[str] = FOLDER,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> StudyResult | list[StudyResult]:
    """Run one study, or several, and judge.

    Args:
        names: as ``normkit study`` lists them.
        seeds: how many; as many as each study asks for by default. Below three there is no verdict.
        quick: the smallest form, to see that it works; no verdict either.
        out, engine, address, workers, progress: as in :func:`compare`.

    Returns:
        the result, or a list of them for several names.
    """
    chosen = [find_study(name) for name in names]
    if not chosen:
        raise user_error("study() got no name.", expected=f"one of {', '.join(all_studies())}")
    if seeds is not None and (type(seeds) is not int or not 1 <= seeds <= MOST_SEEDS):
        raise user_error(f"seeds got {seeds!r}.", expected=f"an integer from 1 to {MOST_SEEDS}")
    for name in ("scipy", "pandas", "plotly"):
        needs(name)
    where = engine_named(engine, workers=workers, address=address)
    console = plain_console(soft_wrap=True, quiet=not progress)
    jobs = {s.name: _jobs(s.work(1 if quick and seeds is None else seeds, quick=quick)) for s in chosen}
    about = {
        "quick": quick,
        "code": code_version(),
        "machine": machine.describe(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    }
    every = [job for some in jobs.values() for job in some]
    with Store(Path(out), write=True) as store, contextlib.closing(where):
        earlier = _described(store)
        store.begin({"studies": earlier}, [job.key for job in every])
        perform(store, where, every, console)
        done = {key: (run, outcome) for key, run, outcome in store.runs(dict.fromkeys(j.key for j in every))}
        results = [_result(s, [done[job.key] for job in jobs[s.name]], about) for s in chosen]
        new = {s.name: {**about, "keys": [job.key for job in jobs[s.name]]} for s in chosen}
        store.amend({"studies": _joined(earlier, new, quick)}, [job.key for job in every])
    return results if len(names) > 1 else results[0]


def stored_studies(folder: str | os.PathLike[str]) -> dict[str, StudyResult]:
    """The latest result of every study in a folder; smoke runs only where there is nothing else."""
    with Store(Path(folder)) as store:
        described = _described(store)
        found: dict[str, StudyResult] = {}
        for name in (name for name in all_studies() if name in described):
            about = dict(described[name])
            keys = about.pop("keys")
            rows, unread = store.read(keys)
            try:
                if len(rows) < len(keys):
                    why = next(iter(unread.values()), "they are not there")
                    raise NormkitError(f"{len(keys) - len(rows)} of {len(keys)} cannot be read, {why}")
                found[name] = _result(find_study(name), [(run, outcome) for _, run, outcome in rows], about)
                assert found[name].rulings  # they are computed now, and not on the page
            except Exception as error:  # rows that a rule cannot use: each rule fails in its own way
                raise user_error(
                    f"{folder}: the rows of the study {name} cannot be used: {str(error).rstrip('.')}.",
                    expected="a folder as normkit study has written it",
                    fix=f"normkit study {name} --out {folder}, which does only what is missing.",
                ) from error
    if not found:
        raise user_error(
            f"{folder}: it is about studies, and none of them has ended.",
            fix=f"normkit study NAME --out {folder}, which does only what is missing.",
        )
    return found


def _described(store: Store) -> dict[str, dict[str, Any]]:
    """What the folder says of its studies, by name; nothing of what is not as we write it."""
    try:
        told = store.latest()[0].get("studies")
    except NormkitError:  # no sweep yet, or one that cannot be read
        return {}
    return {
        str(name): about
        for name, about in (told if isinstance(told, dict) else {}).items()
        if _is_about(about)
    }


def _is_about(about: Any) -> bool:
    if not isinstance(about, dict) or set(about) != {"quick", "code", "machine", "date", "keys"}:
        return False
    texts = [about["code"], about["date"], *(about["keys"] if isinstance(about["keys"], list) else [None])]
    return (
        isinstance(about["quick"], bool)
        and isinstance(about["machine"], dict)
        and all(isinstance(text, str) for text in texts)
    )


def _joined(earlier: Mapping[str, Any], new: Mapping[str, Any], quick: bool) -> dict[str, Any]:
    """With what was there before. A smoke run, which says nothing, is not put beside full ones."""
    full = {name: about for name, about in earlier.items() if not about["quick"]}
    if quick:
        return full or {**earlier, **new}
    return {**full, **new}


def _jobs(work: Iterable[Run | Cell]) -> list[Job]:
    fingerprints: dict[tuple[Any, ...], str] = {}
    jobs = []
    for item in work:
        data = ""
        if isinstance(item, Run):
            which = (item.task, item.options)
            if which not in fingerprints:
                fingerprints[which] = item.build_task().fingerprint
            data = fingerprints[which]
        jobs.append(Job(item.key(data), item, data, item.code))
    return jobs


def _result(study: Study, done: Sequence[tuple[Run | Cell, Outcome]], about: dict[str, Any]) -> StudyResult:
    failed = [outcome.error for _, outcome in done if outcome.status == "failed"]
    if failed:
        raise user_error(f"{study.name}: {len(failed)} of {len(done)} cells failed.\n{failed[0]}")
    seconds = sum(outcome.seconds for _, outcome in done)
    rows = study.rows(done)
    seeds = len({run.seed for run, _ in done})
    return StudyResult(study, rows, {**about, "seeds": seeds, "seconds": round(seconds, 1)})


def verify(results: Iterable[StudyResult]) -> list[str]:
    """Where these results and the committed ones disagree: one line each."""
    known = committed()
    found = []
    for result in results:
        old = known.get(result.name)
        for name, ruling in result.rulings.items():
            before = old.rulings[name].verdict if old and name in old.rulings else "nothing"
            if ruling.verdict != before:
                now = f"{ruling.verdict} now, {ruling.effect.say()}"
                found.append(f"{result.name}, {name}: {now}; {before} in the results")
    return found

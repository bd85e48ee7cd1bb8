"""The page of the studies: a function of their rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normkit.errors import user_error
from normkit.lab.claims import KINDS, NOTES, VERDICTS, changes, ledger
from normkit.lab.design import all_studies, find_study
from normkit.lab.extras import needs
from normkit.lab.page import fill, put
from normkit.lab.page.books import stack_of_books
from normkit.lab.page.strip import strip
from normkit.lab.rules import by_chance
from normkit.placement import PLACEMENTS
from normkit.placement.drawing import draw

if TYPE_CHECKING:
    from normkit.lab.study_result import StudyResult

__all__ = ["render_studies", "write_studies"]

BASELINES = " Dotted: baselines, which need no model."
DRAWN = ("post", "pre", "peri", "output", "deepnorm", "lns", "keel", "rezero")


def write_studies(results: Mapping[str, StudyResult], path: Path, *, whole: bool = False) -> Path:
    text = render_studies(results, whole=whole)
    return put(text, path, "all rows are stored; make room, and start the command again")


def render_studies(results: Mapping[str, StudyResult], *, whole: bool = False) -> str:
    """One page; ledger and log are on it when all short studies are, or if ``whole`` asks for them."""
    markup = needs("markupsafe").Markup
    started = results
    results = {name: result for name, result in started.items() if result.judged}
    if not results:
        raise user_error(
            "No study has a complete seed yet.",
            expected="one at least",
            fix="run it on; it goes on where it was.",
        )
    figures = {
        f"{name} {k}": figure for name, result in results.items() for k, figure in enumerate(result.figures)
    }
    first = next(iter(results.values()))
    rules = [rule for result in results.values() for rule in result.study.rules]
    measured = [result for result in results.values() if result.study.kind == "measured"]
    tested = [rule for result in measured for rule in result.study.rules]
    short = {name for name, study in all_studies().items() if not study.is_long}
    whole = whole or (not first.quick and set(results) >= short)
    claims = ledger(results) if whole else []
    count = Counter(claim["verdict"] for claim in claims)
    drawings = [
        {
            "title": PLACEMENTS[name].title,
            "formula": str(PLACEMENTS[name]),
            "svg": markup(draw(name)),
        }
        for name in DRAWN
    ]
    values: dict[str, Any] = {
        "title": "normkit: the studies",
        "quick": first.quick,
        "studies": [_study(result) for result in results.values()],
        "waiting": _waiting(results, all_studies() if whole else started),
        "rules": len(rules),
        "tested": len(tested),
        "by_chance": f"{by_chance(tested):.1f}",
        "claims": claims,
        "counts": {verdict: count[verdict] for verdict in VERDICTS if count[verdict]},
        "kinds": [
            (kind, says, Counter(c["verdict"] for c in claims if c["kind"] == kind))
            for kind, says in KINDS.items()
        ],
        "tautologies": sum(claim["tautology"] for claim in claims),
        "changes": changes() if whole else [],
        "notes": list(NOTES.items()),
        "verdicts": VERDICTS,
        "books": markup(stack_of_books()),
        "placements": drawings if whole else [],
        "command": " ".join(
            ["normkit study", *(["--all"] if whole else results), *["--quick"] * first.quick]
        ),
        "facts": _facts([result.about for result in results.values()]),
    }
    return fill("studies.html", values, figures)


def _study(result: StudyResult) -> dict[str, Any]:
    markup = needs("markupsafe").Markup
    study, words = result.study, result.study.words
    rules = []
    for ruling in result.rulings.values():
        rule = ruling.rule
        rules.append(
            {
                "says": rule.says,
                "bound": rule.bound,
                "effect": ruling.said,
                "strip": markup(strip(rule, ruling)),
                "aside": rule.aside,
                "verdict": "–" if result.quick else ruling.verdict,
            }
        )
    return {
        "name": result.name,
        "title": words["Title"],
        "question": words["Question"],
        "hypothesis": words["Hypothesis"],
        "method": words["Method"],
        "refuted": words["Refuted if"],
        "answer": "" if result.quick else result.answer,
        "short": "" if result.quick else _first_sentence(result.answer),
        "verdict": result.verdict,
        "scale": study.scale,
        "paper": study.paper,
        "sittings": result.about["sittings"],
        "limits": study.limits,
        "claims": study.claims,
        "rules": rules,
        "figures": [
            {"name": f"{result.name} {k}", "sentence": plot.sentence + _beside(result) * (plot.y == "loss")}
            for k, plot in enumerate(study.plots)
        ],
        "cells": len(result.rows),
        "seeds": len(result.seeds),
        "wanted": study.seeds,
        "is_long": study.is_long,
        "hash": result.about["hash"],
        "edges": [] if result.quick else result.edges,
        "seconds": f"{result.about['seconds']:.0f}",
    }


def _waiting(results: Mapping[str, StudyResult], wanted: Iterable[str]) -> list[tuple[str, str]]:
    """Title and command of the studies that are not measured yet."""
    studies = [find_study(name) for name in wanted if name not in results]
    return [(s.words["Title"], f"normkit study {s.name}{' --long' * s.is_long}") for s in studies]


def _first_sentence(text: str) -> str:
    """
    Example:
        >>> _first_sentence("In part: LayerNorm's error rises by 0.5 points (0.1 to 0.9). So do others.")
        "In part: LayerNorm's error rises by 0.5 points (0.1 to 0.9)."
    """
    return re.split(r"(?<=[.]) (?=[A-Z“])", text, maxsplit=1)[0]


def _beside(result: StudyResult) -> str:
    """What a reader of losses has to know: what the dotted lines are, and what is not drawn."""
    diverged = sum(row.get("status") == "diverged" for row in result.judged)
    has_baselines = any(name.startswith("baseline_") for row in result.judged for name in row)
    gone = f" {diverged} of {len(result.judged)} runs diverged and are not drawn." if diverged else ""
    return BASELINES * has_baselines + gone


def _facts(abouts: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Date, code, commits and machine; all that there are, where studies differ."""
    facts: dict[str, dict[str, None]] = {}
    for sitting in (sitting for about in abouts for sitting in about["sittings"]):
        known = {name: sitting.get(name) for name in ("date", "commit", "code")}
        for name, value in {**known, **sitting["machine"]}.items():
            if value is not None:
                facts.setdefault(name, {})[str(value)] = None
    return [(name, "; ".join(values)) for name, values in facts.items() if name != "normkit"]

"""The ledger: what five notes claim about normalization, and what decides each claim."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normkit.lab.design import find_study, studies_package
from normkit.lab.rules import INCONCLUSIVE

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from normkit.lab.rules import Ruling
    from normkit.lab.study_result import StudyResult

__all__ = [
    "CHANGES",
    "KINDS",
    "NOTES",
    "VERDICTS",
    "WITHDRAWN",
    "Change",
    "Claim",
    "changes",
    "claims",
    "ledger",
]

VERDICTS = ("true", "imprecise", "false", "open")
# What decides a claim, from the firmest to the softest.
KINDS = {
    "proved": "algebra: an identity or a definition",
    "checked": "a test of this repository",
    "measured": "a study, at its scale",
    "cited": "what a paper says, at its scale",
}
# The kinds of entries in the log.
CHANGES = {
    "we got wrong": "a claim was rendered unfairly to its note, and its verdict with it",
    "rendering mended": "a claim is worded as in its note; its verdict did not hang on it",
    "claim added": "a note says it, and the ledger had left it out",
    "verdict changed": "a claim has another verdict, or other evidence, under the same wording",
    "withdrawn": "what we had said does not follow from what was measured",
    "rule changed after its result": "a rule, a bound, an arm, what would refute it, or what follows from it "
    "was changed, added or dropped when a result was known",
    "judging changed": "how all rules, or the rules of several studies, come to a verdict",
    "study rebuilt": "the same question under another protocol, with rules of its own",
    "result reported late": "it was in the rows, and nothing said so",
    "disclosure restored": "how a result came about; it had been said and was removed, or said otherwise",
}
WITHDRAWN = ("max-learning-rate",)  # studies with rows in results/v0 that nobody runs any more
NOTES = {
    1: "Layer normalization in Transformers",
    2: "Why Transformers use LayerNorm",
    3: "Layer Normalization: principles",
    4: "Normalization or regularisation",
    5: "Normalization, with code",
}


@dataclass(frozen=True)
class Claim:
    """One sentence of a note, and its evidence: the rule of a study, a named test, or a paper.

    ``quote`` is the sentence as it stands in the note, ``text`` a fair rendering of it; ``mended`` how it had
    been rendered before, where that was not fair to the note. ``kind`` is a key of ``KINDS``; what is proved
    has an ``identity``, and is a ``tautology`` where it is true by definition. ``literature`` is what others
    found, and why that differs where it does.

    Where a rule decides, ``supported`` and ``not_supported`` say what follows from its verdict; an
    inconclusive one leaves the claim open. Else ``verdict`` says it. ``expected`` is the verdict that was
    written down before the seeds that decide were run, and ``why`` the reason where it came out otherwise.
    """

    number: int
    note: int
    text: str
    expected: str
    kind: str = "measured"
    tautology: bool = False
    identity: str = ""
    scale: str = ""
    literature: str = ""
    rule: str = ""
    test: str = ""
    paper: str = ""
    supported: str = ""
    not_supported: str = ""
    verdict: str = ""
    correction: str = ""
    why: str = ""
    quote: str = ""
    mended: str = ""

    @property
    def study(self) -> str:
        return self.rule.partition(".")[0]

    @property
    def at(self) -> str:
        """The scale of its evidence."""
        return self.scale or (find_study(self.study).scale if self.rule else "")

    def decide(self, results: Mapping[str, StudyResult]) -> tuple[str, str]:
        """The verdict, and the measured number if there is one."""
        if not self.rule:
            return self.verdict, ""
        ruling = self._ruling(results)
        if ruling is None:
            return "open", "not measured yet"
        result = results[self.study]
        follows = {"supported": self.supported, "not supported": self.not_supported}
        part = "" if result.is_complete else f", {len(result.seeds)} of {result.study.seeds} seeds so far"
        return follows.get(ruling.verdict, "open"), ruling.said + part

    def undecided(self, results: Mapping[str, StudyResult]) -> str:
        """Why its rule decides nothing; empty where something does. Correction and reason are written for
        what was measured, so that they say nothing without it."""
        if not self.rule:
            return ""
        ruling, study = self._ruling(results), find_study(self.study)
        if ruling is None:
            return f"Not measured yet: normkit study {study.name}{' --long' * study.is_long} does it."
        return f"What was measured leaves it open: {ruling.said}." * (ruling.verdict == INCONCLUSIVE)

    def _ruling(self, results: Mapping[str, StudyResult]) -> Ruling | None:
        result = results.get(self.study)
        return result.rulings.get(self.rule.partition(".")[2]) if result else None

    def evidence(self, measured: str) -> str:
        """In one line: what decides, and what was measured."""
        if self.rule:
            return f"{self.rule}: {measured}"
        return self.test or self.paper


@dataclass(frozen=True)
class Change:
    """What was changed when, after which result: a verdict, a rule, a rendering of a claim, a study.

    ``about`` has "claim 87", "study norm-free", "rule norm-free.trains", or "results" for all of them;
    ``kind`` is a key of ``CHANGES``.
    """

    date: str
    about: tuple[str, ...]
    kind: str
    before: str
    after: str
    why: str

    @property
    def kind_says(self) -> str:
        return CHANGES[self.kind]


@cache
def claims() -> tuple[Claim, ...]:
    """All of them, in the order of the notes."""
    return tuple(Claim(**row) for row in _read("claims.toml")["claim"])


@cache
def changes() -> tuple[Change, ...]:
    """The log of all changes, the latest first."""
    found = [Change(**{**row, "about": tuple(row["about"])}) for row in _read("changes.toml")["change"]]
    return tuple(sorted(found, key=lambda change: change.date)[::-1])


def _read(name: str) -> dict[str, Any]:
    (home,) = studies_package().__path__
    return tomllib.loads((Path(home) / name).read_text(encoding="utf-8"))


def ledger(results: Mapping[str, StudyResult] | None = None) -> list[dict[str, Any]]:
    """One dictionary a claim: what it says, its verdict, the number, the evidence and the correction.

    Args:
        results: of the studies; those that come with them by default.
    """
    if results is None:
        from normkit.lab.study_result import committed

        results = committed()
    rows = []
    for claim in claims():
        verdict, measured = claim.decide(results)
        undecided = claim.undecided(results)
        rows.append(
            {
                "number": claim.number,
                "note": claim.note,
                "quote": claim.quote,
                "claim": claim.text,
                "kind": claim.kind,
                "tautology": claim.tautology,
                "scale": claim.at,
                "verdict": verdict,
                "literature": claim.literature,
                "evidence": claim.evidence(measured),
                "measured": measured,
                "identity": claim.identity,
                "study": claim.rule,
                "test": claim.test,
                "paper": claim.paper,
                "correction": undecided or claim.correction,
                "expected": claim.expected,
                "why": "" if undecided else claim.why,
                "mended": claim.mended,
            }
        )
    return rows

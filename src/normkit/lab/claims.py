"""The ledger: what five notes claim about normalization, and what decides each claim."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from normkit.lab.study_result import StudyResult

__all__ = ["NOTES", "VERDICTS", "Claim", "claims", "ledger"]

FILE = Path(__file__).parent / "studies" / "claims.toml"
VERDICTS = ("true", "imprecise", "false", "open")
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
    been rendered before, where that was not fair to the note.

    Where a rule decides, ``supported`` and ``not_supported`` say what follows from its verdict; an
    inconclusive one leaves the claim open. Else ``verdict`` says it. ``expected`` is the verdict that was
    written down before the seeds that decide were run, and ``why`` the reason where it came out otherwise.
    """

    number: int
    note: int
    text: str
    expected: str
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

    def decide(self, results: Mapping[str, StudyResult]) -> tuple[str, str]:
        """The verdict, and the measured number if there is one."""
        if not self.rule:
            return self.verdict, ""
        name = self.rule.partition(".")[2]
        if self.study not in results:
            return "open", "not measured yet"
        result = results[self.study]
        ruling = result.rulings[name]
        unit = next(rule.unit for rule in result.study.rules if rule.name == name)
        follows = {"supported": self.supported, "not supported": self.not_supported}
        return follows.get(ruling.verdict, "open"), ruling.effect.say(unit)


@cache
def claims() -> tuple[Claim, ...]:
    """All of them, in the order of the notes."""
    found = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return tuple(Claim(**row) for row in found["claim"])


def ledger(results: Mapping[str, StudyResult] | None = None) -> list[dict[str, Any]]:
    """One dictionary a claim: what it says, its verdict, the number, the evidence and the correction.

    Args:
        results: of the studies; those that come with normkit by default.
    """
    if results is None:
        from normkit.lab.study_result import committed

        results = committed()
    rows = []
    for claim in claims():
        verdict, measured = claim.decide(results)
        rows.append(
            {
                "number": claim.number,
                "note": claim.note,
                "quote": claim.quote,
                "claim": claim.text,
                "verdict": verdict,
                "measured": measured,
                "study": claim.rule,
                "test": claim.test,
                "paper": claim.paper,
                "correction": claim.correction,
                "expected": claim.expected,
                "why": claim.why,
                "mended": claim.mended,
            }
        )
    return rows

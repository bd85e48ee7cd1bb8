"""What the doctor says: findings, and the report that holds them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from normkit.inspect.edit import Edit, Edits
from normkit.inspect.inspection import Inspection
from normkit.inspect.sites import folded

__all__ = ["LEVELS", "Finding", "Report"]

LEVELS = ("error", "warning", "info")


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing.

    code, name    of the rule; ``normkit doctor --explain CODE`` shows its page
    severity      "error", "warning" or "info"
    where         the path of the module
    measured      the number that decides
    expected      what it should be, in words
    message       what is wrong, in a sentence
    fix           what to do about it
    line          where the model's code calls the norm: "file.py:12"
    """

    code: str
    name: str
    severity: str
    where: str
    measured: float
    expected: str
    message: str
    fix: str
    line: str = ""
    edit: Edit | None = field(default=None, repr=False, compare=False)

    @property
    def is_fixable(self) -> bool:
        """Whether ``report.fix()`` can do it."""
        return self.edit is not None

    def to_dict(self) -> dict[str, Any]:
        found = asdict(replace(self, edit=None))
        del found["edit"]
        return {**found, "fixable": self.is_fixable}


class Report:
    """The findings about a model, worst first. ``print`` it, ``save`` it as a page, or take ``to_json``.

    findings      a tuple of :class:`Finding`
    ok            there is no error and no warning
    inspection    the norms themselves
    """

    def __init__(
        self, inspection: Inspection, findings: Sequence[Finding], notes: Sequence[str] = ()
    ) -> None:
        self.inspection = inspection
        self.findings = tuple(sorted(findings, key=lambda f: LEVELS.index(f.severity)))
        self.notes = tuple(notes)

    @property
    def ok(self) -> bool:
        return all(f.severity == "info" for f in self.findings)

    def count(self, severity: str) -> int:
        return sum(f.severity == severity for f in self.findings)

    def __str__(self) -> str:
        lines = [str(self.inspection), ""]
        for group in grouped(self.findings):
            lines += [*_said(group), ""]
        lines += [*self.notes, ""] if self.notes else []
        return "\n".join([*lines, self.verdict])

    __repr__ = __str__

    @property
    def verdict(self) -> str:
        """The last line: how many findings there are of each severity."""
        counts = [(self.count(level), level) for level in LEVELS]
        words = ["1 " + w if n == 1 else f"{n} {w if w == 'info' else w + 's'}" for n, w in counts if n]
        return ("healthy" if self.ok else "not healthy") + (": " + ", ".join(words) if words else "")

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": type(self.inspection.model).__name__,
            "ok": self.ok,
            "norms": len(self.inspection.sites),
            "findings": [finding.to_dict() for finding in self.findings],
            "notes": list(self.notes),
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, default=str)

    def save(self, path: str | Path) -> Path:
        """As one page without any other file; as JSON if the name ends so."""
        from normkit.doctor.page import render
        from normkit.doctor.writing import write

        path = Path(path)
        return write(path, self.to_json() if path.suffix == ".json" else render(self))

    def _repr_html_(self) -> str:
        from normkit.doctor.page import body, style

        return f"<style>{style('.normkit-doctor')}</style><div class='normkit-doctor'>{body(self)}</div>"

    def fix(self) -> Edits:
        """Make all safe fixes, in place: all or nothing. What they are is in the edits, which can be undone."""
        edits = Edits([f.edit for f in self.findings if f.edit is not None])
        edits.apply()
        return edits


def grouped(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings that differ only in the number of their layer, together."""
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        key = (finding.code, finding.severity, folded(finding.where), finding.fix)
        alike.setdefault(key, []).append(finding)
    return list(alike.values())


def _said(group: Sequence[Finding]) -> list[str]:
    first = group[0]
    where = first.where if len(group) == 1 else f"{folded(first.where)} ({len(group)} of them)"
    lines = [
        f"{first.severity} {first.code} {first.name}: {where or '(the model)'}",
        f"  {first.message}",
        f"  measured: {first.measured:.4g}; expected: {first.expected}",
        f"  fix: {first.fix}",
    ]
    return [*lines, f"  called at {first.line}"] if first.line else lines

"""What the doctor says: findings, and the report that holds them."""

from __future__ import annotations

import contextlib
import json
import linecache
import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from normkit.inspect.edit import Edit, Edits
from normkit.inspect.inspection import Inspection
from normkit.inspect.sites import folded

__all__ = ["LEVELS", "Finding", "Report", "code_of", "grouped", "measured_of", "table_lines", "where_of"]

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

    def text(self, width: int = 80) -> str:
        """What ``print`` shows, in lines of so many columns; paths are never cut."""
        lines = [*table_lines(str(self.inspection), width), ""]
        for group in grouped(self.findings):
            lines += [*_said(group, width), ""]
        for note in self.notes:
            lines += _wrapped("", note, width)
        return "\n".join([*lines, *([""] if self.notes else []), self.verdict])

    def __str__(self) -> str:
        return self.text()

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
        """A number that is none, or infinite, is null: JSON has no word for it."""
        found = self.to_dict()
        for finding in found["findings"]:
            finding["measured"] = finding["measured"] if math.isfinite(finding["measured"]) else None
        return json.dumps(found, indent=2, default=str)

    def save(self, path: str | Path) -> Path:
        """As one page without any other file; as JSON if the name ends so."""
        from normkit.doctor.page import render
        from normkit.loading.writing import write

        path = Path(path)
        return write(path, self.to_json() if path.suffix == ".json" else render(self))

    def _repr_html_(self) -> str:
        from normkit.doctor.page import body, style

        return f"<style>{style('.normkit-doctor')}</style><div class='normkit-doctor'>{body(self)}</div>"

    def fix(self) -> Edits:
        """Make all safe fixes, in place: all or nothing. The edits say what they are, and can be undone."""
        edits = Edits(list(dict.fromkeys(f.edit for f in self.findings if f.edit is not None)))
        edits.apply()
        return edits


def grouped(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings that differ only in the number of their layer, together."""
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        key = (finding.code, finding.severity, folded(finding.where), folded(finding.fix))
        alike.setdefault(key, []).append(finding)
    return list(alike.values())


def where_of(group: Sequence[Finding]) -> str:
    """The path of one, or what their paths have in common and how many they are."""
    first = group[0].where or "(the model)"
    return first if len(group) == 1 else f"{folded(first)} ({len(group)} of them)"


def measured_of(group: Sequence[Finding]) -> str:
    """The number of one; of several, the smallest and the largest."""
    low, high = (f"{pick(f.measured for f in group):.4g}" for pick in (min, max))
    return low if low == high else f"{low} to {high}"


def code_of(line: str) -> str:
    """What stands there: "file.py:12" -> "x = self.norm(x)"; nothing if it cannot be read."""
    file, _, number = line.rpartition(":")
    return linecache.getline(file, int(number)).strip() if number.isdigit() else ""


def table_lines(table: str, width: int) -> list[str]:
    """Its lines; if one is too long, nearer to the margin; what is too long even there has its path below."""
    title, *rows = table.splitlines()
    if any(len(row) > width for row in rows):
        margin = min(len(row) - len(row.lstrip()) for row in rows if row.lstrip()[:1].isdigit()) - 2
        rows = [row[margin:] if row.startswith(" " * margin) else row for row in rows]
    lines = [title]
    for row in rows:
        head, _, path = row.rpartition("  ")
        if len(row) <= width:
            lines.append(row)
        elif head.strip():
            lines += [head.rstrip(), " " * max(2, min(8, width - len(path))) + path]
        else:
            lines += _wrapped("  ", row.strip(), width)
    return lines


def _said(group: Sequence[Finding], width: int) -> list[str]:
    first = group[0]
    lines = [f"{first.severity} {first.code} {first.name}: {where_of(group)}"]
    lines += _wrapped("    ", first.message, width)
    lines += _wrapped("    measured   ", measured_of(group), width)
    lines += _wrapped("    expected   ", first.expected, width)
    lines += _wrapped("    fix        ", first.fix, width)
    if first.is_fixable:
        lines.append("               (a safe one: report.fix() makes it)")
    if first.line:
        lines.append(f"    called at  {_near(first.line, width - 15)}")
        code = code_of(first.line)
        lines += [f"               {code[: max(20, width - 15)]}"] if code else []
    return lines


def _wrapped(label: str, words: str, width: int) -> list[str]:
    return textwrap.wrap(
        words,
        max(width, len(label) + 20),
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _near(line: str, room: int) -> str:
    """A place as seen from here; of a library, if there is no room, from its own folder on."""
    file, _, number = line.rpartition(":")
    with contextlib.suppress(ValueError, OSError):
        file = str(Path(file).relative_to(Path.cwd()))
    if len(file) + len(number) >= room:
        file = file.rpartition("site-packages/")[2]
    return f"{file}:{number}"

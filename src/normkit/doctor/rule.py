"""A rule of the doctor: a code, a name that is the defect, how bad it is, and a check."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType

from normkit.doctor.case import Case
from normkit.doctor.report import Finding
from normkit.inspect.edit import Edit
from normkit.inspect.sites import Site

__all__ = ["Found", "Rule", "at"]


@dataclass(frozen=True)
class Found:
    """What a check yields: a finding without what its rule knows. ``severity`` if it is not the rule's."""

    where: str
    measured: float
    expected: str
    message: str
    fix: str
    line: str = ""
    severity: str | None = None
    edit: Edit | None = None


def at(site: Site, measured: float, expected: str, message: str, fix: str, **more: object) -> Found:
    """A finding about a norm."""
    return Found(site.path, measured, expected, message, fix, site.line, **more)  # type: ignore[arg-type]  # Found's


@dataclass(frozen=True)
class Rule:
    code: str
    name: str
    severity: str
    module: ModuleType  # its page, and ``check(case)``

    @property
    def check(self) -> Callable[[Case], Iterator[Found]]:
        found: Callable[[Case], Iterator[Found]] = self.module.check
        return found

    @property
    def page(self) -> str:
        """What it finds, why it matters, an example, the fix, references."""
        return f"{self.code} {self.name} ({self.severity})\n\n{inspect.cleandoc(self.module.__doc__ or '')}"

    def findings(self, case: Case) -> Iterator[Finding]:
        for found in self.check(case):
            yield Finding(
                code=self.code,
                name=self.name,
                severity=found.severity or self.severity,
                where=found.where,
                measured=found.measured,
                expected=found.expected,
                message=found.message,
                fix=found.fix,
                line=found.line,
                edit=found.edit,
            )

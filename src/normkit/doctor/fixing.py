"""The safe fixes of a report, made rule by rule, each verified by a run of the model, and told in words."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from normkit.doctor.report import Finding, Report
from normkit.errors import NormkitError
from normkit.inspect.edit import Edit, Edits
from normkit.inspect.sites import folded

__all__ = ["make_fixes"]

# Rules whose fix must leave every output as it is, to rounding. The others are there to change it.
UNCHANGED = {"NK501", "NK601"}
ROUNDING = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def make_fixes(report: Report, batch: Any = None) -> list[str]:
    """What was changed, a line each. A fix that changes what it must not is undone, and the line says so."""
    by_rule: dict[str, list[Finding]] = {}
    for finding in report.findings:
        if finding.edit is not None:
            by_rule.setdefault(finding.code, []).append(finding)
    said: list[str] = []
    for code, findings in by_rule.items():
        said += _fix(code, [f.edit for f in findings if f.edit is not None], report.inspection.model, batch)
    return said


def _fix(code: str, edits: list[Edit], model: nn.Module, batch: Any) -> list[str]:
    together = Edits(list(dict.fromkeys(edits)))
    limit = _rounding(model) if code in UNCHANGED else math.inf
    try:
        off = together.verify(model, batch, tolerance=limit)
    except NormkitError as error:
        return [f"{code} was not fixed: {str(error).partition(chr(10))[0]}"]
    if any(p.is_meta for p in model.parameters()):
        compared = "on the meta device there are no outputs to compare"
    elif code in UNCHANGED:
        compared = f"verified, the outputs are the same to {off:.1g} of the largest"
    else:
        compared = f"the outputs differ by {off:.2g} of the largest from those before"
    return [*_said(together), f"{code}: {compared}."]


def _said(edits: Edits) -> list[str]:
    """Changes that differ only in the number of their layer, once."""
    alike: dict[str, list[Edit]] = {}
    for edit in edits:
        alike.setdefault(folded(str(edit)), []).append(edit)
    return [
        str(same[0]) if len(same) == 1 else f"{text} ({len(same)} of them)" for text, same in alike.items()
    ]


def _rounding(model: nn.Module) -> float:
    dtypes = {p.dtype for p in model.parameters()} | {torch.float32}
    return max(ROUNDING.get(dtype, 0.0) for dtype in dtypes)

"""A LayerNorm where the reference has an RMSNorm, or the reverse.

What it finds: against a reference, a norm that subtracts the mean and one that does not; or a bias, running
statistics, a gate or an unbiased variance that only one has.

Why it matters: with weights taken over, the model is another one in every layer.

Fix: the reference's norm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from normkit.doctor.case import Case
from normkit.doctor.rule import Found, at
from normkit.doctor.rules.against_reference import pairs
from normkit.inspect.inspection import described
from normkit.inspect.spec import NormSpec


def check(case: Case) -> Iterator[Found]:
    for mine, theirs in pairs(case):
        a, b = mine.spec, theirs.spec
        differences = [
            a.centered != b.centered,
            a.bias != b.bias,
            a.running != b.running,
            a.gate != b.gate,
            not math.isclose(a.factor, b.factor, rel_tol=1e-3),
        ]
        if not any(differences):
            continue
        yield at(
            mine,
            float(sum(differences)),
            f"{_said(b)}, as in {theirs.path}",
            f"it is {_said(a)}, and the reference has {_said(b)}.",
            "use the norm of the reference.",
        )


def _said(spec: NormSpec) -> str:
    return described(spec) + (f", times {spec.factor:.4g}" if spec.factor != 1 else "")

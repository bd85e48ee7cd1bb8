"""The gain meets the number before or after it is rounded.

What it finds: against a reference, another order of cast and gain, or statistics in another dtype.

Why it matters: in bfloat16 a quarter of all numbers differ by one rounding. Llama rounds first
(after_cast), Gemma and T5's successors multiply first.

Fix: normkit.RMSNorm(..., multiply="after_cast") or "before_cast".
"""

from __future__ import annotations

from collections.abc import Iterator

from normkit.doctor.case import Case
from normkit.doctor.rule import Found, at
from normkit.doctor.rules.against_reference import pairs


def check(case: Case) -> Iterator[Found]:
    for mine, theirs in pairs(case):
        a, b = mine.spec, theirs.spec
        same = a.multiply == b.multiply or None in (a.multiply, b.multiply)
        if same and (a.statistics == b.statistics or None in (a.statistics, b.statistics)):
            continue
        what = (a.multiply, b.multiply) if not same else (a.statistics, b.statistics)
        yield at(
            mine,
            0.25 if not same else 1.0,
            f"{what[1]}, as in {theirs.path}",
            f"the gain is applied {what[0]}, and in the reference {what[1]}: a quarter of bfloat16 differ."
            if not same
            else f"statistics are taken in {what[0]}, and in the reference in {what[1]}.",
            f"normkit.RMSNorm(..., multiply={what[1]!r})" if not same else f"take statistics in {what[1]}.",
        )

"""The gain meets the number before or after it is rounded.

What it finds: against a reference, another order of cast and gain, or statistics in another dtype.

Why it matters: in bfloat16 a quarter of all numbers differ by one rounding. Llama rounds first
(after_cast), Gemma and T5's successors multiply first.

Fix: normkit.RMSNorm(..., multiply="after_cast") or "before_cast".
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from normkit.doctor.case import Case
from normkit.doctor.probing import share_that_differs
from normkit.doctor.rule import Found, at
from normkit.doctor.rules.against_reference import pairs

LARGE = 500.0  # its square leaves the range of float16


def check(case: Case) -> Iterator[Found]:
    for mine, theirs in pairs(case):
        a, b = mine.spec, theirs.spec
        same = a.multiply == b.multiply or None in (a.multiply, b.multiply)
        if same and (a.statistics == b.statistics or None in (a.statistics, b.statistics)):
            continue
        if not same:
            share = share_that_differs(mine, theirs, torch.bfloat16, 1.0)
            yield at(
                mine,
                share,
                f"{b.multiply}, as in {theirs.path}",
                f"the gain is applied {a.multiply}, and in the reference {b.multiply}: {share:.0%} of all "
                "numbers differ in bfloat16.",
                f"normkit.RMSNorm(..., multiply={b.multiply!r})",
            )
        else:
            share = share_that_differs(mine, theirs, torch.float16, LARGE)
            yield at(
                mine,
                share,
                f"{b.statistics}, as in {theirs.path}",
                f"statistics are taken in {a.statistics}, in the reference in {b.statistics}: {share:.0%} "
                f"of all numbers differ in float16, for inputs of {LARGE:g}.",
                f"take statistics in {b.statistics}.",
            )

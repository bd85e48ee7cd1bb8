"""A norm that is in the model and is never called.

What it finds: a norm whose module ran on the batch without it, and whose weights nobody else read. Norms of parts that
the batch did not reach at all (an image tower on text alone) are not counted.

Why it matters: it was meant to be called. Its weights are trained by weight decay alone, it fails DDP's check of unused
parameters, and the model computes something else than its configuration says.

Example:
    self.norm2 = nn.LayerNorm(dim)                 # in __init__, and never in forward

Fix: call it, or delete it.
"""

from __future__ import annotations

from collections.abc import Iterator

from normkit.doctor.case import Case
from normkit.doctor.rule import Found


def check(case: Case) -> Iterator[Found]:
    for unused in case.inspection.unused:
        if unused.owner_ran:
            yield Found(
                where=unused.path,
                measured=0,
                expected="one call at least",
                message=f"{unused.name} was called 0 times on the batch, while the module that holds it ran.",
                fix="call it in forward, or delete it.",
            )

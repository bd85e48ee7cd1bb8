"""A norm stands in another place than in the reference.

What it finds: against a reference, a norm with another place in the residual stream, or another number of
norms.

Why it matters: Pre-LN and Post-LN have the same weights. A checkpoint of one loads into the other without
an error.

Fix: the reference's placement.
"""

from __future__ import annotations

from collections.abc import Iterator

from normkit.doctor.case import Case
from normkit.doctor.rule import Found, at
from normkit.doctor.rules.against_reference import pairs
from normkit.inspect.sites import PLACES


def check(case: Case) -> Iterator[Found]:
    for mine, theirs in pairs(case):
        if mine.place == theirs.place:
            continue
        yield at(
            mine,
            1.0,
            f"{theirs.place}, as {theirs.path}",
            f"its place is {mine.place} ({PLACES[mine.place]}), and in the reference {theirs.place}.",
            "use the placement of the reference.",
        )
    if case.reference is not None and len(case.sites) != len(case.reference.sites):
        have, want = len(case.sites), len(case.reference.sites)
        names = {s.path for s in case.reference.sites} ^ {s.path for s in case.sites}
        yield Found(
            where=min(names, default=""),
            measured=float(have),
            expected=f"{want} norms",
            message=f"{have} norms are called, and {want} in the reference.",
            fix="add or remove the norms that only one of them has: " + ", ".join(sorted(names)[:4]),
        )

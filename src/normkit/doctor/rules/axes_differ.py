"""Other numbers share a mean than in the reference.

What it finds: against a reference, a norm over other axes, other groups, or another number of features:
queries and keys normalised for each head or over the whole width, groups ignored.

Why it matters: shapes often fit either way, since a gain of one head can be broadcast.

Fix: the reference's axes.
"""

from __future__ import annotations

from collections.abc import Iterator

from normkit.doctor.case import Case
from normkit.doctor.rule import Found, at
from normkit.doctor.rules.against_reference import pairs


def check(case: Case) -> Iterator[Found]:
    for mine, theirs in pairs(case):
        a, b = mine.spec, theirs.spec
        if (a.axes, a.groups, mine.group_size) == (b.axes, b.groups, theirs.group_size):
            continue
        yield at(
            mine,
            float(mine.group_size),
            f"{theirs.group_size:,} numbers for each mean, as in {theirs.path}",
            f"{mine.group_size:,} numbers share one mean (axes {list(a.axes)}, groups {a.groups or 1}), and "
            f"in the reference {theirs.group_size:,} (axes {list(b.axes)}, groups {b.groups or 1}).",
            "normalise over the axes of the reference, and reshape to heads or groups first where it does.",
        )

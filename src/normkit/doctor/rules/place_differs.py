"""A norm stands in another place than in the reference.

What it finds: against a reference, a norm with another place in the residual stream, or of another sublayer,
or another number of norms.

Why it matters: Pre-LN and Post-LN have the same weights. A checkpoint of one loads into the other without
an error.

Fix: the reference's placement.
"""

from __future__ import annotations

from collections.abc import Iterator

from normkit.doctor.case import Case
from normkit.doctor.rule import Found, at
from normkit.doctor.rules.against_reference import difference, pairs
from normkit.inspect.sites import PLACES

STREAM = ("pre", "post", "out", "final", "stem", "qk", "v")
SUBLAYERS = {"attention", "feed_forward"}
SAME = 1e-5  # of the largest output: then it is the same place


def check(case: Case) -> Iterator[Found]:
    if case.reference is None:
        return
    for mine, theirs in pairs(case):
        changed = mine.path == theirs.path and {mine.branch, theirs.branch} == SUBLAYERS
        moved = mine.place != theirs.place and (mine.place in STREAM or theirs.place in STREAM)
        off = difference(case, mine, theirs)
        if off <= SAME or not (moved or (changed and mine.place in STREAM)):
            continue
        have, want = (f"{s.place} of {s.branch or 'no sublayer'}" for s in (mine, theirs))
        yield at(
            mine,
            off,
            f"{want}, as {theirs.path}; the same output",
            f"its place is {have} ({PLACES[mine.place]}), and in the reference {want}.",
            "use the placement of the reference.",
        )
    yield from _missing(case, case.reference)


def _missing(case: Case, reference: Case) -> Iterator[Found]:
    """Norms that only one of them calls."""
    have, want = len(case.sites), len(reference.sites)
    if have == want:
        return
    lines = {s.path: s.line for s in case.sites}
    others = {s.path for s in reference.sites}
    for path in sorted(lines.keys() ^ others) if lines.keys() & others else [""]:
        what = "only here" if path in lines else "only in the reference"
        yield Found(
            where=path,
            measured=float(have),
            expected=f"{want} norms",
            message=f"{have} norms are called, and {want} in the reference"
            + (f"; this one {what}." if path else "."),
            fix="add or remove the norms that only one of them has.",
            line=lines.get(path, ""),
        )

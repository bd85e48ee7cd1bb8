"""eps is another one than the reference's.

What it finds: against a reference, a norm with another eps, or with eps outside of the root.

Why it matters: where variances are small (early training, some layers of large models), eps decides the
scale. 1e-5 for 1e-6 has made ports of models differ in the third digit.

Fix: take eps from the reference's config.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from normkit.doctor.case import Case
from normkit.doctor.rule import Found, at
from normkit.doctor.rules.against_reference import pairs


def check(case: Case) -> Iterator[Found]:
    for mine, theirs in pairs(case):
        a, b = mine.spec, theirs.spec
        if not math.isclose(a.factor, b.factor, rel_tol=1e-3):
            continue  # another variance, to which eps is added in another measure
        if math.isclose(a.eps, b.eps, rel_tol=1e-3, abs_tol=1e-14) and a.eps_in_root == b.eps_in_root:
            continue
        where = (
            ""
            if a.eps_in_root == b.eps_in_root
            else f", and {'in' if b.eps_in_root else 'outside of'} the root"
        )
        yield at(
            mine,
            a.eps,
            f"{b.eps:g}{where}, as in {theirs.path}",
            f"eps is {a.eps:g}, and the reference has {b.eps:g}{where}.",
            f"eps={b.eps:g}",
        )

"""A few numbers of the stream are a thousand times as large as the others.

What it finds: a residual sum with a number above 100 that is 1,000 times the median or more.

Why it matters: large models have them by themselves, at the first token and in few features; attention
needs them. They make quantisation hard, and low precision. Do not clip them: that harms the model.

Fix: nothing, unless you quantise: then keep those features wide.

References: Sun et al. 2024, arXiv:2402.17762; on clipping, arXiv:2601.22966.
"""

from __future__ import annotations

from collections.abc import Iterator

from normkit.doctor.case import Case
from normkit.doctor.rule import Found

LARGE, RATIO = 100.0, 1000.0


def check(case: Case) -> Iterator[Found]:
    for r in case.residuals:
        found = case.seen.measures.get(r.node)
        if found is None or not found.largest > LARGE or found.largest < RATIO * found.median:
            continue
        node = case.inspection.graph.nodes[r.node]
        ratio = found.largest / max(found.median, 1e-30)
        yield Found(
            where=node.module,
            measured=found.largest,
            expected=f"below {LARGE:.0f}, or below {RATIO:,.0f} x the median ({found.median:.3g})",
            message=f"the largest number of the stream is {ratio:,.0f} x its median.",
            fix="none is needed; keep these features wide when you quantise, and do not clip them.",
            line=node.line,
        )

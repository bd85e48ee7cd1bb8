"""Gradients, or what layers add, are of very different sizes.

What it finds: the gradient at the first residual sum is more than 10 times, or less than a tenth, of that
at the last; or a sublayer adds less than 1 % of what is there.

Why it matters: one learning rate then fits some layers only; a sublayer that adds nothing has not been
trained, or cannot be.

Fix: look at the placement: Pre-LN has 1.8 to 3.7 between first and last at the start, Post-LN 0.7 to 1.2.

References: Xiong et al. 2020, arXiv:2002.04745.
"""

from __future__ import annotations

from collections.abc import Iterator

from normkit.doctor.case import Case
from normkit.doctor.rule import Found

LOW, HIGH, LITTLE = 0.1, 10.0, 0.01


def check(case: Case) -> Iterator[Found]:
    graph = case.inspection.graph
    stream = [] if case.gradients is None else case.gradients.stream
    if len(stream) > 1 and stream[-1][1] > 0:
        ratio = stream[0][1] / stream[-1][1]
        if not LOW <= ratio <= HIGH:
            yield Found(
                where=graph.nodes[stream[0][0]].module,
                measured=ratio,
                expected=f"between {LOW:g} and {HIGH:g}",
                message=f"the gradient at the first residual sum is {ratio:.3g} x that at the last.",
                fix="look at the placement and the initial scale; warm up the learning rate.",
                line=case.line(stream[0][0]),
            )
    for r in case.residuals:
        found = case.seen.measures.get(r.node)
        added = [found.terms[b] for b in r.branches if b in found.terms] if found is not None else []
        if found is None or not added or not found.rms > 0:
            continue
        share = max(added) / found.rms
        if share < LITTLE:
            yield Found(
                where=graph.nodes[r.node].module,
                measured=share,
                expected=f"{LITTLE:g} of the stream, or more",
                message=f"the {r.kind.replace('_', '-')} sublayer adds {share:.2g} of the stream (by rms).",
                fix="fine at the start of training if it was meant so (zero-init); else look at its scale.",
                line=case.line(r.node),
            )

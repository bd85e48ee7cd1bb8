"""The residual stream grows from layer to layer.

What it finds: eight layers or more after the second in which the stream grows by more than 15 % each.

Why it matters: late layers then add little beside what is there, and numbers get large. A Pre-LN stream
always grows somewhat; it is a matter of degree.

Fix: scale the initial weights of what is added by 1/sqrt(2 · depth); or a norm behind each sublayer
(Peri-LN), LayerNorm Scaling, LayerScale.

References: Kim et al. 2025, arXiv:2502.02732; Sun et al. 2025, arXiv:2502.05795.
"""

from __future__ import annotations

from collections.abc import Iterator

from normkit.doctor.case import Case
from normkit.doctor.rule import Found
from normkit.inspect.graph import block_of

GROWTH, LAYERS, AFTER = 1.15, 8, 2


def check(case: Case) -> Iterator[Found]:
    graph = case.inspection.graph
    ends: dict[str, int] = {}
    for r in case.residuals:
        module = graph.nodes[r.node].module
        if r.node in case.seen.measures:
            ends[block_of(module) or module or str(r.node)] = r.node
    sizes = [(node, case.seen.measures[node].rms) for node in ends.values()]
    grown = [
        (node, after / before)
        for (_, before), (node, after) in zip(sizes[AFTER - 1 :], sizes[AFTER:], strict=False)
        if before > 0
    ]
    if sum(ratio > GROWTH for _, ratio in grown) >= LAYERS:
        node, largest = max(grown, key=lambda pair: pair[1])
        total = sizes[-1][1] / max(sizes[0][1], 1e-30)
        yield Found(
            where=graph.nodes[node].module,
            measured=largest,
            expected=f"at most {GROWTH:g} in all but {LAYERS - 1} layers",
            message=f"{sum(r > GROWTH for _, r in grown)} of {len(grown)} layers let the stream grow by more "
            f"than {GROWTH - 1:.0%}; from the first to the last it grows {total:.3g} x.",
            fix="start what is added smaller (weights / sqrt(2 · depth)); or use Peri-LN, LayerNorm Scaling.",
            line=case.line(node),
        )

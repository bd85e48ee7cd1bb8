"""Squares leave the range of float16.

What it finds: a norm that squares in float16: its output is wrong for inputs of some hundreds, which other
layers reach. And a stream in float16 that is within a factor of 8 of the largest number there is.

Why it matters: 256 squared is inf in float16. The norm then gives 0, silently: no NaN, no exception, a dead
token.

Example:
    x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)  # x is float16

Fix: statistics in float32; for the stream, bfloat16.

References: huggingface/transformers, T5 in float16; Micikevicius et al. 2018, arXiv:1710.03740.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from normkit.doctor.case import Case
from normkit.doctor.repair import in_float32
from normkit.doctor.rule import Found, at

STREAM = 8192.0


def check(case: Case) -> Iterator[Found]:
    for site in case.sites:
        if site.dtype == torch.float16 and site.spec.statistics == torch.float16:
            measures = case.measures(site)
            yield at(
                site,
                measures.largest if measures is not None else 500.0,
                "the right numbers for inputs up to 65,504",
                "it squares in float16: an input of 500 gives wrong numbers"
                + (
                    f"; the largest on this batch is {measures.largest:.4g}." if measures is not None else "."
                ),
                "take its statistics in float32: normkit.swap(model), or x.float() inside of it.",
                edit=in_float32(case, site),
            )
    for r in case.residuals:
        node, found = case.inspection.graph.nodes[r.node], case.seen.measures.get(r.node)
        if node.dtype == torch.float16 and found is not None and found.largest > STREAM:
            yield Found(
                where=node.module,
                measured=found.largest,
                expected=f"at most {STREAM:,.0f} in float16",
                message=f"the residual stream reaches {found.largest:,.0f}; float16 ends at 65,504.",
                fix="run it in bfloat16, or keep the stream in float32.",
                line=node.line,
            )

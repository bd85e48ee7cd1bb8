"""One number, or none, shares a mean.

What it finds: a norm whose groups hold one element on this batch: InstanceNorm or GroupNorm on a 1 x 1 map, as many
groups as channels on vectors, a LayerNorm over an axis of size 1.

Why it matters: a number minus its own mean is 0. The layer gives its bias whatever it reads, and no gradient passes.

Example:
    nn.GroupNorm(64, 64)(torch.randn(8, 64))       # 64 groups of one number

Fix: fewer groups, or a LayerNorm there.

References: Wu & He 2018, arXiv:1803.08494.
"""

from __future__ import annotations

from collections.abc import Iterator

from normkit.doctor.case import Case
from normkit.doctor.rule import Found, at


def check(case: Case) -> Iterator[Found]:
    for site in case.sites:
        if site.group_size > 1 or 0 in site.shape or (site.spec.running and not site.training):
            continue
        what = "its bias" if site.spec.bias else "0" if site.spec.centered else "the sign of its input"
        yield at(
            site,
            float(site.group_size),
            "two numbers or more for each mean",
            f"each mean is over {site.group_size} number on an input of shape {list(site.shape)}: "
            f"the output is {what}, whatever comes in.",
            "use fewer groups, or a norm over the features.",
        )

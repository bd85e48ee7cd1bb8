"""One number, or none, shares a mean.

What it finds: a norm whose groups hold one element on this batch: InstanceNorm or GroupNorm on a 1 x 1 map,
as many groups as channels on vectors, a LayerNorm over an axis of size 1.

Why it matters: a number minus its own mean is 0. The layer gives its bias whatever it reads, and no
gradient passes.

Example:
    nn.GroupNorm(64, 64)(torch.randn(8, 64))       # 64 groups of one number

Fix: fewer groups, or a LayerNorm there.

References: Wu & He 2018, arXiv:1803.08494.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from normkit.doctor.case import Case
from normkit.doctor.rule import Found, at
from normkit.inspect.record import NotNorm
from normkit.inspect.spec import ALONE, CONSTANT, NotANormError, bare_copy, call


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
    for path, found in case.inspection.trace.not_norms.items():
        gives = _collapsed(found)
        if gives is not None:
            yield Found(
                where=path,
                measured=1.0,
                expected="two numbers or more for each mean",
                message=f"each mean is over 1 number on an input of shape {list(found.shape)}: "
                f"the output is {gives}, whatever comes in.",
                fix="use fewer groups, or a norm over the features.",
                line=found.line,
            )


@torch.no_grad()
def _collapsed(found: NotNorm) -> str | None:
    """What it gives, if no number depends on another, nor on its own size."""
    if found.reason not in (ALONE, CONSTANT):
        return None
    generator = torch.Generator("cpu").manual_seed(0)
    x, other = (
        torch.randn(found.shape, generator=generator, dtype=torch.float64, device="cpu") for _ in range(2)
    )
    try:
        bare = bare_copy(found.module)
        one, larger, another = (call(bare, t * 1e3) for t in (x, x.sign() * (x.abs() + 1), other))
    except NotANormError:
        return None
    if torch.allclose(one, another, rtol=1e-4, atol=1e-6):
        return "its bias, or 0"
    return "the sign of its input" if torch.allclose(one, larger, rtol=1e-4, atol=1e-6) else None

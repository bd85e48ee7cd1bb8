"""eps is as large as the variance it should only guard.

What it finds: an eps of 0.01 or more, one that is True (a flag in the wrong position), or one above the
variance that the norm sees on this batch.

Why it matters: such a norm does not normalise. Its output follows the scale of its input, and half of it is
eps.

Example:
    nn.LayerNorm(dim, True)                # meant elementwise_affine; eps is 1

Fix: 1e-5 or 1e-6, by keyword.

References: Zhang & Sennrich 2019, arXiv:1910.07467.
"""

from __future__ import annotations

from collections.abc import Iterator

from normkit.doctor.case import Case
from normkit.doctor.rule import Found, at
from normkit.inspect.sites import Site

LARGE, USUAL = 1e-2, 1e-4


def check(case: Case) -> Iterator[Found]:
    for site in case.sites:
        eps = site.spec.eps
        severity = None
        is_flag = any(type(v) is bool and "eps" in k for k, v in vars(site.module).items())
        measures = case.measures(site)
        seen = (
            measures.variance
            if measures is not None and not (site.spec.running and not site.training)
            else None
        )
        limit = seen if site.spec.eps_in_root or seen is None else seen**0.5
        if eps >= LARGE or is_flag:
            why = "it is a bool: a flag in the position of eps" if is_flag else f"it is {eps:g}"
        elif limit is not None and 0 < limit < eps and not case.is_synthetic and not site.spec.running:
            why = f"it is {eps:g}, and the variance of what it reads {limit:.3g}"
            # Fresh weights are small, and so is what they give: that passes by itself.
            fresh = eps < USUAL and bool(case.inspection.graph.through[site.nodes[0]]) and _is_fresh(site)
            severity = "info" if fresh else None
        else:
            continue
        yield at(
            site,
            eps,
            f"an eps below {LARGE:g} and below the variance; 1e-5 and 1e-6 are usual",
            f"eps is no guard here: {why}.",
            "write eps=1e-5, by keyword; where inputs are that small, scale them up first.",
            severity=severity,
        )


def _is_fresh(site: Site) -> bool:
    """Its parameters are what they start as: one number everywhere."""
    return all(bool((p == p.reshape(-1)[0]).all()) for p in site.module.parameters() if p.numel())

"""Padding changes what real tokens get.

What it finds: a norm whose means go across tokens, on a batch with padding: when the padding is replaced by
something else, the outputs at real tokens change. The norm is called again on a copy, with what it was
called with.

Why it matters: results depend on how long the other samples of the batch are. It trains on padding, and the
same sentence gets another answer in another batch.

Example:
    nn.BatchNorm1d(64)(x.transpose(1, 2))          # x has padding

Fix: a norm that takes a mask: normkit.BatchNorm1d(64, axis=-1)(x, mask=mask); or LayerNorm.

References: docs/which-norm.md; Shen et al. 2020, arXiv:2003.07845.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from normkit.doctor.case import Case
from normkit.doctor.probing import call_again
from normkit.doctor.rule import Found, at
from normkit.inspect.sites import Site

LEAK = 1e-4  # of the largest output


def check(case: Case) -> Iterator[Found]:
    if case.mask is None:
        return
    for site in case.sites:
        x = case.seen.inputs.get(site.nodes[0])
        real = _positions(case.mask, site)
        if x is None or real is None or x.is_meta:
            continue
        leak = _leak(case, site, x, real.to(x.device))
        if leak is not None and leak > LEAK:
            yield at(
                site,
                leak,
                f"0: at most {LEAK:g} of the largest output",
                f"other numbers in the padding move the outputs at real tokens by {leak:.3g} of the largest.",
                "use a norm that takes a mask, normkit.BatchNorm1d(c, axis=-1)(x, mask=mask), or LayerNorm.",
            )


def _positions(mask: Tensor, site: Site) -> Tensor | None:
    """The mask, on the axes of the norm's input: (batch, length, ...) or (batch, features, length)."""
    rows, length = mask.shape
    shape = site.shape
    if len(shape) < 2 or shape[0] != rows:
        return mask.reshape(-1) if shape and shape[0] == rows * length else None
    axes = [a for a in range(1, len(shape)) if shape[a] == length]
    if len(axes) != 1:
        axes = [a for a in axes if a - len(shape) in site.spec.axes][:1]
    if not axes:
        return None
    return mask.reshape([rows if a == 0 else length if a == axes[0] else 1 for a in range(len(shape))])


def _leak(case: Case, site: Site, x: Tensor, real: Tensor) -> float | None:
    while real.ndim < x.ndim:
        real = real.unsqueeze(-1)
    generator = torch.Generator("cpu").manual_seed(0)
    noise = torch.randn(x.shape, generator=generator, dtype=torch.float32).to(x) * (1 + 3 * x.abs().max())
    before = call_again(case, site, x)
    after = call_again(case, site, torch.where(real, x, noise))
    if before is None or after is None:
        return None
    keep = real.expand(x.shape)
    off = (after - before).abs()[keep]
    size = before.abs()[keep]
    return float(off.max() / size.max().clamp_min(1e-12)) if off.numel() else None

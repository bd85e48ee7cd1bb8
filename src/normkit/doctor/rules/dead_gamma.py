"""A gain that is 0 and gets no gradient.

What it finds: a gain (or 1 + w) below 1e-6 in all channels, or in some, whose gradient is 0 as well. It
needs a loss.

Why it matters: zero gains are a good start where a gradient wakes them (the last norm of a residual
branch). Without one they stay 0: behind a ReLU that sees exactly 0, or when they were frozen by mistake.

Example:
    nn.init.zeros_(norm.weight); F.relu(norm(x))       # with a bias of 0: relu'(0) = 0

Fix: start the gain at 1, or the bias above 0.

References: Goyal et al. 2017, arXiv:1706.02677 (zero gains that do get a gradient).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from normkit.doctor.case import Case
from normkit.doctor.rule import Found, at

SMALL = 1e-6


def check(case: Case) -> Iterator[Found]:
    if case.gradients is None:
        return
    for site in case.sites:
        if site.is_function or site.spec.gain is None:
            continue
        name, gain = next(((n, p) for n, p in site.module.named_parameters() if "bias" not in n), ("", None))
        if gain is None or gain.is_meta:
            continue
        here = gain.to_local() if hasattr(gain, "to_local") else gain  # of a shard, what is here
        effective = here.detach() + 1 if site.spec.gain == "1 + w" else here.detach()
        largest = case.gradients.parameters.get(f"{site.path}.{name}")
        still = case.gradients.zeros.get(f"{site.path}.{name}")
        if still is None or still.shape != effective.shape:
            still = torch.full_like(effective, not largest, dtype=torch.bool)
        dead = int(((effective.abs() < SMALL) & still.to(effective.device)).sum())
        if dead < max(1, effective.numel() // 2):
            continue
        if largest is None and here is not gain:
            continue  # the gradient of a loss stops at the whole tensors that shards were gathered into
        yield at(
            site,
            float(effective.abs().double().median()),
            "a gain, or a gradient, that is not 0",
            f"{dead} of {effective.numel()} gains are below {SMALL:g}, and their gradient is "
            + ("0." if largest is not None else "not computed: they are frozen."),
            "start the gain at 1; or make sure that what reads it passes a gradient at 0.",
        )

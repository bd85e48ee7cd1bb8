"""BatchNorm in training, over few numbers.

What it finds: fewer than 32 values for each channel on this batch, in training mode.

Why it matters: mean and variance of few numbers are noise (the variance of 8 numbers is off by half, typically), the
noise is trained on, and what evaluation uses is something else.

Example:
    nn.BatchNorm1d(256)(torch.randn(4, 256))

Fix: SyncBatchNorm over several devices, a larger batch, or GroupNorm or LayerNorm, which do not depend on it.

References: Wu & He 2018, arXiv:1803.08494; Ioffe 2017, arXiv:1702.03275.
"""

from __future__ import annotations

from collections.abc import Iterator

from normkit.doctor.case import Case
from normkit.doctor.rule import Found, at

LEAST = 32


def check(case: Case) -> Iterator[Found]:
    for site in case.sites:
        if case.is_synthetic or not site.spec.running or not site.training or not 1 < site.group_size < LEAST:
            continue
        yield at(
            site,
            float(site.group_size),
            f"{LEAST} values for each channel, or more",
            f"each channel's mean and variance come from {site.group_size} values.",
            "use a larger batch, normkit.SyncBatchNorm over all devices, or normkit.GroupNorm.",
        )

"""BatchNorm in training, over few numbers.

What it finds: fewer than 32 values for each channel on this batch, in training mode. Where most of the
model's BatchNorms have enough, and only those on the smallest maps do not, it is information: the images
may be small ones to try it with.

Why it matters: mean and variance of few numbers are noise (the variance of 8 numbers is off by half,
typically), the noise is trained on, and what evaluation uses is something else.

Example:
    nn.BatchNorm1d(256)(torch.randn(4, 256))

Fix: SyncBatchNorm over several devices, a larger batch, or GroupNorm or LayerNorm, which do not depend on
it.

References: Wu & He 2018, arXiv:1803.08494; Ioffe 2017, arXiv:1702.03275.
"""

from __future__ import annotations

from collections.abc import Iterator

from normkit.doctor.case import Case
from normkit.doctor.rule import Found, at

LEAST = 32


def check(case: Case) -> Iterator[Found]:
    moving = [site for site in case.sites if site.spec.running and site.training]
    small = [site for site in moving if 1 < site.group_size < LEAST]
    for site in small if not case.is_synthetic else ():
        yield at(
            site,
            float(site.group_size),
            f"{LEAST} values for each channel, or more",
            f"each channel's mean and variance come from {site.group_size} values.",
            "use a larger batch, normkit.SyncBatchNorm over all devices, or normkit.GroupNorm.",
            severity=None if 2 * len(small) >= len(moving) else "info",
        )

"""BatchNorm's momentum in another framework's convention.

What it finds: a momentum of 0.9 or more. In evaluation mode, where it has no effect, that is information.

Why it matters: in PyTorch momentum is the share of the new batch, 0.1; in TensorFlow and in most papers it
is the share that is kept, 0.9 or 0.99. Taken over as it is, the running statistics are those of the last
batch.

Example:
    nn.BatchNorm2d(64, momentum=0.99)

Fix: 1 minus it.

References: pytorch/vision#8250 (MaxViT); torch.nn.BatchNorm2d's own note; Ioffe & Szegedy 2015,
arXiv:1502.03167.
"""

from __future__ import annotations

from collections.abc import Iterator

from normkit.doctor.case import Case
from normkit.doctor.rule import Found, at

LARGE = 0.9


def check(case: Case) -> Iterator[Found]:
    for site in case.sites:
        momentum = getattr(site.module, "momentum", None)
        if not site.spec.running or not isinstance(momentum, (int, float)) or momentum < LARGE:
            continue
        yield at(
            site,
            float(momentum),
            f"below {LARGE:g}; torch's default is 0.1, the share of the new batch",
            f"a momentum of {momentum:g} keeps {1 - momentum:.3g} of what was learnt before at every step.",
            f"momentum={1 - momentum:.3g}, if it was meant as the share that is kept.",
            severity=None if site.training else "info",
        )

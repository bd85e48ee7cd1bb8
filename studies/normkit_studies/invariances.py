"""Which changes does a norm not notice?

Question: Data go through a linear map into a norm. Which re-scalings and re-centrings of the data and of
the weights leave the output as it is?

Hypothesis: The table of Ba et al. 2016 (arXiv:1607.06450) for BatchNorm and LayerNorm, and that of Zhang
& Sennrich 2019 (arXiv:1910.07467) for RMSNorm: eleven cells of eighteen are invariant, and the other
seven are not.

Method: Six transforms, three norms, float64, without eps. A cell is invariant if the output changes by
less than 1e-10, and sensitive if by more than 1e-2.

Refuted if: any of the eighteen cells differs from the published tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from normkit import functional as F
from normkit.lab.design import Plot, Rule, Study, grid

Pair = tuple[Tensor, Tensor]


def _ramp(low: float, high: float, size: int) -> Tensor:
    return torch.linspace(low, high, size, dtype=torch.float64)


TRANSFORMS: dict[str, Callable[[Tensor, Tensor], Pair]] = {
    "weight matrix re-scaling": lambda x, w: (x, 3.7 * w),
    "weight matrix re-centring": lambda x, w: (x, w + _ramp(-1, 1, w.shape[0])[:, None]),
    "weight vector re-scaling": lambda x, w: (x, w * _ramp(0.5, 2, w.shape[1])),
    "data re-scaling": lambda x, w: (3.7 * x, w),
    "data re-centring": lambda x, w: (x + _ramp(-1, 1, x.shape[1]), w),
    "single sample re-scaling": lambda x, w: (x * _ramp(0.5, 2, x.shape[0])[:, None], w),
}
NORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "BatchNorm": lambda z: F.batch_norm(z, None, None, training=True, eps=1e-30),
    "LayerNorm": lambda z: F.layer_norm(z, z.shape[1:], eps=0.0),
    "RMSNorm": lambda z: F.rms_norm(z, z.shape[1:], eps=0.0),
}
# The published tables: is it invariant?
PUBLISHED = {
    "weight matrix re-scaling": {"BatchNorm": True, "LayerNorm": True, "RMSNorm": True},
    "weight matrix re-centring": {"BatchNorm": False, "LayerNorm": True, "RMSNorm": False},
    "weight vector re-scaling": {"BatchNorm": True, "LayerNorm": False, "RMSNorm": False},
    "data re-scaling": {"BatchNorm": True, "LayerNorm": True, "RMSNorm": True},
    "data re-centring": {"BatchNorm": True, "LayerNorm": False, "RMSNorm": False},
    "single sample re-scaling": {"BatchNorm": False, "LayerNorm": True, "RMSNorm": True},
}


def run(cell: Mapping[str, Any]) -> dict[str, float]:
    generator = torch.Generator().manual_seed(cell["seed"])
    x, w = (torch.randn(s, dtype=torch.float64, generator=generator) for s in ((16, 5), (5, 7)))
    x2, w2 = TRANSFORMS[cell["transform"]](x, w)
    norm = NORMS[cell["norm"]]
    change = (norm(x @ w) - norm(x2 @ w2)).abs().max().item()
    published = PUBLISHED[cell["transform"]][cell["norm"]]
    matches = change < 1e-10 if published else change > 1e-2
    return {"change": change + 1e-17, "matches": float(matches)}


STUDY = Study(
    claims=(61, 66),
    cells=grid(transform=list(TRANSFORMS), norm=list(NORMS)),
    measure=run,
    rules=(
        Rule(
            "table",
            "All eighteen cells are as published",
            lambda r: sum(r.column("matches")),
            above=17.5,
            unit="cells",
        ),
    ),
    plots=(
        Plot(
            *("transform", "change", "norm"),
            "How much the output changes. Short bars are rounding: the norm does not notice.",
            kind="rows",
            log_y=True,
            y_title="largest change of the output",
        ),
    ),
    cheap=True,
)

"""Which changes does a norm not notice?

Question: Data go through a linear map into a norm. Which re-scalings and re-centrings of the data and of
the weights leave the output as it is?

Hypothesis: The table of Ba et al. 2016 (arXiv:1607.06450) for BatchNorm and LayerNorm, and that of Zhang
& Sennrich 2019 (arXiv:1910.07467) for RMSNorm: eleven cells of eighteen are invariant, and the other
seven are not.

Method: Six transforms, three norms, float64, without eps. A cell is invariant if the output changes by
less than 1e-10, and sensitive if by more than 1e-2. (An earlier version added 1e-17 to each change, so that
a figure could show it.)

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
    return {"change": change, "matches": float(matches)}


STUDY = Study(
    claims=(61,),
    cells=grid(transform=list(TRANSFORMS), norm=list(NORMS)),
    measure=run,
    kind="proved",
    scale="16 random vectors through a random linear map of 5 to 7 features, in float64",
    rules=(
        Rule(
            "table",
            "All eighteen cells are as published",
            lambda r: sum(r.column("matches")),
            above=17.5,
            unit="cells",
            yes="All norms ignore a new scale of the data or of all weights. Beyond that BatchNorm ignores "
            "a new scale of single weight vectors and a shift of the data, LayerNorm a shift of all weight "
            "vectors by the same vector and a new scale of single samples, RMSNorm that of single samples "
            "alone: as published, in {effect}.",
            no="The published tables do not hold in all of their eighteen cells, but in {effect}.",
        ),
    ),
    plots=(
        Plot(
            *("transform", "change", "norm"),
            "How much the output changes. Short bars, or none, are rounding: the norm does not notice.",
            kind="rows",
            log_y=True,
            y_title="largest change of the output",
        ),
    ),
    cheap=True,
    limits="Without eps, which a norm of data near 0 does notice; BatchNorm as in training.",
)

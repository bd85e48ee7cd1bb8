"""What norms are to each other, and to torch's.

Question: Is GroupNorm with one channel a group InstanceNorm, and with one group LayerNorm? Which
directions does a norm lose? Are our layers torch's?

Hypothesis: The statistics are the same to rounding; LayerNorm loses two directions (the mean and the
length), RMSNorm one; our layers give torch's numbers.

Method: Random images and vectors. Largest difference in float32; rank of the Jacobian in float64, by
singular values above 1e-9 of the largest; the share of its off-diagonal entries that are not zero.

Refuted if: a difference reaches 1e-5, or the ranks are not d - 2 and d - 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as T

from normkit import functional as F
from normkit.lab.studies.base import Plot, Rule, Study, grid

DIM = 12


def run(cell: Mapping[str, Any]) -> dict[str, float]:
    torch.manual_seed(cell["seed"])
    x = torch.randn(3, 6, 4, 5) * 2 + 1
    flat, vector = torch.randn(16, 32), torch.randn(DIM, dtype=torch.float64)

    def apart(a: torch.Tensor, b: torch.Tensor) -> float:
        return (a - b).abs().max().item()

    pairs = {
        "GroupNorm(C) and InstanceNorm": lambda: apart(F.group_norm(x, 6), F.instance_norm(x)),
        "GroupNorm(1) and LayerNorm": lambda: apart(F.group_norm(x, 1), F.layer_norm(x, (6, 4, 5))),
        "LayerNorm and torch's": lambda: apart(F.layer_norm(flat, (32,)), T.layer_norm(flat, (32,))),
        "RMSNorm and torch's": lambda: apart(F.rms_norm(flat, (32,)), T.rms_norm(flat, (32,))),
        "BatchNorm and torch's": lambda: apart(
            F.batch_norm(x, None, None, training=True), T.batch_norm(x, None, None, training=True)
        ),
        "GroupNorm and torch's": lambda: apart(F.group_norm(x, 3), T.group_norm(x, 3)),
    }
    if cell["what"] in pairs:
        return {"difference": pairs[cell["what"]]() + 1e-12}
    norm = F.layer_norm if cell["what"] == "LayerNorm" else F.rms_norm
    jacobian = torch.autograd.functional.jacobian(lambda v: norm(v, (DIM,), eps=0.0), vector)
    values = torch.linalg.svdvals(jacobian)
    others = jacobian[~torch.eye(DIM, dtype=torch.bool)]
    return {
        "lost": float((values < 1e-9 * values[0]).sum()),
        "coupled": (others.abs() > 1e-9).double().mean().item(),
    }


PAIRS = (
    *("GroupNorm(C) and InstanceNorm", "GroupNorm(1) and LayerNorm", "LayerNorm and torch's"),
    *("RMSNorm and torch's", "BatchNorm and torch's", "GroupNorm and torch's"),
)

STUDY = Study(
    claims=(1, 54, 64, 78, 81, 85),
    cells=grid(what=[*PAIRS, "LayerNorm", "RMSNorm"]),
    measure=run,
    rules=(
        Rule(
            "same",
            "The largest difference of all pairs is rounding",
            lambda r: max(r.column("difference")),
            below=1e-5,
        ),
        Rule(
            "layer-rank",
            "LayerNorm loses two directions",
            lambda r: r.get("lost", what="LayerNorm"),
            1.5,
            2.5,
        ),
        Rule("rms-rank", "RMSNorm loses one direction", lambda r: r.get("lost", what="RMSNorm"), 0.5, 1.5),
        Rule(
            "coupled",
            "In LayerNorm every input moves every output",
            lambda r: r.get("coupled", what="LayerNorm"),
            above=0.999,
            unit="of the Jacobian's off-diagonal",
        ),
    ),
    plots=(
        Plot(
            "what",
            "difference",
            None,
            "Everything below 1e-5 is rounding of float32.",
            kind="bar",
            log_y=True,
        ),
    ),
    cheap=True,
)

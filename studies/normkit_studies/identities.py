"""What norms are to each other, and to torch's.

Question: Is GroupNorm with one channel a group InstanceNorm, and with one group LayerNorm? Which
directions does a norm lose? Are our layers torch's, and is LayerNorm its formula?

Hypothesis: The statistics are the same to rounding; LayerNorm loses two directions (the mean and the
length), RMSNorm one; our layers give torch's numbers; LayerNorm is gamma (x - mean) / sqrt(var + eps) +
beta, with the biased variance, and not with the unbiased one.

Method: Random images and vectors. Largest difference in float32; rank of the Jacobian in float64, by
singular values above 1e-9 of the largest; the share of its off-diagonal entries that are not zero.

Refuted if: a difference reaches 1e-5, the unbiased variance gives the same to 1e-3, the ranks are not d -
2 and d - 1, or an entry of the Jacobian is zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as T

from normkit import functional as F
from normkit.lab.design import Plot, Rule, Study, grid

DIM = 12


def run(cell: Mapping[str, Any]) -> dict[str, float]:
    torch.manual_seed(cell["seed"])
    x = torch.randn(3, 6, 4, 5) * 2 + 1
    flat, vector = torch.randn(16, 32), torch.randn(DIM, dtype=torch.float64)

    def apart(a: torch.Tensor, b: torch.Tensor) -> float:
        return (a - b).abs().max().item()

    gamma, beta = torch.randn(2, 32)

    def written_out(*, unbiased: bool) -> torch.Tensor:
        centred = flat - flat.mean(-1, keepdim=True)
        return gamma * centred / torch.sqrt(flat.var(-1, keepdim=True, unbiased=unbiased) + 1e-5) + beta

    layer_norm = F.layer_norm(flat, (32,), gamma, beta, eps=1e-5)
    pairs = {
        "GroupNorm(C) and InstanceNorm": lambda: apart(F.group_norm(x, 6), F.instance_norm(x)),
        "GroupNorm(1) and LayerNorm": lambda: apart(F.group_norm(x, 1), F.layer_norm(x, (6, 4, 5))),
        "LayerNorm and torch's": lambda: apart(F.layer_norm(flat, (32,)), T.layer_norm(flat, (32,))),
        "RMSNorm and torch's": lambda: apart(F.rms_norm(flat, (32,)), T.rms_norm(flat, (32,))),
        "BatchNorm and torch's": lambda: apart(
            F.batch_norm(x, None, None, training=True), T.batch_norm(x, None, None, training=True)
        ),
        "GroupNorm and torch's": lambda: apart(F.group_norm(x, 3), T.group_norm(x, 3)),
        "LayerNorm and its formula": lambda: apart(layer_norm, written_out(unbiased=False)),
        "LayerNorm and the unbiased one": lambda: apart(layer_norm, written_out(unbiased=True)),
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
    *("LayerNorm and its formula", "LayerNorm and the unbiased one"),
)

STUDY = Study(
    claims=(1, 54, 64, 78, 81, 85),
    cells=grid(what=[*PAIRS, "LayerNorm", "RMSNorm"]),
    measure=run,
    rules=(
        Rule(
            "same",
            "The largest difference of all pairs is rounding",
            lambda r: max(r.get("difference", what=pair) for pair in PAIRS[:-1]),
            below=1e-5,
        ),
        Rule(
            "formula",
            "LayerNorm is its formula, element by element, to rounding",
            lambda r: r.get("difference", what="LayerNorm and its formula"),
            below=1e-5,
        ),
        Rule(
            "biased",
            "With the unbiased variance, torch.var's default, it is another number",
            lambda r: r.get("difference", what="LayerNorm and the unbiased one"),
            above=1e-3,
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
            "Everything below 1e-5 is rounding of float32; the last bar is what the wrong variance does.",
            kind="rows",
            log_y=True,
        ),
    ),
    cheap=True,
)

"""Does a norm need its gain and bias?

Question: How much does a Pre-LN language model lose without the learnable gain and bias of its
LayerNorms?

Hypothesis: The affine part matters: without it the loss is at least 0.05 nats higher.

Method: Byte-level model of 6 layers, 100 steps, best of three learning rates, LayerNorm with and without
gain and bias. And an identity: gain and bias of a norm that stands before a linear layer, folded into
that layer, change the output by less than 1e-9 in float64.

Refuted if: the difference is 0.05 nats or less, or the folding differs by 1e-9 or more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from normkit.lab.design import Plot, Rule, Study, trained
from normkit.norms import LayerNorm

PLAIN = "normkit_studies.expressivity:plain"


def plain(dim: int) -> nn.Module:
    """LayerNorm without gain and bias."""
    return LayerNorm(dim, elementwise_affine=False)


def run(cell: Mapping[str, Any]) -> dict[str, float]:
    torch.manual_seed(cell["seed"])
    norm, linear = LayerNorm(16, dtype=torch.float64), nn.Linear(16, 8, dtype=torch.float64)
    nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    folded = nn.Linear(16, 8, dtype=torch.float64)
    with torch.no_grad():
        folded.weight.copy_(linear.weight * norm.weight)
        folded.bias.copy_(linear.bias + linear.weight @ norm.bias)
    x = torch.randn(32, 16, dtype=torch.float64)
    with torch.no_grad():
        bare = nn.functional.layer_norm(x, (16,), eps=norm.eps)
        return {"fold": (linear(norm(x)) - folded(bare)).abs().max().item()}


STUDY = Study(
    claims=(22,),
    cells=({"what": "fold"},),
    measure=run,
    seeds=6,
    runs=trained(task="text", norm=["layer", PLAIN], placement="pre", lr=[1e-3, 3e-3, 1e-2], steps=100),
    quick_runs=trained(
        task="text",
        norm=["layer", PLAIN],
        placement="pre",
        lr=[1e-3],
        steps=6,
        depth=1,
        width=16,
        batch_size=4,
    ),
    rules=(
        Rule(
            "needed",
            "Without gain and bias the loss is at least 0.05 nats higher",
            lambda r: r.lowest("loss", norm=PLAIN) - r.lowest("loss", norm="layer"),
            above=0.05,
            unit="nats",
        ),
        Rule(
            "fold",
            "Before a linear layer they can be folded into it",
            lambda r: r.get("fold", what="fold"),
            below=1e-9,
        ),
    ),
    plots=(
        Plot(
            "lr",
            "loss",
            "norm",
            "Held-out loss with and without gain and bias. Lines on top of each other: not needed.",
            log_x=True,
            x_title="learning rate",
            y_title="nats a byte",
        ),
    ),
)

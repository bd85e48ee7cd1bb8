"""How should a variance be computed?

Question: How wrong is LayerNorm in float32 when the inputs have a large mean, with the one-pass variance
mean(x²) - mean(x)², in torch, and here?

Hypothesis: At a mean of 1,000 spreads the one-pass formula is more than 100 times as wrong as ours, and
at 10,000 it gives negative variances; ours is right to 1e-5 at a million.

Method: 256 vectors of 768 features, spread 1, mean 1 to 1e6; largest error of the output against float64
for the same inputs. The share of vectors whose one-pass variance is below 0.

Refuted if: the one-pass error at 1,000 is 100 times ours or less, at 10,000 a tenth of the variances or
fewer are negative, or our error at a million is 1e-5 or more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as T

from normkit import functional as F
from normkit.lab.design import Plot, Rule, Study, grid

ROWS, DIM, EPS = 256, 768, 1e-5
HOW = ("one pass", "torch", "normkit")


def run(cell: Mapping[str, Any]) -> dict[str, float]:
    generator = torch.Generator().manual_seed(cell["seed"])
    x = torch.randn(ROWS, DIM, generator=generator) + cell["mean"]
    exact = T.layer_norm(x.double(), (DIM,), eps=EPS)
    mean = x.mean(-1, keepdim=True)
    var = (x * x).mean(-1, keepdim=True) - mean * mean
    result = {
        "one pass": lambda: (x - mean) / (var.clamp_min(0) + EPS).sqrt(),
        "torch": lambda: T.layer_norm(x, (DIM,), eps=EPS),
        "normkit": lambda: F.layer_norm(x, (DIM,), eps=EPS),
    }[cell["how"]]()
    error = (result.double() - exact).abs().max().item()
    return {
        "error": error,
        "negative": (var < 0).double().mean().item() if cell["how"] == "one pass" else 0.0,
    }


STUDY = Study(
    claims=(20,),
    cells=grid(how=HOW, mean=[1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6]),
    measure=run,
    rules=(
        Rule(
            "one-pass",
            "At a mean of 1,000 one pass is more than 100 times as wrong as normkit",
            lambda r: r.get("error", how="one pass", mean=1e3) / r.get("error", how="normkit", mean=1e3),
            above=100,
            unit="times",
            log=True,
        ),
        Rule(
            "negative",
            "At a mean of 10,000 one pass gives negative variances",
            lambda r: r.get("negative", how="one pass", mean=1e4),
            above=0.1,
            unit="of all vectors",
        ),
        Rule(
            "ours",
            "normkit stays below 1e-5 at a mean of a million",
            lambda r: r.get("error", how="normkit", mean=1e6),
            below=1e-5,
        ),
    ),
    plots=(
        Plot(
            *("mean", "error", "how"),
            "The largest error of the output against float64. A flat line at the bottom is what one wants.",
            log_x=True,
            log_y=True,
            where={},
            x_title="mean of the input, in spreads",
            y_title="largest error",
        ),
    ),
    cheap=True,
)

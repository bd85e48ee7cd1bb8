"""How should a variance be computed?

Question: How wrong is LayerNorm in float32 when the inputs have a large mean, with the one-pass variance
mean(x²) - mean(x)², in torch, and here? And does double precision save the one-pass variance?

Hypothesis: At a mean of 1,000 standard deviations the one-pass formula is more than 100 times as wrong as
ours, and at 10,000 it gives negative variances; ours is right to 1e-5 at a million. In double precision the
one-pass formula is right to 1e-5 at 10,000.

Method: 256 vectors of 768 features, standard deviation 1, mean 1 to 1e6; largest error of the output against
float64 for the same inputs. The share of vectors whose one-pass variance is below 0; the square root is then
taken of eps alone. (The rule on double precision is new: an earlier version left out that part of the claim.)

Refuted if: the one-pass error at 1,000 is 100 times ours or less, at 10,000 a tenth of the variances or
fewer are negative, our error at a million is 1e-5 or more, or that of one pass in double precision at 10,000.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as T
from torch import Tensor

from normkit import functional as F
from normkit.lab.design import Plot, Rule, Study, grid

ROWS, DIM, EPS = 256, 768, 1e-5
ONE_PASS, DOUBLE = "one pass", "one pass, float64"
HOW = (ONE_PASS, DOUBLE, "torch", "normkit")


def run(cell: Mapping[str, Any]) -> dict[str, float]:
    generator = torch.Generator().manual_seed(cell["seed"])
    x = torch.randn(ROWS, DIM, generator=generator) + cell["mean"]
    exact = T.layer_norm(x.double(), (DIM,), eps=EPS)
    result = {
        ONE_PASS: lambda: _one_pass(x),
        DOUBLE: lambda: _one_pass(x.double()).float(),
        "torch": lambda: T.layer_norm(x, (DIM,), eps=EPS),
        "normkit": lambda: F.layer_norm(x, (DIM,), eps=EPS),
    }[cell["how"]]()
    found = {"error": (result.double() - exact).abs().max().item()}
    if cell["how"] == ONE_PASS:
        found["negative"] = (_variance(x) < 0).double().mean().item()
    return found


def _variance(x: Tensor) -> Tensor:
    return (x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2


def _one_pass(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (_variance(x).clamp_min(0) + EPS).sqrt()


STUDY = Study(
    claims=(20,),
    cells=grid(how=HOW, mean=[1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6]),
    measure=run,
    kind="checked",
    scale="256 random vectors of 768 features, in float32 on a CPU",
    rules=(
        Rule(
            "one-pass",
            "At a mean of 1,000 one pass is more than 100 times as wrong as normkit",
            lambda r: r.get("error", how=ONE_PASS, mean=1e3) / r.get("error", how="normkit", mean=1e3),
            above=100,
            unit="times",
            log=True,
            yes="Not in one pass: at a mean of 1,000 standard deviations LayerNorm in float32 with the "
            "variance mean(x²) - mean(x)² is {effect} as wrong as normkit's.",
            no="At a mean of 1,000 standard deviations the one-pass variance is not 100 times as wrong, but "
            "{effect}.",
        ),
        Rule(
            "negative",
            "At a mean of 10,000 one pass gives negative variances",
            lambda r: r.get("negative", how=ONE_PASS, mean=1e4),
            above=0.1,
            unit="of all vectors",
            yes="At 10,000 it is negative for {effect}.",
            no="At 10,000 it is negative for no more than a tenth of all vectors: {effect}.",
        ),
        Rule(
            "ours",
            "normkit stays below 1e-5 at a mean of a million",
            lambda r: r.get("error", how="normkit", mean=1e6),
            below=1e-5,
            yes="normkit's error is {effect} even at a million.",
            no="normkit's error at a million is {effect}.",
        ),
        Rule(
            "torchs",
            "torch stays below 1e-5 at a mean of a million",
            lambda r: r.get("error", how="torch", mean=1e6),
            below=1e-5,
            aside=True,
            yes="So is torch's, on a CPU: {effect}.",
            no="That of torch, on a CPU, is {effect} there.",
        ),
        Rule(
            "double",
            "One pass in double precision stays below 1e-5 at a mean of 10,000",
            lambda r: r.get("error", how=DOUBLE, mean=1e4),
            below=1e-5,
            yes="Double precision would do as well, up to 10,000: {effect}.",
            no="Double precision does not save the one-pass variance at 10,000: {effect}.",
        ),
    ),
    plots=(
        Plot(
            *("mean", "error", "how"),
            "The largest error of the output against float64. A flat line at the bottom is what one wants.",
            log_x=True,
            log_y=True,
            where={},
            x_title="mean of the input, in standard deviations",
            y_title="largest error",
        ),
    ),
    cheap=True,
)

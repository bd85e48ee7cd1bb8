"""What are norms to each other, and to torch's?

Question: Is GroupNorm with one channel a group InstanceNorm, and with one group LayerNorm? Which
directions does a norm lose? Are our layers torch's, and is LayerNorm its formula?

Hypothesis: The statistics are the same to rounding; LayerNorm loses two directions (the mean and the
length), RMSNorm one; our layers give torch's numbers; LayerNorm is gamma (x - mean) / sqrt(var + eps) +
beta, with the biased variance, and not with the unbiased one.

Method: Random images and vectors. Largest difference in float64, and in float32; rank of the Jacobian in
float64, by singular values above 1e-9 of the largest; the share of its off-diagonal entries above 1e-9.
(An earlier version compared in float32 alone, with a bound of 1e-5, and added 1e-12 to each difference, so
that a figure could show it.)

Refuted if: a difference reaches 1e-12 in float64 or 1e-5 in float32, the unbiased variance gives the same
to 1e-3, the ranks are not d - 2 and d - 1, or an entry of LayerNorm's Jacobian is zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as T

from normkit import functional as F
from normkit.lab.design import Plot, Rows, Rule, Study, grid

DIM = 12
DTYPES = {"float64": torch.float64, "float32": torch.float32}
UNBIASED = "LayerNorm and the unbiased one"
PAIRS = (
    *("GroupNorm(C) and InstanceNorm", "GroupNorm(1) and LayerNorm", "LayerNorm and torch's"),
    *("RMSNorm and torch's", "BatchNorm and torch's", "GroupNorm and torch's", "LayerNorm and its formula"),
)


def run(cell: Mapping[str, Any]) -> dict[str, float]:
    torch.manual_seed(cell["seed"])
    if cell["what"] in (*PAIRS, UNBIASED):
        return {"difference": _difference(cell["what"], DTYPES[cell["dtype"]])}
    vector = torch.randn(DIM, dtype=torch.float64)
    norm = F.layer_norm if cell["what"] == "LayerNorm" else F.rms_norm
    jacobian = torch.autograd.functional.jacobian(lambda v: norm(v, (DIM,), eps=0.0), vector)
    values = torch.linalg.svdvals(jacobian)
    others = jacobian[~torch.eye(DIM, dtype=torch.bool)]
    return {
        "lost": float((values < 1e-9 * values[0]).sum()),
        "coupled": (others.abs() > 1e-9).double().mean().item(),
    }


def _difference(pair: str, dtype: torch.dtype) -> float:
    """The largest between the two."""
    x = (torch.randn(3, 6, 4, 5) * 2 + 1).to(dtype)
    flat = torch.randn(16, 32).to(dtype)
    gamma, beta = torch.randn(2, 32).to(dtype)

    def written_out(*, unbiased: bool) -> torch.Tensor:
        centred = flat - flat.mean(-1, keepdim=True)
        return gamma * centred / torch.sqrt(flat.var(-1, keepdim=True, unbiased=unbiased) + 1e-5) + beta

    layer_norm = F.layer_norm(flat, (32,), gamma, beta, eps=1e-5)
    ours, theirs = {
        "GroupNorm(C) and InstanceNorm": lambda: (F.group_norm(x, 6), F.instance_norm(x)),
        "GroupNorm(1) and LayerNorm": lambda: (F.group_norm(x, 1), F.layer_norm(x, (6, 4, 5))),
        "LayerNorm and torch's": lambda: (F.layer_norm(flat, (32,)), T.layer_norm(flat, (32,))),
        "RMSNorm and torch's": lambda: (F.rms_norm(flat, (32,)), T.rms_norm(flat, (32,))),
        "BatchNorm and torch's": lambda: (
            F.batch_norm(x, None, None, training=True),
            T.batch_norm(x, None, None, training=True),
        ),
        "GroupNorm and torch's": lambda: (F.group_norm(x, 3), T.group_norm(x, 3)),
        "LayerNorm and its formula": lambda: (layer_norm, written_out(unbiased=False)),
        UNBIASED: lambda: (layer_norm, written_out(unbiased=True)),
    }[pair]()
    return (ours - theirs).abs().max().item()


def _largest(rows: Rows, dtype: str) -> float:
    return max(rows.get("difference", what=pair, dtype=dtype) for pair in PAIRS)


STUDY = Study(
    claims=(1, 54, 64, 78, 81, 85),
    cells=grid(what=[*PAIRS, UNBIASED], dtype=list(DTYPES))
    + grid(what=["LayerNorm", "RMSNorm"], dtype=["float64"]),
    measure=run,
    kind="proved",
    scale="random images of 6 x 4 x 5, vectors of 32 and of 12 features, in float64",
    rules=(
        Rule(
            "same",
            "The largest difference of all pairs is rounding",
            lambda r: _largest(r, "float64"),
            below=1e-12,
            yes="GroupNorm with one channel a group is InstanceNorm, and with one group LayerNorm, but for "
            "the shapes of gain and bias; normkit's layers give torch's numbers: the largest difference in "
            "float64 is {effect}.",
            no="Some of the pairs are not the same: the largest difference in float64 is {effect}.",
        ),
        Rule(
            "float32",
            "In float32 it is rounding, too",
            lambda r: _largest(r, "float32"),
            below=1e-5,
        ),
        Rule(
            "formula",
            "LayerNorm is its formula, element by element, to rounding",
            lambda r: r.get("difference", what="LayerNorm and its formula", dtype="float64"),
            below=1e-12,
        ),
        Rule(
            "biased",
            "With the unbiased variance, torch.var's default, it is another number",
            lambda r: r.get("difference", what=UNBIASED, dtype="float64"),
            above=1e-3,
            yes="LayerNorm divides by the biased variance: with torch.var's default it is off by {effect} "
            "at 32 features.",
            no="The unbiased variance gives the same but for {effect}.",
        ),
        Rule(
            "layer-rank",
            "LayerNorm loses two directions",
            lambda r: r.get("lost", what="LayerNorm"),
            1.5,
            2.5,
            unit="of 12 directions",
            yes="LayerNorm loses two directions of each vector, its mean and its length.",
            no="LayerNorm does not lose two directions, but {effect}.",
        ),
        Rule(
            "rms-rank",
            "RMSNorm loses one direction",
            lambda r: r.get("lost", what="RMSNorm"),
            0.5,
            1.5,
            unit="of 12 directions",
            yes="RMSNorm loses one, the length.",
            no="RMSNorm does not lose one, but {effect}.",
        ),
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
            "dtype",
            "Everything below 1e-5 in float32, or 1e-12 in float64, is rounding, and no bar is no "
            "difference at all. The last is what the wrong variance does.",
            kind="rows",
            log_y=True,
            y_title="largest difference",
        ),
    ),
    cheap=True,
    limits="That no entry of the Jacobian is zero holds for random vectors; some vectors have such entries.",
)

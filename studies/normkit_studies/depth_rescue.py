"""How deep does Post-LN train, and does DeepNorm rescue it?

Question: From which depth on does a Post-LN stack fail to train, what does a warm-up do for it, and is it
DeepNorm's residual or its initialisation that helps?

Hypothesis: Wang et al. 2022 (arXiv:2203.00555): Post-LN's loss, with a warm-up, rises with the depth, by
more than 0.1 nats for each doubling from 6 layers to 48; DeepNorm's does not rise, to 0.02 nats for each
doubling.

Method: Byte-level language models of 6, 12, 24 and 48 layers and 64 features, 2,000 steps of 512 bytes,
learning rates of 1e-3 and 3e-3, chosen on validation, cosine schedule. Arms: Post-LN without a warm-up and
with one of 200 steps; Post-LN with DeepNorm's initialisation alone; DeepNorm; Pre-LN. The last three with
the warm-up. Slope: of a straight line through the loss against the binary logarithm of the depth. Failed:
the loss is not below that of a bigram table. (Frozen before with counts of seeds for that, which three seeds
can never decide; never run.) An earlier study (seeds 200 to 204, 100 steps of 12 layers without a warm-up)
had Post-LN at the unigram baseline and DeepNorm below it.

Refuted if: Post-LN's slope is 0.1 or less, or DeepNorm's 0.02 or more.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from normkit.lab.design import Plot, Rows, Rule, Study, slope, trained
from normkit.placement import DepthFormula, Placement

COMMON: dict[str, Any] = {"task": "text", "norm": "layer", "schedule": "cosine"}
# Post-LN that starts with DeepNorm's small weights, and keeps its own residual.
small_post = Placement(post=True, gain=DepthFormula("(8L)^-1/4", lambda layer, depth: (8 * depth) ** -0.25))
SMALL_POST = f"{__name__}:small_post"
PLACEMENTS = ["post", SMALL_POST, "deepnorm", "pre"]
DEPTHS, RATES, WARM_UP = [6, 12, 24, 48], [1e-3, 3e-3], 200
SIZES: dict[str, Any] = {"width": 64, "steps": 2000, "lr": RATES}
SMALL: dict[str, Any] = {"width": 16, "steps": 6, "batch_size": 4, "lr": RATES}


def _warm_up(rows: Rows, has: bool) -> int:
    return max(row["warmup"] for row in rows) if has else 0


def _losses(rows: Rows, placement: str, warm_up: bool = True) -> list[tuple[int, float]]:
    arm = {"placement": placement, "warmup": _warm_up(rows, warm_up)}
    return [
        (depth, rows.best("loss", **arm, depth=depth)) for depth in sorted({row["depth"] for row in rows})
    ]


def _slope(rows: Rows, placement: str, warm_up: bool = True) -> float:
    found = _losses(rows, placement, warm_up)
    return slope([math.log2(depth) for depth, _ in found], [loss for _, loss in found])


def _above_bigram(rows: Rows, placement: str, warm_up: bool = True) -> float:
    """Of the deepest stack, at its best rate: by how much its loss is above the bigram table's."""
    depth, loss = _losses(rows, placement, warm_up)[-1]
    return loss - float(rows.where(depth=depth)[0]["baseline_bigram"])


STUDY = Study(
    claims=(),
    runs=trained(**COMMON, **SIZES, placement="post", warmup=0, depth=DEPTHS)
    + trained(**COMMON, **SIZES, placement=PLACEMENTS, warmup=WARM_UP, depth=DEPTHS),
    quick_runs=trained(**COMMON, **SMALL, placement="post", warmup=0, depth=[1, 2])
    + trained(**COMMON, **SMALL, placement=PLACEMENTS, warmup=2, depth=[1, 2]),
    seeds=3,
    minutes=265,
    scale="6 to 48 layers, 64 features, 0.3 to 2.4 M parameters; 1 M bytes of Python's source",
    paper="Wang et al. 2022: DeepNorm trains 1,000 layers; with 200 layers and 3.2 B parameters it is 5 BLEU "
    "above a model of 48 layers and 12 B",
    rules=(
        Rule(
            "post",
            "Post-LN's loss rises by more than 0.1 nats a doubling of the depth",
            lambda r: _slope(r, "post"),
            above=0.1,
            unit="nats a doubling",
            yes="Post-LN gets worse with depth even with a warm-up: {effect} of the depth, 6 to 48 layers.",
            no="With a warm-up Post-LN does not get much worse with depth, up to 48 layers: {effect} of the "
            "depth.",
        ),
        Rule(
            "deepnorm",
            "DeepNorm's rises by less than 0.02 nats a doubling",
            lambda r: _slope(r, "deepnorm"),
            below=0.02,
            unit="nats a doubling",
            yes="DeepNorm does not: {effect}.",
            no="DeepNorm gets worse with depth, too: {effect}.",
        ),
        Rule(
            "initialisation",
            "DeepNorm's initialisation alone does less: its slope is more than 0.02 nats above DeepNorm's",
            lambda r: _slope(r, SMALL_POST) - _slope(r, "deepnorm"),
            above=0.02,
            unit="nats a doubling",
            aside=True,
            yes="Its initialisation alone is not enough: the slope is higher by {effect}.",
            no="Its initialisation alone does as much: the slope is higher by {effect}.",
        ),
        Rule(
            "warm-up",
            "Without a warm-up Post-LN's loss rises by more than 0.1 nats a doubling",
            lambda r: _slope(r, "post", warm_up=False),
            above=0.1,
            unit="nats a doubling",
            aside=True,
        ),
        Rule(
            "pre",
            "Pre-LN's rises by less than 0.02 nats a doubling",
            lambda r: _slope(r, "pre"),
            below=0.02,
            unit="nats a doubling",
            aside=True,
        ),
        *(
            Rule(
                f"failed-{name}",
                f"{title} of the largest depth does not get below the bigram table",
                partial(_above_bigram, placement=placement, warm_up=warm_up),
                above=0,
                unit="nats above it",
                aside=True,
            )
            for name, title, placement, warm_up in (
                ("post", "Post-LN with a warm-up", "post", True),
                ("post-cold", "Post-LN without a warm-up", "post", False),
                ("deepnorm", "DeepNorm", "deepnorm", True),
            )
        ),
    ),
    plots=tuple(
        Plot(
            "depth",
            "loss",
            "placement",
            f"Held-out loss against the depth at a learning rate of {lr:g}, with a warm-up.",
            log_x=True,
            where={"lr": lr, "warmup": lambda warmup: warmup > 0},
            x_title="layers",
            y_title="nats a byte",
            names={"small_post": "post, with DeepNorm's initialisation"},
        )
        for lr in RATES
    ),
    limits="Narrow layers and 2,000 steps; a deep model has more parameters and the same number of "
    "bytes. Two learning rates, of which Post-LN hardly stands the larger: a deep one might train at a "
    "smaller rate.",
)

"""Is Post-LN better in the end?

Question: When both are trained well, each at its best learning rate, with a warm-up and a falling
learning rate, for about 20 bytes a parameter, which of Pre-LN and Post-LN has the lower loss?

Hypothesis: Post-LN, by more than 0.01 nats.

Method: Byte-level language model of 6 layers and 64 features, 12,000 steps of 512 bytes, which are 19.4
bytes a parameter; warm-up of 500 steps, cosine schedule; four learning rates for each placement, chosen on
validation. The gap along the training: a straight line through it against the logarithm of the step, at
the five times at which validation is looked at. An earlier study (seeds 200 to 203, 1,000 steps) had
Pre-LN ahead, by half as much after 1,500 steps; it is why this one is longer, and why the bound is
smaller.

Refuted if: Post-LN is not more than 0.01 nats below Pre-LN.
"""

from __future__ import annotations

import math
from typing import Any

from normkit.lab.design import Plot, Rows, Rule, Study, slope, trained

COMMON: dict[str, Any] = {"task": "text", "norm": "layer", "schedule": "cosine"}
SIZES: dict[str, Any] = {"depth": 6, "width": 64, "warmup": 500, "steps": 12_000}
SMALL: dict[str, Any] = {"depth": 1, "width": 16, "batch_size": 4, "warmup": 2, "steps": 10}


def _gap(rows: Rows) -> float:
    """By how much Post-LN is lower."""
    return rows.best("loss", placement="pre") - rows.best("loss", placement="post")


def _gap_slope(rows: Rows) -> float:
    """Of that gap on validation, for each doubling of the steps."""
    curves = []
    for placement in ("pre", "post"):
        (row,) = rows.where(placement=placement, lr=rows.best_rate(placement=placement))
        curves.append(dict(map(tuple, row["validation"])))
    pre, post = curves
    steps = sorted(step for step in set(pre) & set(post) if None not in (pre[step], post[step]))
    return slope([math.log2(step) for step in steps], [pre[step] - post[step] for step in steps])


STUDY = Study(
    claims=(72, 74),
    runs=trained(**COMMON, **SIZES, placement="post", lr=[3e-4, 1e-3, 2e-3, 4e-3])
    + trained(**COMMON, **SIZES, placement="pre", lr=[1e-3, 3e-3, 6e-3, 1e-2]),
    quick_runs=trained(**COMMON, **SMALL, placement=["post", "pre"], lr=[1e-3]),
    keep=("validation",),
    minutes=160,
    scale="6 layers, 64 features, 316,000 parameters; 6.1 M bytes of Python's source, 19.4 a parameter",
    paper="Takase et al. 2022 (arXiv:2206.00330), translation: Post-LN is ahead of Pre-LN up to six layers",
    rules=(
        Rule(
            "post",
            "Post-LN ends more than 0.01 nats below Pre-LN",
            _gap,
            above=0.01,
            unit="nats",
            yes="Post-LN ends lower than Pre-LN, by {effect}, each at its best learning rate.",
            no="Post-LN does not end lower than Pre-LN at this scale: the difference is {effect}.",
        ),
        Rule(
            "same-loss",
            "They end within 0.01 nats of each other",
            _gap,
            -0.01,
            0.01,
            unit="nats",
            aside=True,
            yes="They end alike.",
        ),
        Rule(
            "slope",
            "The gap moves in favour of Post-LN as training goes on",
            _gap_slope,
            above=0,
            unit="nats a doubling of the steps",
            aside=True,
            yes="Along one training the gap moves towards Post-LN, {effect}, which is not what shorter or "
            "longer trainings would end at.",
            no="Along one training the gap does not move towards Post-LN: {effect}.",
        ),
        Rule(
            "same",
            "At the same learning rate of 1e-3 Post-LN ends more than 0.01 nats below",
            lambda r: r.get("loss", placement="pre", lr=1e-3) - r.get("loss", placement="post", lr=1e-3),
            above=0.01,
            unit="nats",
            aside=True,
            yes="At the same rate of 1e-3 Post-LN ends lower, by {effect}.",
            no="At the same rate of 1e-3 Post-LN does not end lower: {effect}.",
        ),
    ),
    plots=(
        Plot(
            "lr",
            "loss",
            "placement",
            "Held-out loss after 12,000 steps. Lower is better.",
            log_x=True,
            x_title="learning rate",
            y_title="nats a byte",
        ),
    ),
    limits="One model size and one text; large models are trained on more bytes a parameter, and deeper ones "
    "are where Post-LN fails (study depth-rescue).",
)

"""Does QK-norm make a Transformer less sensitive to its learning rate, the more so the wider it is?

Question: How much loss does a learning rate that is not the best one cost, with queries and keys
normalised and without, and how does that grow with the width?

Hypothesis: Wortsman et al. 2023 (arXiv:2309.14322): without QK-norm the sensitivity grows with the width,
by more than 0.02 nats for each doubling; with it, by less.

Method: Byte-level Pre-LN language models of 6 layers and 32, 64 and 128 features, 2,000 steps of 512
bytes, warm-up of 200, cosine schedule, seven learning rates from 3e-4 to 3e-1. Sensitivity as in the paper:
the mean over the learning rates of the loss at each, but at most that of an untrained model (here the
unigram baseline), minus the lowest of them; a run that diverged counts as that, by this definition. Slope:
of a straight line through it against the binary logarithm of the width.

Refuted if: without QK-norm the slope is 0.02 nats or less, or not above that with it.
"""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

from normkit.lab.design import Plot, Rows, Rule, Study, slope, trained

COMMON: dict[str, Any] = {"task": "text", "norm": "layer", "placement": "pre", "schedule": "cosine"}
RATES = [3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1]
WIDTHS = [32, 64, 128]


def _sensitivity(rows: Rows, qk_norm: bool, width: int) -> float:
    """E[min(loss, unigram)] - min(loss), over learning rates."""
    arm = rows.where(qk_norm=qk_norm, width=width)
    losses = [arm.get("loss", lr=lr) for lr in sorted({row["lr"] for row in arm})]
    unigram = arm[0]["plateau"]
    return fmean(min(loss, unigram) for loss in losses) - min(losses)


def _slope(rows: Rows, qk_norm: bool) -> float:
    widths = sorted({row["width"] for row in rows})
    return slope([math.log2(width) for width in widths], [_sensitivity(rows, qk_norm, w) for w in widths])


def _widest(rows: Rows, qk_norm: bool) -> float:
    return _sensitivity(rows, qk_norm, max(row["width"] for row in rows))


STUDY = Study(
    claims=(),
    runs=trained(**COMMON, depth=6, steps=2000, warmup=200, qk_norm=[False, True], width=WIDTHS, lr=RATES),
    quick_runs=trained(
        **COMMON,
        depth=1,
        steps=6,
        warmup=2,
        batch_size=4,
        qk_norm=[False, True],
        width=[16, 32],
        lr=[1e-3, 1e-1],
    ),
    seeds=3,
    minutes=115,
    headline="with",
    scale="6 layers, 32 to 128 features, 0.08 to 1.2 M parameters; 1 M bytes of Python's source",
    paper="Wortsman et al. 2023, up to 1.2 B parameters with QK-norm: without it models diverge at large "
    "learning rates; with it they train over three orders of magnitude, and sensitivity still grows "
    "with size",
    rules=(
        Rule(
            "without",
            "Without QK-norm the sensitivity grows by more than 0.02 nats a doubling of the width",
            lambda r: _slope(r, False),
            above=0.02,
            unit="nats a doubling of the width",
            yes="Without QK-norm the sensitivity to the learning rate grows with the width: {effect}.",
            no="Without QK-norm the sensitivity to the learning rate does not grow with the width here: "
            "{effect}.",
        ),
        Rule(
            "with",
            "With QK-norm it grows by less than without",
            lambda r: _slope(r, False) - _slope(r, True),
            above=0,
            unit="nats a doubling of the width",
            yes="With QK-norm the sensitivity to the learning rate grows less with the width: by {effect}.",
            no="With QK-norm it grows no less ({effect}).",
        ),
        Rule(
            "gain",
            "At the largest width QK-norm lowers it by more than 0.05 nats",
            lambda r: _widest(r, False) - _widest(r, True),
            above=0.05,
            unit="nats",
            aside=True,
            yes="At 128 features QK-norm lowers it by {effect}.",
            no="At 128 features QK-norm lowers it by no more than 0.05 nats: {effect}.",
        ),
    ),
    plots=tuple(
        Plot(
            "lr",
            "loss",
            "width",
            f"Held-out loss against the learning rate {'with' if qk_norm else 'without'} QK-norm. Flat is "
            "forgiving.",
            log_x=True,
            where={"qk_norm": qk_norm},
            x_title="learning rate",
            y_title="nats a byte",
        )
        for qk_norm in (False, True)
    ),
    limits="Small widths, short training, no weight decay, no clipping of gradients, and no z-loss, which "
    "the paper has.",
)

"""Do norms speed up training?

Question: How many steps does a language model need to a given loss, with LayerNorm and without any norm?

Hypothesis: With Pre-LN it is there first in more than half of all runs; and to the loss that both reach it
needs less than 0.8 of the steps that it needs without norms.

Method: Byte-level model of 6 layers on the source of Python's standard library, 600 steps, the same three
learning rates for each arm, the best of them on validation. The training loss is smoothed over 60 steps.
Counted: the seeds in which Pre-LN gets below the loss of a bigram table in fewer steps; an arm that never
gets there has not won. The ratio is that of the steps to the loss that both reach, which is what the worse
of the two has at its lowest, so that no number has to be made up. And both against a network whose only
norm stands at the end of the stack. (An earlier run with other seeds, of 100 steps, asked for a fixed loss of
2.95 nats, which is above the bigram table's, and was inconclusive at a ratio of 0.77 with made-up steps.)

Refuted if: Pre-LN is first in no more than half of the runs, or the ratio of steps is 0.8 or more.
"""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

from normkit.lab.design import Plot, Rows, Rule, Study, trained
from normkit.placement import Placement

SMOOTH = 10  # points of the stored curve, of six steps each
only_final = Placement(final=True)
PRE, NONE, FINAL = "pre", "none", f"{__name__}:only_final"
COMMON: dict[str, Any] = {"task": "text", "norm": "layer", "placement": [PRE, NONE, FINAL]}


def smoothed(curve: list[list[float]]) -> list[tuple[float, float]]:
    """Step, and the mean of the last ten points; a run that diverged ends early."""
    windows = (curve[k - SMOOTH : k] for k in range(SMOOTH, len(curve) + 1))
    return [(w[-1][0], fmean(v for _, v in w)) for w in windows if all(v is not None for _, v in w)]


def steps_to(curve: list[list[float]], loss: float) -> float:
    """The first step at which the smoothed loss is not above; infinite if there is none."""
    return next((step for step, value in smoothed(curve) if value <= loss), math.inf)


def _best(rows: Rows, placement: str) -> dict[str, Any]:
    """The run at the learning rate that validation chose."""
    arm = {"norm": "layer", "placement": placement}
    (row,) = rows.where(**arm, lr=rows.best_rate(**arm))
    return row


def _is_first(rows: Rows, other: str) -> bool:
    mine, others = (
        steps_to(r["curve"], r["baseline_bigram"]) for r in (_best(rows, PRE), _best(rows, other))
    )
    return mine < others


def _ratio(rows: Rows, other: str) -> float:
    """Of the steps to the loss that both reach."""
    curves = [_best(rows, placement)["curve"] for placement in (PRE, other)]
    loss = max(min(value for _, value in smoothed(curve)) for curve in curves)
    mine, others = (steps_to(curve, loss) for curve in curves)
    return mine / others


STUDY = Study(
    claims=(8,),
    runs=trained(**COMMON, lr=[1e-3, 3e-3, 1e-2], steps=600, depth=6, width=64),
    quick_runs=trained(**COMMON, lr=[1e-3], steps=12, depth=1, width=16, batch_size=4),
    keep=("curve",),
    seeds=6,
    scale="6 layers of 64 features (0.3 million weights), 600 steps, 1 byte a parameter, Python source",
    rules=(
        Rule(
            "faster",
            "Pre-LN is below the bigram table first in more than half of all runs",
            lambda r: _is_first(r, NONE),
            above=0.5,
            count=True,
            yes="At the start of training a small language model with Pre-LN is faster than one without "
            "norms, in {effect}.",
            no="At the start of training a small language model with Pre-LN is not faster than one without "
            "norms; it is so in {effect}.",
        ),
        Rule(
            "ratio",
            "To the loss that both reach Pre-LN needs less than 0.8 of the steps",
            lambda r: _ratio(r, NONE),
            below=0.8,
            unit="of the steps",
            log=True,
            yes="To the loss that both reach it needs {effect}.",
            no="To the loss that both reach it needs {effect}, which is not a fifth less.",
        ),
        Rule(
            "faster-than-last",
            "Pre-LN is first against a network with a norm at the end alone",
            lambda r: _is_first(r, FINAL),
            above=0.5,
            count=True,
            aside=True,
        ),
        Rule(
            "ratio-to-last",
            "Against that network it needs less than 0.8 of the steps",
            lambda r: _ratio(r, FINAL),
            below=0.8,
            unit="of the steps",
            log=True,
            aside=True,
        ),
    ),
    plots=(
        Plot(
            "lr",
            "loss",
            "placement",
            "Held-out loss after 600 steps against the learning rate, with Pre-LN, without any norm, and "
            "with one at the end alone.",
            log_x=True,
            x_title="learning rate",
            y_title="nats a byte",
        ),
    ),
    limits="The first 600 steps of a model of six layers, where a stack without norms still trains.",
)

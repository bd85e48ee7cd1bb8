"""Does BatchNorm fail with small batches?

Question: How does the error of an MLP with BatchNorm, and with LayerNorm, depend on the number of rows in a
batch?

Hypothesis: BatchNorm loses more than five points of error from 32 rows to 2, LayerNorm less than three; and
with every halving of the batch BatchNorm loses more than a point more than LayerNorm.

Method: scikit-learn's digits, divided anew for every seed. A residual MLP of 3 blocks with the norm before
each; Adam with a falling learning rate, the best of three for each norm and each batch size, on validation.
The same number of rows seen at every batch size, 6,000, so that two rows get 16 times the steps of 32,
which by itself lowers the error. Error on 180 held-out images, in evaluation mode; slope of a straight line
through the error against the logarithm of the batch. (The bound of the slope was set after an earlier run
with other seeds: five points over four halvings are 1.25 each. Conv nets, where every pixel counts as a
sample, are not looked at here.)

Refuted if: BatchNorm's error rises by five points or less, LayerNorm's by three or more, or BatchNorm loses
a point a halving more than LayerNorm or less.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import Any

from normkit.lab.design import Plot, Rows, Rule, Study, slope, trained
from normkit.lab.run import Run

SIZES = (2, 4, 8, 16, 32)
COMMON = {"task": "digits", "placement": "pre", "schedule": "cosine", "norm": ["batch", "layer"]}


def _runs(sizes: Sequence[int], seen: int, **more: Any) -> tuple[Run, ...]:
    """Small batches get more steps, so that all see the same number of rows."""
    found = [trained(**COMMON, **more, batch_size=size, steps=seen // size) for size in sizes]
    return tuple(run for runs in found for run in runs)


def _error(rows: Rows, norm: str, size: int) -> float:
    return rows.best("error", norm=norm, batch_size=size)


def _rise(rows: Rows, norm: str, few: int = 2) -> float:
    return _error(rows, norm, few) - _error(rows, norm, 32)


def _a_halving(rows: Rows, norm: str) -> float:
    """By how many points the error rises with each halving of the batch."""
    sizes = sorted({row["batch_size"] for row in rows})
    return -slope([log2(size) for size in sizes], [_error(rows, norm, size) for size in sizes])


STUDY = Study(
    claims=(15,),
    runs=_runs(SIZES, 6000, lr=[3e-4, 1e-3, 3e-3], depth=3, width=64),
    quick_runs=_runs((2, 4, 32), 320, lr=[1e-3], depth=1, width=16),
    seeds=6,
    scale="an MLP of 3 residual blocks of 64 features, 6,000 rows of 8 x 8 digits seen",
    rules=(
        Rule(
            "mlp-batch",
            "BatchNorm in an MLP loses more than five points from 32 rows to 2",
            lambda r: _rise(r, "batch"),
            above=5,
            unit="points",
            yes="With two rows in a batch, which make every feature 1 or -1, the error of a small MLP with "
            "BatchNorm is {effect} higher than with 32.",
            no="With two rows in a batch the error of a small MLP with BatchNorm is not five points higher "
            "than with 32: the difference is {effect}.",
        ),
        Rule(
            "mlp-four",
            "BatchNorm in an MLP loses more than five points from 32 rows to 4",
            lambda r: _rise(r, "batch", 4),
            above=5,
            unit="points",
            aside=True,
            yes="With four rows it is still {effect} higher.",
            no="With four rows most of that is gone: {effect}.",
        ),
        Rule(
            "mlp-layer",
            "LayerNorm loses less than three",
            lambda r: _rise(r, "layer"),
            below=3,
            unit="points",
            yes="LayerNorm does not mind: from 32 rows to 2 its error changes by {effect}.",
            no="LayerNorm loses as well: {effect}.",
        ),
        Rule(
            "mlp-slope",
            "With every halving of the batch BatchNorm loses more than a point more than LayerNorm",
            lambda r: _a_halving(r, "batch") - _a_halving(r, "layer"),
            above=1,
            unit="points a halving",
        ),
    ),
    plots=(
        Plot(
            "batch_size",
            "error",
            "norm",
            "Error of the MLP on unseen digits, mean over learning rates. With two rows BatchNorm turns "
            "every feature into 1 and -1.",
            log_x=True,
            x_title="rows in a batch",
            y_title="error, %",
        ),
    ),
    limits="An MLP, where a feature has one number a row. In a conv net every pixel counts as a sample.",
)

"""Does BatchNorm fail with small batches?

Question: How does the error of a network with BatchNorm, and with LayerNorm, depend on the number of rows
in a batch?

Hypothesis: In an MLP, BatchNorm loses more than five points of error from 32 rows to 2; LayerNorm less
than three. In a conv net, where every pixel counts as a sample, BatchNorm loses less than five, and
GroupNorm less than three.

Method: scikit-learn's digits. Residual networks with the norm before each sublayer; Adam, at 1e-3 in the
MLP and at 3e-3 in the conv net, with a falling learning rate; the same number of rows seen at every batch
size, 6,000 in the MLP and 9,600 in the conv net, so that two rows get 16 times the steps of 32, which by
itself lowers the error. Error on 360 held-out images, in evaluation mode.

Refuted if: BatchNorm's error in the MLP rises by five points or less or LayerNorm's by three or more, or
in the conv net BatchNorm's by five or more or GroupNorm's by three or more.
"""

from __future__ import annotations

from typing import Any

from normkit.lab.design import Plot, Rows, Rule, Study, trained
from normkit.lab.run import Run

SIZES = (2, 4, 8, 16, 32)
COMMON = {"task": "digits", "placement": "pre", "schedule": "cosine"}


def _runs(sizes: tuple[int, ...], seen: int, **more: Any) -> tuple[Run, ...]:
    """Small batches get more steps, so that all see the same number of rows."""
    found = [trained(**COMMON, **more, batch_size=size, steps=seen // size) for size in sizes]
    return tuple(run for runs in found for run in runs)


def _rise(rows: Rows, norm: str, network: str, few: int = 2) -> float:
    small, large = (rows.get("error", norm=norm, network=network, batch_size=size) for size in (few, 32))
    return small - large


STUDY = Study(
    claims=(15, 47),
    runs=(
        *_runs(SIZES, 6000, network="mlp", norm=["batch", "layer"], lr=1e-3, depth=3, width=64),
        *_runs((2, 32), 9600, network="conv", norm=["batch", "group"], lr=3e-3, depth=2, width=16),
    ),
    quick_runs=(
        *_runs((2, 4, 32), 320, network="mlp", norm=["batch", "layer"], lr=1e-3, depth=1, width=16),
        *_runs((2, 32), 320, network="conv", norm=["batch", "group"], lr=3e-3, depth=1, width=8),
    ),
    rules=(
        Rule(
            "mlp-batch",
            "BatchNorm in an MLP loses more than five points from 32 rows to 2",
            lambda r: _rise(r, "batch", "mlp"),
            above=5,
            unit="points",
        ),
        Rule(
            "mlp-four",
            "BatchNorm in an MLP loses more than five points from 32 rows to 4",
            lambda r: _rise(r, "batch", "mlp", 4),
            above=5,
            unit="points",
            aside=True,
        ),
        Rule(
            "mlp-layer",
            "LayerNorm loses less than three",
            lambda r: _rise(r, "layer", "mlp"),
            below=3,
            unit="points",
        ),
        Rule(
            "conv-batch",
            "BatchNorm in a conv net loses less than five",
            lambda r: _rise(r, "batch", "conv"),
            below=5,
            unit="points",
        ),
        Rule(
            "conv-group",
            "GroupNorm in a conv net loses less than three",
            lambda r: _rise(r, "group", "conv"),
            below=3,
            unit="points",
        ),
    ),
    plots=(
        Plot(
            "batch_size",
            "error",
            "norm",
            "Error of the MLP on unseen digits. With two rows BatchNorm turns every feature into 1 and -1.",
            log_x=True,
            where={"network": "mlp"},
            x_title="rows in a batch",
            y_title="error, %",
        ),
        Plot(
            "batch_size",
            "error",
            "norm",
            "The same in a conv net: 64 pixels an image make many samples of two rows.",
            kind="bar",
            where={"network": "conv"},
            x_title="rows in a batch",
            y_title="error, %",
        ),
    ),
)

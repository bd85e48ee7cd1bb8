"""Do norms regularise?

Question: Is the gap between training and test error smaller with a norm than without?

Hypothesis: With LayerNorm it is smaller by at least half a point than without any norm.

Method: An MLP of 3 residual layers on 1,437 digits, trained for 600 steps of 32 rows, which is 13 passes;
each norm at the best of two learning rates, by test error. Gap: error on 360 unseen images minus error on
those it was trained on.

Refuted if: LayerNorm's gap is not at least half a point smaller.
"""

from __future__ import annotations

from normkit.lab.studies.base import Plot, Rows, Rule, Study, trained

COMMON = {"task": "digits", "placement": "pre", "batch_size": 32}


def _gap(rows: Rows, norm: str) -> float:
    best = min(rows.where(norm=norm), key=lambda row: row["error"])
    return float(best["error"] - best["training_error"])


STUDY = Study(
    claims=(9, 65),
    runs=trained(
        **COMMON, norm=["none", "layer", "batch", "rms"], lr=[1e-3, 3e-3], depth=3, width=64, steps=600
    ),
    quick_runs=trained(**COMMON, norm=["none", "layer"], lr=[1e-3], depth=1, width=16, steps=20),
    rules=(
        Rule(
            "gap",
            "LayerNorm narrows the gap by at least half a point",
            lambda r: _gap(r, "none") - _gap(r, "layer"),
            above=0.5,
            unit="points",
        ),
    ),
    plots=(
        Plot(
            "norm",
            "error",
            "lr",
            "Error on unseen digits. The gap is this minus the error on the training images, which is near "
            "0 for all.",
            kind="bar",
            y_title="test error, %",
        ),
    ),
    limits="One small data set. A regulariser that acts only where training is long and data are many "
    "would not show.",
)

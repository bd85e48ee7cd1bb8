"""Is LayerNorm immune to data that change?

Question: Half-way through training all inputs grow five-fold, or one of them does, or all get a constant
added. Does a network with LayerNorm end as good as it was before?

Hypothesis: It does, whatever the change: the loss at the end is at most 1.1 times that before the change.

Method: Regression on the answers of a fixed random network to 16 features, two residual layers, the
answers being those to the unchanged inputs; LayerNorm, BatchNorm and no norm, 400 steps, the change at
step 200. Loss on held-out rows of the world as it is then, before the change and at the end.

Refuted if: for one of the three changes the ratio is above 1.1.
"""

from __future__ import annotations

from normkit.lab.studies.base import Plot, Rows, Rule, Study, trained

COMMON = {
    "task": "stream",
    "placement": "pre",
    "norm": ["layer", "batch", "none"],
    "jump": ["scale", "feature", "shift"],
}


def _ratio(rows: Rows, jump: str, norm: str = "layer") -> float:
    (found,) = rows.where(jump=jump, norm=norm)
    before = [loss for step, loss in found["held_out"] if 2 * step < found["steps"]][-1]
    return float(found["held_out"][-1][1] / before)


STUDY = Study(
    claims=(56, 57),
    runs=trained(**COMMON, lr=3e-3, steps=600, depth=2, width=64, batch_size=32),
    quick_runs=trained(**COMMON, lr=3e-3, steps=20, depth=1, width=16, batch_size=8),
    keep=("held_out",),
    rules=(
        Rule(
            "scale",
            "After a change of scale LayerNorm ends as good as before",
            lambda r: _ratio(r, "scale"),
            below=1.1,
            unit="of the loss before",
        ),
        Rule(
            "feature",
            "After one feature has grown, too",
            lambda r: _ratio(r, "feature"),
            below=1.1,
            unit="of the loss before",
        ),
        Rule(
            "shift", "After a shift, too", lambda r: _ratio(r, "shift"), below=1.1, unit="of the loss before"
        ),
    ),
    plots=(
        Plot(
            "jump",
            "final_loss",
            "norm",
            "Held-out loss at the end, 1 being a blind guess. Compare the norms for each kind of change.",
            kind="bar",
            x_title="what has changed",
            y_title="loss at the end",
        ),
    ),
)

"""Is LayerNorm immune to data that change?

Question: Half-way through training all inputs grow five-fold, or one of them does, or all get a constant
added. Does a network with LayerNorm end as good as if nothing had happened?

Hypothesis: It does, whatever the change: the loss at the end is at most 1.1 times that of the same
network whose inputs never changed.

Method: Regression on the answers of a fixed random network to 16 features, two residual layers, the
answers being those to the unchanged inputs; LayerNorm, BatchNorm and no norm, 600 steps, the change at
step 300. Loss at the end on held-out rows of the world as it is then, over that of a network with the
same seed and no change. (Not over its own loss before the change: it is still learning then, and ends
better than it was even where the change has hurt it.)

Refuted if: for one of the three changes the ratio is above 1.1.
"""

from __future__ import annotations

from normkit.lab.design import Plot, Rows, Rule, Study, trained

COMMON = {
    "task": "stream",
    "placement": "pre",
    "norm": ["layer", "batch", "none"],
    "jump": ["none", "scale", "feature", "shift"],
}


def _ratio(rows: Rows, jump: str, norm: str = "layer") -> float:
    changed, steady = (rows.get("final_loss", norm=norm, jump=which) for which in (jump, "none"))
    return changed / steady


UNIT = "times the loss without a change"

STUDY = Study(
    claims=(57,),
    runs=trained(**COMMON, lr=3e-3, steps=600, depth=2, width=64, batch_size=32),
    quick_runs=trained(**COMMON, lr=3e-3, steps=20, depth=1, width=16, batch_size=8),
    seeds=16,
    rules=(
        Rule(
            "scale",
            "When all inputs grow, a network with LayerNorm ends as good as without that",
            lambda r: _ratio(r, "scale"),
            below=1.1,
            unit=UNIT,
            log=True,
        ),
        Rule(
            "feature",
            "When one input grows, it does, too",
            lambda r: _ratio(r, "feature"),
            below=1.1,
            unit=UNIT,
            log=True,
        ),
        Rule(
            "shift",
            "When all inputs shift, it does, too",
            lambda r: _ratio(r, "shift"),
            below=1.1,
            unit=UNIT,
            log=True,
        ),
        Rule(
            "batch-shift",
            "When all inputs shift, one with BatchNorm does",
            lambda r: _ratio(r, "shift", "batch"),
            below=1.1,
            unit=UNIT,
            log=True,
            aside=True,
        ),
    ),
    plots=(
        Plot(
            "jump",
            "final_loss",
            "norm",
            "Held-out loss at the end, 1 being a blind guess. Compare each change with none.",
            kind="bar",
            x_title="what has changed",
            y_title="loss at the end",
        ),
    ),
)

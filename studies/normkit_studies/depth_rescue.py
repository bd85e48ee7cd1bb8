"""Does DeepNorm rescue a deep Post-LN?

Question: At 12 layers, where Post-LN does not start without warm-up, does DeepNorm?

Hypothesis: At the same learning rates Post-LN stays within 0.1 nats of a blind guess, and DeepNorm gets
at least 0.3 nats below.

Method: Byte-level language model of 12 layers, 100 steps, no warm-up, learning rates of 1e-3 and 3e-3,
for Post-LN of 3e-4 as well; the best one counts. Pre-LN for comparison.

Refuted if: Post-LN gets further than 0.1 nats, or DeepNorm less than 0.3.
"""

from __future__ import annotations

from normkit.lab.design import Plot, Rows, Rule, Study, trained

COMMON = {"task": "text", "norm": "layer"}


def _below(rows: Rows, placement: str) -> float:
    """How far the best loss is below a blind guess."""
    return float(rows[0]["plateau"]) - rows.lowest("loss", placement=placement)


STUDY = Study(
    claims=(),
    runs=trained(**COMMON, placement="post", lr=[3e-4, 1e-3, 3e-3], depth=12, steps=100)
    + trained(**COMMON, placement=["deepnorm", "pre"], lr=[1e-3, 3e-3], depth=12, steps=100),
    quick_runs=trained(
        **COMMON, placement=["post", "deepnorm", "pre"], lr=[1e-3], depth=2, width=16, batch_size=4, steps=6
    ),
    rules=(
        Rule(
            "post",
            "Post-LN of 12 layers learns nothing",
            lambda r: _below(r, "post"),
            below=0.1,
            unit="nats below a blind guess",
        ),
        Rule(
            "deepnorm",
            "DeepNorm of 12 layers learns",
            lambda r: _below(r, "deepnorm"),
            above=0.3,
            unit="nats below a blind guess",
        ),
    ),
    plots=(
        Plot(
            "placement",
            "loss",
            "lr",
            "Held-out loss after 100 steps of 12 layers, without warm-up.",
            kind="bar",
            y_title="nats a byte",
        ),
    ),
)

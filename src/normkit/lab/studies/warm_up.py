"""Who needs a warm-up?

Question: What does a warm-up of the learning rate do for Post-LN, and for Pre-LN?

Hypothesis: With it Post-LN stands at least three times the learning rate; Pre-LN's best loss moves by
less than 0.1 nats.

Method: The model of the study max-learning-rate, 200 steps, learning rates from 1e-3 to 1e-2, with no
warm-up and with one of 80 steps. (First planned with 100 steps and a warm-up of 40: too short, Post-LN
had hardly left the plateau with it at any learning rate, so nothing could be compared.)

Refuted if: Post-LN's largest stable learning rate does not grow three-fold, or Pre-LN's best loss moves
by 0.1 nats or more.
"""

from __future__ import annotations

from normkit.lab.studies.base import Plot, Rule, Study, trained
from normkit.lab.studies.max_learning_rate import COMMON, max_stable

BOTH = {**COMMON, "placement": ["post", "pre"]}

STUDY = Study(
    claims=(),
    runs=trained(**COMMON, placement="post", warmup=[0, 80], lr=[1e-3, 3e-3, 1e-2], steps=200)
    + trained(**COMMON, placement="pre", warmup=[0, 80], lr=[3e-3, 1e-2], steps=200),
    quick_runs=trained(**BOTH, warmup=[0, 3], lr=[1e-3, 1e-2], steps=6, depth=1, width=16, batch_size=4),
    rules=(
        Rule(
            "post",
            "A warm-up gives Post-LN at least three times the learning rate",
            lambda r: (
                max_stable(r, placement="post", warmup=max(x["warmup"] for x in r))
                / max_stable(r, placement="post", warmup=0)
            ),
            above=2.99,
            unit="times",
        ),
        Rule(
            "pre",
            "Pre-LN's best loss moves by less than 0.1 nats",
            lambda r: abs(
                r.lowest("loss", placement="pre", warmup=max(x["warmup"] for x in r))
                - r.lowest("loss", placement="pre", warmup=0)
            ),
            below=0.1,
            unit="nats",
        ),
    ),
    plots=(
        Plot(
            "lr",
            "loss",
            "warmup",
            "Post-LN with and without a warm-up.",
            log_x=True,
            where={"placement": "post"},
            x_title="learning rate",
            y_title="nats a byte",
        ),
        Plot(
            "lr",
            "loss",
            "warmup",
            "Pre-LN with and without a warm-up.",
            log_x=True,
            where={"placement": "pre"},
            x_title="learning rate",
            y_title="nats a byte",
        ),
    ),
)

"""Who needs a warm-up?

Question: What does a warm-up of the learning rate do for Post-LN, and for Pre-LN?

Hypothesis: With it Post-LN stands at least three times the learning rate; Pre-LN's best loss moves by
less than 0.1 nats.

Method: The model of the study max-learning-rate, 150 steps, with no warm-up and with one of 60 steps; for
Post-LN learning rates from 5e-4 to 2e-3 without and from 1e-3 to 3e-3 with, for Pre-LN from 1e-3 to 1e-2.
Largest stable learning rate as there.

Refuted if: Post-LN's largest stable learning rate does not grow three-fold, or Pre-LN's best loss moves
by 0.1 nats or more.
"""

from __future__ import annotations

from normkit.lab.design import Plot, Rows, Rule, Study, trained
from normkit_studies.max_learning_rate import COMMON, max_stable

BOTH = {**COMMON, "placement": ["post", "pre"]}


def _gain(rows: Rows) -> float:
    warmup = max(row["warmup"] for row in rows)
    with_it, without = (max_stable(rows, placement="post", warmup=steps) for steps in (warmup, 0))
    return with_it / without


def _moved(rows: Rows) -> float:
    warmup = max(row["warmup"] for row in rows)
    with_it, without = (rows.lowest("loss", placement="pre", warmup=steps) for steps in (warmup, 0))
    return with_it - without


STUDY = Study(
    claims=(),
    runs=trained(**COMMON, placement="post", warmup=0, lr=[5e-4, 1e-3, 1.5e-3, 2e-3], steps=150)
    + trained(**COMMON, placement="post", warmup=60, lr=[1e-3, 1.5e-3, 2e-3, 3e-3], steps=150)
    + trained(**COMMON, placement="pre", warmup=[0, 60], lr=[1e-3, 3e-3, 1e-2], steps=150),
    quick_runs=trained(**BOTH, warmup=[0, 3], lr=[1e-3, 1e-2], steps=6, depth=1, width=16, batch_size=4),
    seeds=6,
    rules=(
        Rule(
            "post",
            "A warm-up gives Post-LN at least three times the learning rate",
            _gain,
            above=2.99,
            unit="times",
            log=True,
        ),
        Rule(
            "post-more",
            "A warm-up gives Post-LN a larger learning rate at all",
            _gain,
            above=1,
            unit="times",
            log=True,
            aside=True,
        ),
        Rule(
            "pre",
            "Pre-LN's best loss moves by less than 0.1 nats",
            _moved,
            -0.1,
            0.1,
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
    limits="Rates with a warm-up end at 3e-3, where some seeds still train: a ratio above three could not "
    "be seen.",
)

"""Which placement stands the largest learning rate?

Question: Up to which learning rate does each placement train, without warm-up?

Hypothesis: Pre-LN's largest stable learning rate is at least three times Post-LN's; and any norm stands
at least three times what a network without norms does.

Method: Byte-level language model of 6 layers on the source of Python's standard library, 100 steps, four
learning rates from 1e-3 to 3e-2. Largest stable: the largest learning rate whose loss gets at least half-
way from a blind guess to the arm's own best.

Refuted if: the ratio of Pre-LN to Post-LN is below three.
"""

from __future__ import annotations

from normkit.lab.studies.base import Plot, Rows, Rule, Study, trained

RATES = [1e-3, 3e-3, 1e-2, 3e-2]
COMMON = {"task": "text", "norm": "layer"}


def max_stable(rows: Rows, **arm: object) -> float:
    """The largest learning rate with loss <= best + (plateau - best) / 2; below the grid if none."""
    members = rows.where(**arm)
    best, plateau = min(r["loss"] for r in members), members[0]["plateau"]
    if best >= plateau:
        return float(min(r["lr"] for r in members) / 3)
    return float(max(r["lr"] for r in members if r["loss"] <= best + 0.5 * (plateau - best)))


STUDY = Study(
    claims=(7, 19, 72),
    runs=trained(**COMMON, placement=["post", "pre", "peri", "deepnorm", "none"], lr=RATES, steps=100),
    quick_runs=trained(
        **COMMON, placement=["post", "pre", "none"], lr=[1e-3, 1e-2], steps=6, depth=1, width=16, batch_size=4
    ),
    rules=(
        Rule(
            "pre-post",
            "Pre-LN stands at least three times Post-LN's learning rate",
            lambda r: max_stable(r, placement="pre") / max_stable(r, placement="post"),
            above=2.99,
            unit="times",
        ),
        Rule(
            "norm-none",
            "Pre-LN stands at least three times that of no norm",
            lambda r: max_stable(r, placement="pre") / max_stable(r, placement="none"),
            above=2.99,
            unit="times",
        ),
        Rule(
            "post-dead",
            "Post-LN is dead at 1e-2, within 0.05 nats of a blind guess",
            lambda r: r.where(placement="post")[0]["plateau"] - r.get("loss", placement="post", lr=1e-2),
            below=0.05,
            unit="nats below",
        ),
    ),
    plots=(
        Plot(
            "lr",
            "loss",
            "placement",
            "Held-out loss against the learning rate, without warm-up. Wide and low is forgiving.",
            log_x=True,
            x_title="learning rate",
            y_title="nats a byte",
        ),
    ),
    limits="100 steps show how training starts. Which placement is best in the end is another study.",
)

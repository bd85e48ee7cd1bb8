"""Which placement stands the largest learning rate?

Question: Up to which learning rate does each placement train, without warm-up?

Hypothesis: Pre-LN's largest stable learning rate is at least three times Post-LN's, and at least three
times that of a network without norms.

Method: Byte-level language model of 6 layers on the source of Python's standard library, 100 steps,
learning rates from 3e-4 to 1e-1, each placement from below its best one (Peri-LN from its best one) to
where it fails, in steps of about three. Largest stable: the largest learning rate whose loss gets at
least half-way from a blind guess to the arm's own best; an arm that learns at none counts with a third of
its smallest.

Refuted if: the ratio of Pre-LN to Post-LN, or to no norm, is below three.
"""

from __future__ import annotations

from normkit.lab.design import Plot, Rows, Rule, Study, trained

COMMON = {"task": "text", "norm": "layer"}
RATES = {
    "post": [3e-4, 1e-3, 3e-3, 1e-2],
    "pre": [1e-3, 3e-3, 1e-2, 3e-2, 1e-1],
    "peri": [3e-3, 1e-2, 3e-2, 1e-1],
    "deepnorm": [1e-3, 3e-3, 1e-2],
    "none": [1e-3, 3e-3, 1e-2, 3e-2],
}


def max_stable(rows: Rows, **arm: object) -> float:
    """The largest learning rate with loss <= best + (plateau - best) / 2; below the grid if none."""
    members = rows.where(**arm)
    best, plateau = min(r["loss"] for r in members), members[0]["plateau"]
    if best >= plateau:
        return float(min(r["lr"] for r in members) / 3)
    return float(max(r["lr"] for r in members if r["loss"] <= best + 0.5 * (plateau - best)))


STUDY = Study(
    claims=(7, 19, 72),
    runs=trained(*({"placement": p, "lr": rates} for p, rates in RATES.items()), **COMMON, steps=100),
    quick_runs=trained(
        **COMMON,
        placement=["post", "pre", "deepnorm", "none"],
        lr=[1e-3, 1e-2],
        steps=6,
        depth=1,
        width=16,
        batch_size=4,
    ),
    seeds=8,
    rules=(
        Rule(
            "pre-post",
            "Pre-LN stands at least three times Post-LN's learning rate",
            lambda r: max_stable(r, placement="pre") / max_stable(r, placement="post"),
            above=2.99,
            unit="times",
            log=True,
        ),
        Rule(
            "norm-none",
            "Pre-LN stands at least three times that of no norm",
            lambda r: max_stable(r, placement="pre") / max_stable(r, placement="none"),
            above=2.99,
            unit="times",
            log=True,
        ),
        Rule(
            "post-behind",
            "After 100 steps Post-LN is at least 0.1 nats behind Pre-LN, each at its best",
            lambda r: r.lowest("loss", placement="post") - r.lowest("loss", placement="pre"),
            above=0.1,
            unit="nats",
            aside=True,
        ),
        Rule(
            "deepnorm-ahead",
            "After 100 steps DeepNorm is at least 0.1 nats ahead of Pre-LN, each at its best",
            lambda r: r.lowest("loss", placement="pre") - r.lowest("loss", placement="deepnorm"),
            above=0.1,
            unit="nats",
            aside=True,
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

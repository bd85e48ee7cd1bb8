"""Do norms speed up training?

Question: How many steps does a language model need to a given loss, with LayerNorm and without any norm?

Hypothesis: With Pre-LN, at its best learning rate, it needs less than 0.8 of the steps that it needs
without norms at their best learning rate.

Method: Byte-level model of 6 layers on the source of Python's standard library, 100 steps, three learning
rates for each. Steps until the training loss, smoothed over ten steps, is below 2.95 nats; a run that
never gets there counts with 100. And the same against a network whose only norm stands at the end of the
stack.

Refuted if: the ratio of steps is 0.8 or more.
"""

from __future__ import annotations

from normkit.lab.design import Plot, Rows, Rule, Study, trained
from normkit.placement import Placement

LOSS, SMOOTH, STEPS = 2.95, 10, 100
only_final = Placement(final=True)
ARMS = ["pre", "none", f"{__name__}:only_final"]


def steps_to(curve: list[list[float]], loss: float = LOSS) -> float:
    """The first step at which the mean of the last ten losses is below."""
    for k in range(SMOOTH, len(curve) + 1):
        window = [value for _, value in curve[k - SMOOTH : k]]
        if None not in window and sum(window) / SMOOTH < loss:
            return float(curve[k - 1][0])
    return float(STEPS)


def _fastest(rows: Rows, placement: str) -> float:
    return min(steps_to(row["curve"]) for row in rows.where(placement=placement))


STUDY = Study(
    claims=(8,),
    runs=trained(task="text", norm="layer", placement=ARMS, lr=[1e-3, 3e-3, 1e-2], steps=STEPS),
    quick_runs=trained(
        task="text",
        norm="layer",
        placement=ARMS,
        lr=[1e-3],
        steps=12,
        depth=1,
        width=16,
        batch_size=4,
    ),
    keep=("curve",),
    seeds=12,
    rules=(
        Rule(
            "faster",
            "Pre-LN needs less than 0.8 of the steps",
            lambda r: _fastest(r, "pre") / _fastest(r, "none"),
            below=0.8,
            unit="of the steps",
            log=True,
        ),
        Rule(
            "faster-than-last",
            "Pre-LN needs less than 0.8 of the steps of a network with a norm at the end alone",
            lambda r: _fastest(r, "pre") / _fastest(r, ARMS[-1]),
            below=0.8,
            unit="of the steps",
            log=True,
            aside=True,
        ),
    ),
    plots=(
        Plot(
            "lr",
            "loss",
            "placement",
            "Held-out loss after 100 steps against the learning rate, with Pre-LN, without any norm, and "
            "with one at the end alone.",
            log_x=True,
            x_title="learning rate",
            y_title="nats a byte",
        ),
    ),
)

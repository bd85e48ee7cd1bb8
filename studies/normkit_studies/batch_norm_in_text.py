"""Is BatchNorm weak with attention?

Question: In a language model, how far is BatchNorm behind LayerNorm, early in training and later?

Hypothesis: After 500 steps by more than 0.05 nats.

Method: Byte-level language model of 6 layers, the norm before each sublayer. 500 steps with a warm-up of
50 and a falling learning rate: LayerNorm at 3e-3, the best of what was tried, BatchNorm at the better of
3e-3 and 1e-2 (3e-2 was tried out, and is worse). And 100 steps of each at the better of the two rates.
Held-out loss in evaluation mode, with running statistics: in training mode BatchNorm sees the future
(study padding-and-causality), so its training loss would be no fair measure.

Refuted if: the difference after 500 steps is 0.05 nats or less.
"""

from __future__ import annotations

from normkit.lab.design import Plot, Rows, Rule, Study, trained

COMMON = {"task": "text", "placement": "pre"}
RATES = [3e-3, 1e-2]
LONG = {"steps": 500, "warmup": 50, "schedule": "cosine"}
SMALL = {"depth": 1, "width": 16, "batch_size": 4}


def _behind(rows: Rows, steps: int) -> float:
    batch, layer = (rows.lowest("loss", norm=norm, steps=steps) for norm in ("batch", "layer"))
    return batch - layer


def _late(rows: Rows) -> float:
    return _behind(rows, max(row["steps"] for row in rows))


def _early(rows: Rows) -> float:
    return _behind(rows, min(row["steps"] for row in rows))


STUDY = Study(
    claims=(44,),
    runs=trained(**COMMON, norm="batch", lr=RATES, **LONG)
    + trained(**COMMON, norm="layer", lr=3e-3, **LONG)
    + trained(**COMMON, norm=["layer", "batch"], lr=RATES, steps=100),
    quick_runs=trained(**COMMON, norm=["layer", "batch"], lr=RATES, steps=6, **SMALL)
    + trained(**COMMON, norm=["layer", "batch"], lr=RATES, steps=12, warmup=2, **SMALL),
    rules=(
        Rule(
            "behind",
            "After 500 steps BatchNorm is more than 0.05 nats behind",
            _late,
            above=0.05,
            unit="nats",
        ),
        Rule(
            "early",
            "After 100 steps it is behind as well",
            _early,
            above=0.0,
            unit="nats",
            aside=True,
        ),
    ),
    plots=tuple(
        Plot(
            "lr",
            "loss",
            "norm",
            f"Held-out loss after {steps} steps. Lower is better.",
            kind="bar",
            where={"warmup": lambda warmup, long=long: (warmup > 0) == long},
            x_title="learning rate",
            y_title="nats a byte",
        )
        for steps, long in ((100, False), (500, True))
    ),
    limits="A small model; BatchNorm's sight of the future in training is not taken away.",
)

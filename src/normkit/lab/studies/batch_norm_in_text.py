"""Is BatchNorm weak with attention?

Question: In a language model, how far is BatchNorm behind LayerNorm, at each one's best learning rate?

Hypothesis: By more than 0.05 nats.

Method: Byte-level language model of 6 layers, the norm before each sublayer, 100 steps, three learning
rates. Held-out loss in evaluation mode, with running statistics: in training mode BatchNorm sees the
future (study padding-and-causality), so its training loss would be no fair measure.

Refuted if: the difference is 0.05 nats or less.
"""

from __future__ import annotations

from normkit.lab.studies.base import Plot, Rule, Study, trained

COMMON = {"task": "text", "placement": "pre", "norm": ["layer", "batch", "power"]}

STUDY = Study(
    claims=(44,),
    runs=trained(**COMMON, lr=[1e-3, 3e-3, 1e-2], steps=100),
    quick_runs=trained(**COMMON, lr=[1e-3], steps=6, depth=1, width=16, batch_size=4),
    rules=(
        Rule(
            "behind",
            "BatchNorm is more than 0.05 nats behind LayerNorm",
            lambda r: r.lowest("loss", norm="batch") - r.lowest("loss", norm="layer"),
            above=0.05,
            unit="nats",
        ),
        Rule(
            "power",
            "PowerNorm is nearer to LayerNorm than BatchNorm is",
            lambda r: r.lowest("loss", norm="batch") - r.lowest("loss", norm="power"),
            above=0.0,
            unit="nats",
        ),
    ),
    plots=(
        Plot(
            "lr",
            "loss",
            "norm",
            "Held-out loss against the learning rate. Lower is better.",
            log_x=True,
            x_title="learning rate",
            y_title="nats a byte",
        ),
    ),
)

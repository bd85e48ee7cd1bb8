"""Can one do without norms?

Question: Do networks without norms reach the loss of Pre-LN?

Hypothesis: DyT (arXiv:2503.10622) and ReZero (arXiv:2003.04887) both get within 0.05 nats of Pre-LN, each
at its best learning rate. They train at all: the norm is not indispensable.

Method: Byte-level language model of 6 layers, 100 steps, best of four learning rates: Pre-LN, Pre-DyT,
ReZero without norms, and no norm at all.

Refuted if: one of the two is 0.05 nats or more behind.
"""

from __future__ import annotations

from normkit.lab.studies.base import Plot, Rows, Rule, Study, trained

RATES = [3e-4, 1e-3, 3e-3, 1e-2]
ARMS = (("layer", "pre"), ("dyt", "pre"), ("layer", "rezero"), ("layer", "none"))


def _behind(rows: Rows, norm: str, placement: str) -> float:
    return rows.lowest("loss", norm=norm, placement=placement) - rows.lowest(
        "loss", norm="layer", placement="pre"
    )


STUDY = Study(
    claims=(35, 37),
    runs=sum((trained(task="text", norm=n, placement=p, lr=RATES, steps=100) for n, p in ARMS), ()),
    quick_runs=sum(
        (
            trained(task="text", norm=n, placement=p, lr=[1e-3], steps=6, depth=1, width=16, batch_size=4)
            for n, p in ARMS
        ),
        (),
    ),
    rules=(
        Rule(
            "dyt",
            "DyT is less than 0.05 nats behind",
            lambda r: _behind(r, "dyt", "pre"),
            below=0.05,
            unit="nats",
        ),
        Rule(
            "rezero",
            "ReZero is less than 0.05 nats behind",
            lambda r: _behind(r, "layer", "rezero"),
            below=0.05,
            unit="nats",
        ),
        Rule(
            "trains",
            "ReZero, without any norm, gets at least 0.3 nats below a blind guess",
            lambda r: r[0]["plateau"] - r.lowest("loss", placement="rezero"),
            above=0.3,
            unit="nats",
        ),
    ),
    plots=(
        Plot(
            "lr",
            "loss",
            "norm",
            "Pre-LN and Pre-DyT.",
            log_x=True,
            where={"placement": "pre"},
            x_title="learning rate",
            y_title="nats a byte",
        ),
        Plot(
            "lr",
            "loss",
            "placement",
            "Pre-LN, ReZero and no norm at all.",
            log_x=True,
            where={"norm": "layer"},
            x_title="learning rate",
            y_title="nats a byte",
        ),
    ),
    limits="100 steps: DyT's authors report equal quality after full training of large models.",
)

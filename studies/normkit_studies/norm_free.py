"""Can one do without norms?

Question: Do networks without norms reach the loss of Pre-LN?

Hypothesis: DyT (arXiv:2503.10622) and ReZero (arXiv:2003.04887) both get within 0.05 nats of Pre-LN, each
at its best learning rate. ReZero trains at all, to 0.3 nats below a blind guess: the norm is not
indispensable.

Method: Byte-level language model of 6 layers, 100 steps, best of four learning rates: Pre-LN, Pre-DyT,
ReZero without norms, and no norm at all. DyT once as it is, and once as in its paper's language models,
with a learned scalar behind the embedding: it starts so that the stream begins with a spread of 1 instead
of 0.02, and alpha with 2 instead of 0.5, the best of what was tried.

Refuted if: one of the two is 0.05 nats or more behind, or ReZero learns less than 0.3 nats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from normkit.lab.design import Plot, Rows, Rule, Study, trained
from normkit.lab.tasks.text import TextTask
from normkit.norms import DyT

if TYPE_CHECKING:
    from normkit.lab.run import Run

SPREAD = 0.02  # of a new embedding
ALPHA = 2.0


class ScaledText(TextTask):
    """The embedding is multiplied by a learned number, so that the stream begins with a spread of 1."""

    def model(self, run: Run) -> nn.Module:
        model = super().model(run)
        model.scale = nn.Parameter(torch.tensor(1 / SPREAD))
        model.get_submodule("embedding").register_forward_hook(lambda _, __, x: x * model.scale)
        return model


def scaled_dyt(dim: int) -> nn.Module:
    """DyT for a stream of spread 1."""
    return DyT(dim, alpha=ALPHA)


PRE = {"task": "text", "norm": "layer", "placement": "pre"}
DYT = {**PRE, "norm": "dyt"}
SCALED = {**PRE, "task": f"{__name__}:ScaledText", "norm": f"{__name__}:scaled_dyt"}
REZERO = {**PRE, "placement": "rezero"}
NONE = {**PRE, "placement": "none"}
ARMS = (PRE, DYT, SCALED, REZERO, NONE)
RATES = [1e-3, 3e-3, 1e-2, 3e-2]
SMALL = {"steps": 6, "depth": 1, "width": 16, "batch_size": 4}


def _best(rows: Rows, arm: dict[str, str]) -> float:
    return rows.lowest("loss", **arm)


STUDY = Study(
    claims=(35,),
    runs=trained(*ARMS, lr=RATES, steps=100),
    quick_runs=trained(*ARMS, lr=[1e-3], **SMALL),
    rules=(
        Rule(
            "dyt",
            "DyT, as it is, is less than 0.05 nats behind",
            lambda r: _best(r, DYT) - _best(r, PRE),
            below=0.05,
            unit="nats",
        ),
        Rule(
            "dyt-scaled",
            "With a stream of spread 1 DyT is less than 0.05 nats behind",
            lambda r: _best(r, SCALED) - _best(r, PRE),
            below=0.05,
            unit="nats",
            aside=True,
        ),
        Rule(
            "dyt-learns",
            "With a stream of spread 1 DyT gets at least 0.2 nats further than as it is",
            lambda r: _best(r, DYT) - _best(r, SCALED),
            above=0.2,
            unit="nats",
            aside=True,
        ),
        Rule(
            "rezero",
            "ReZero is less than 0.05 nats behind",
            lambda r: _best(r, REZERO) - _best(r, PRE),
            below=0.05,
            unit="nats",
        ),
        Rule(
            "trains",
            "ReZero, without any norm, gets at least 0.3 nats below a blind guess",
            lambda r: r[0]["plateau"] - _best(r, REZERO),
            above=0.3,
            unit="nats",
        ),
        Rule(
            "nothing",
            "Six layers without anything get at least 0.3 nats below a blind guess",
            lambda r: r[0]["plateau"] - _best(r, NONE),
            above=0.3,
            unit="nats",
            aside=True,
        ),
    ),
    plots=(
        Plot(
            "lr",
            "loss",
            "norm",
            "Pre-LN, DyT as it is, and DyT with a stream of spread 1.",
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

"""Is BatchNorm weak with attention?

Question: In a Transformer that reads text, how far is BatchNorm behind LayerNorm? How much of that is due to
its running statistics, and does PowerNorm, which was made for this, repair it?

Hypothesis: BatchNorm is behind LayerNorm by more than 0.05 nats a line. Running statistics are not the
reason: estimated anew before the evaluation they gain less than that. PowerNorm is not behind by more than
0.05.

Method: An encoder without a causal mask, so that no norm can show a token what it must not see; it tells
from which of eight files a line of text comes. Padding is masked in all norms. The norm before each
sublayer, 2 layers of 64 features, 16 lines a step, 400 steps with a warm-up of 40 and a falling learning
rate, the best of three for each norm, on validation. Loss on held-out lines in evaluation mode; once more
after BatchNorm's running statistics were replaced by the average over 40 training batches at the final
weights. (The bound of 0.05 nats is that of an earlier form of this study, a causal language model in which
BatchNorm was behind by 0.12 nats a byte; there its sight of the future was mixed into the result.)

Refuted if: BatchNorm is 0.05 nats or less behind; statistics that were estimated anew gain 0.05 nats or
more; or PowerNorm is 0.05 nats or more behind.
"""

from __future__ import annotations

import torch
from torch import nn

from normkit.lab.design import Plot, Rows, Rule, Study, trained
from normkit.lab.judging import losses, mean_over_rows
from normkit.lab.tasks.lines import LinesTask
from normkit.norms import BatchNorm1d

ESTIMATED, ROWS = 40, 64  # training batches for new statistics, and their rows


class Lines(LinesTask):
    """With the held-out loss after BatchNorm's statistics were estimated anew."""

    def plateau(self) -> float:
        return self.baselines()["majority class"]

    @torch.no_grad()
    def metrics(self, model: nn.Module) -> dict[str, float]:
        found = super().metrics(model)
        norms = [m for m in model.modules() if isinstance(m, BatchNorm1d)]
        if norms:
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # the plain average
            generator = torch.Generator().manual_seed(0)
            model.train()
            for _ in range(ESTIMATED):
                self.loss(model, self.batch(ROWS, generator))
            model.eval()
            held_out = self.held_out()
            found["loss anew"] = mean_over_rows(losses(self, model, held_out), held_out)
        return found


COMMON = {"task": f"{__name__}:Lines", "placement": "pre", "schedule": "cosine"}
NORMS = ["layer", "batch", "power"]
SIZES = {"depth": 2, "width": 64, "batch_size": 16, "steps": 400, "warmup": 40}
SMALL = {"depth": 1, "width": 16, "batch_size": 4, "steps": 6, "warmup": 2}


def _behind(rows: Rows, norm: str) -> float:
    return rows.best("loss", norm=norm) - rows.best("loss", norm="layer")


STUDY = Study(
    claims=(44,),
    runs=trained(**COMMON, norm=NORMS, lr=[3e-3, 1e-2, 3e-2], **SIZES),
    quick_runs=trained(**COMMON, norm=NORMS, lr=[3e-3], **SMALL),
    seeds=6,
    scale="an encoder of 2 layers of 64 features (0.1 million weights), 400 steps of 16 lines of code",
    rules=(
        Rule(
            "behind",
            "BatchNorm is more than 0.05 nats behind",
            lambda r: _behind(r, "batch"),
            above=0.05,
            unit="nats a line",
            yes="In a small encoder of text BatchNorm is behind LayerNorm by {effect}.",
            no="In a small encoder of text, with padding masked, BatchNorm is not 0.05 nats behind "
            "LayerNorm: the difference is {effect}.",
        ),
        Rule(
            "running",
            "Statistics that are estimated anew gain less than 0.05 nats",
            lambda r: r.best("loss", norm="batch") - r.best("loss_anew", norm="batch"),
            below=0.05,
            unit="nats a line",
            yes="Its running statistics are not what costs it: estimated anew before evaluation they gain "
            "{effect}.",
            no="Its running statistics cost it {effect}: estimate them anew before evaluation.",
        ),
        Rule(
            "power",
            "PowerNorm is less than 0.05 nats behind LayerNorm",
            lambda r: _behind(r, "power"),
            below=0.05,
            unit="nats a line",
            yes="PowerNorm is no more than 0.05 nats behind LayerNorm: {effect}.",
            no="PowerNorm is behind LayerNorm by {effect}.",
        ),
    ),
    plots=(
        Plot(
            "lr",
            "loss",
            "norm",
            "Held-out loss of an encoder that classifies lines of text. Lower is better.",
            log_x=True,
            x_title="learning rate",
            y_title="nats a line",
        ),
        Plot(
            "lr",
            "loss_anew",
            "norm",
            "The same for BatchNorm with statistics that were estimated anew.",
            log_x=True,
            where={"norm": "batch"},
            x_title="learning rate",
            y_title="nats a line",
        ),
    ),
    limits="A small encoder and a short training; each norm was best at the lowest of its learning "
    "rates. A causal language model, where BatchNorm shows the future while it trains, is another matter:"
    " study padding-and-causality.",
)

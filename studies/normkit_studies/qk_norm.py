"""Does QK-norm keep attention logits small, and does the loss gain by it?

Question: How do the largest logits of attention grow with the learning rate, with queries and keys
normalised and without? What does QK-norm do for the loss? And is the output of attention large?

Hypothesis: At a learning rate that is too large, 3e-2, the largest logit without QK-norm is at least ten
times as large as with it, and it grows faster with the learning rate, by half a power. QK-norm lowers the
loss by more than 0.02 nats, there and at the best rate of each. The output of attention is never larger than
its values, which is arithmetic: it is an average of them.

Method: Byte-level language model of 6 layers, Pre-LN, 400 steps of 512 bytes with a cosine schedule and no
warm-up; learning rates of 3e-3, 1e-2 and 3e-2 for both. The largest q·k / sqrt(D) over all layers, heads and
held-out tokens of a batch; slope of a straight line through its logarithm over that of the learning rate.
Largest number of the output of attention over that of its values in the model so trained; and, untrained,
the ratio of their standard deviations, the largest of all layers. (An earlier version, seeds 200 to 204, had
one point, 3e-2 after 120 steps at a constant rate, above the loss of a bigram table. Its rules on logit,
output and standard deviation have kept their bounds; the last was not supported: 0.92, against a bound of
0.9. Its rows had QK-norm's loss lower by 0.079 nats, 0.010 to 0.147, and no rule on it. The slope and the
two rules on the loss came after that, and after runs with seed 0; 0.02 nats are 1 % of the loss.)

Refuted if: the ratio of the largest logits is below ten, their slopes differ by less than 0.5, QK-norm does
not lower the loss by more than 0.02 nats at 3e-2 or at the best rates, or the output is larger than the
values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from normkit.lab.design import Plot, Rows, Rule, Study, slope, trained
from normkit.lab.run import Run
from normkit.lab.tasks.text import TextTask


class _Watch(TorchFunctionMode):
    """Looks on while attention is computed, and takes notes."""

    def __init__(self) -> None:
        super().__init__()
        self.logit = self.output = self.deviation = 0.0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        y = func(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:
            query, key, value = args
            logits = (query @ key.transpose(-1, -2)) * query.shape[-1] ** -0.5
            seen = torch.ones(logits.shape[-2:], dtype=torch.bool).tril()
            self.logit = max(self.logit, logits[..., seen].abs().max().item())
            self.output = max(self.output, (y.abs().amax() / value.abs().amax()).item())
            self.deviation = max(self.deviation, (y.std() / value.std()).item())
        return y


@torch.no_grad()
def _look(model: nn.Module, task: TextTask) -> _Watch:
    with _Watch() as watch:
        task.loss(model, task.held_out()[0])
    assert watch.logit > 0
    return watch


class WatchedText(TextTask):
    """With the largest logit of attention, and its largest output over its largest value."""

    def plateau(self) -> float:
        return self.baselines()["unigram"]

    def metrics(self, model: nn.Module) -> dict[str, float]:
        seen = _look(model, self)
        return {"logit": seen.logit, "output": seen.output}


def run(cell: Mapping[str, Any]) -> dict[str, float]:
    """Before training."""
    torch.manual_seed(cell["seed"])
    task = TextTask().split(cell["seed"])
    return {"deviation": _look(task.model(Run(depth=cell["depth"])), task).deviation}


def _largest(rows: Rows) -> float:
    return max(float(row["lr"]) for row in rows if "lr" in row)


def _logit(rows: Rows, qk_norm: bool, lr: float) -> float:
    """Infinite where the run diverged; then no rule decides."""
    (row,) = rows.where(qk_norm=qk_norm, lr=lr)
    return float(row.get("logit", math.inf))


def _slope(rows: Rows, qk_norm: bool) -> float:
    rates = sorted({float(row["lr"]) for row in rows if "lr" in row})
    if len(rates) < 2:
        return math.nan
    return slope(rates, [_logit(rows, qk_norm, lr) for lr in rates], log=True)


def _ratio(rows: Rows) -> float:
    return _logit(rows, False, _largest(rows)) / _logit(rows, True, _largest(rows))


def _output(rows: Rows) -> float:
    """The largest of all learning rates."""
    return max(rows.column("output", qk_norm=False))


def _gain(rows: Rows) -> float:
    """At the largest rate."""
    lr = _largest(rows)
    return rows.get("loss", qk_norm=False, lr=lr) - rows.get("loss", qk_norm=True, lr=lr)


COMMON: dict[str, Any] = {"task": f"{__name__}:WatchedText", "norm": "layer", "placement": "pre"}
SMALL: dict[str, Any] = {"depth": 1, "width": 16, "batch_size": 4, "steps": 6}

STUDY = Study(
    claims=(31,),
    cells=({"what": "untrained", "depth": 6},),
    quick_cells=({"what": "untrained", "depth": 1},),
    measure=run,
    runs=trained(**COMMON, qk_norm=[False, True], lr=[3e-3, 1e-2, 3e-2], steps=400, schedule="cosine"),
    quick_runs=trained(**COMMON, qk_norm=[False, True], lr=[3e-3, 3e-2], schedule="cosine", **SMALL),
    scale="6 layers of 64 features (0.3 million weights), 400 steps, 0.7 bytes a parameter, Python source",
    paper="Wortsman et al. 2023: at high learning rates attention logits grow until training diverges; with "
    "QK-norm models of up to 1.2 B train at rates from 3e-4 to 0.3",
    rules=(
        Rule(
            "logit",
            "At 3e-2 the largest logit is at least ten times as large without QK-norm",
            _ratio,
            above=10,
            unit="times",
            log=True,
            yes="At a learning rate that is too large the largest logit of attention is {effect} as large "
            "without QK-norm as with it.",
            no="Even at a learning rate that is too large the largest logit of attention is not ten times as "
            "large without QK-norm as with it: {effect}.",
        ),
        Rule(
            "slope",
            "Without QK-norm the largest logit grows faster with the learning rate: difference of the slopes",
            lambda r: _slope(r, False) - _slope(r, True),
            above=0.5,
            yes="Without QK-norm it grows with the learning rate, with it much less: the slopes differ by "
            "{effect}.",
            no="It grows about as fast with the learning rate with QK-norm: the slopes differ by {effect}.",
        ),
        Rule(
            "gain",
            "At 3e-2 QK-norm lowers the loss by more than 0.02 nats",
            _gain,
            above=0.02,
            unit="nats",
            yes="At that rate QK-norm lowers the loss, by {effect}.",
            no="At that rate QK-norm does not lower the loss by 0.02 nats: {effect}.",
        ),
        Rule(
            "best",
            "At the best of three rates for each QK-norm lowers the loss by more than 0.02 nats",
            lambda r: r.best("loss", qk_norm=False) - r.best("loss", qk_norm=True),
            above=0.02,
            unit="nats",
            yes="At the best of three rates for each it still lowers the loss, by {effect}.",
            no="At the best of three rates for each it does not lower the loss by 0.02 nats: {effect}.",
        ),
        Rule(
            "output",
            "The output of attention is not larger than its values",
            _output,
            below=1.0001,
            unit="of the largest value",
            yes="The output of attention, before its projection, is never larger than its values, as an "
            "average cannot be: {effect}.",
            no="The output of attention is larger than its values: {effect}.",
        ),
        Rule(
            "deviation",
            "Before training its standard deviation is less than 0.9 of that of its values",
            lambda r: r.get("deviation", what="untrained"),
            below=0.9,
            unit="of that of the values",
            aside=True,
        ),
    ),
    plots=(
        Plot(
            "lr",
            "logit",
            "qk_norm",
            "The largest logit of attention after training, with QK-norm and without.",
            log_x=True,
            log_y=True,
            x_title="learning rate",
            y_title="largest logit",
        ),
        Plot(
            "lr",
            "loss",
            "qk_norm",
            "Held-out loss, with QK-norm and without. Lower is better.",
            log_x=True,
            x_title="learning rate",
            y_title="nats a byte",
        ),
    ),
    limits="A small model, a short training and three learning rates within a decade: the best rate with "
    "QK-norm may lie above them, where it would gain more. Whether large logits end in "
    "divergence, as in large models, was not measured: study sensitivity has more rates, widths and steps.",
)

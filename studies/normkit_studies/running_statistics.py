"""What goes wrong in a hand-written BatchNorm, bug by bug?

Question: The fifth note has a BatchNorm of thirty lines. What does it do otherwise than torch's?

Hypothesis: It differs in five places: its running variance is biased, its statistics are not saved with
the model, they carry a graph from batch to batch so that the layer cannot be copied, it takes no images,
and on (batch, length, features) it keeps statistics for every position. Its rule for the running mean is
right.

Method: The code of the note, trained for one batch of four rows and looked at from outside. And the gap
between training and evaluation mode of a right one, after 1 to 300 batches of 4 to 128 rows; and the slope of
that over the rows, in logarithms. (What is yes or no is counted over the seeds; an earlier version gave it an
interval. The slope is new.)

Refuted if: one of the five does not show, or the running mean differs from torch's.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from normkit.lab.design import Plot, Rows, Rule, Study, grid, slope
from normkit.norms import BatchNorm1d

WHAT = (
    *("running mean off by", "running variance over torch's", "missing from state_dict", "copy fails"),
    *("images fail", "statistics a feature of a sequence"),
)
BATCHES = (1, 3, 10, 30, 100, 300)


class NoteBatchNorm(nn.Module):
    """As in the note, kept wrong on purpose."""

    def __init__(self, features: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.running_mean, self.running_var = torch.zeros(features), torch.ones(features)
        self.gamma, self.beta = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            mean, var = x.mean(dim=0), x.var(dim=0, unbiased=False)
            self.running_mean = (1 - self.momentum) * self.running_mean + self.momentum * mean
            self.running_var = (1 - self.momentum) * self.running_var + self.momentum * var
        else:
            mean, var = self.running_mean, self.running_var
        return self.gamma * (x - mean) / torch.sqrt(var + self.eps) + self.beta


def run(cell: Mapping[str, Any]) -> dict[str, float]:
    torch.manual_seed(cell["seed"])
    if cell["what"] == "gap":
        return {"gap": _gap(cell["batches"], cell["rows"])}
    theirs, torchs = NoteBatchNorm(6), nn.BatchNorm1d(6)
    linear = nn.Linear(6, 6)
    x = linear(torch.randn(4, 6))
    theirs(x), torchs(x)
    assert torchs.running_mean is not None
    assert torchs.running_var is not None
    torch_mean, torch_var = torchs.running_mean, torchs.running_var
    found = {
        "running mean off by": lambda: (theirs.running_mean - torch_mean).abs().max().item(),
        "running variance over torch's": lambda: (
            ((theirs.running_var - 0.9) / (torch_var - 0.9)).mean().item()
        ),
        "missing from state_dict": lambda: float(len(torchs.state_dict()) - 1 - len(theirs.state_dict())),
        "copy fails": lambda: float(_fails(lambda: copy.deepcopy(theirs))),
        "images fail": lambda: float(_fails(lambda: NoteBatchNorm(6)(torch.randn(2, 6, 5, 5)))),
        "statistics a feature of a sequence": lambda: _sequence(),
    }
    return {"value": found[cell["what"]]()}


def _fails(call: Any) -> bool:
    try:
        call()
    except RuntimeError:
        return True
    return False


def _sequence() -> float:
    layer = NoteBatchNorm(6)
    layer(torch.randn(4, 7, 6))
    return layer.running_mean.numel() / 6


def _gap(batches: int, rows: int) -> float:
    """How far evaluation is from training on the same rows, over the size of the output."""
    layer = BatchNorm1d(16)
    for _ in range(batches):
        last = torch.randn(rows, 16) * 3 + 2
        trained = layer(last)
    layer.eval()
    return ((layer(last) - trained).norm() / trained.norm()).item()


def _at_last(rows: Rows) -> float:
    """Slope of the gap over the rows of a batch, when all statistics have settled."""
    chosen = rows.where(what="gap", batches=max(BATCHES))
    return slope([r["rows"] for r in chosen], chosen.column("gap"), log=True)


STUDY = Study(
    claims=(88, 89),
    cells=grid(what=WHAT) + grid(what=["gap"], batches=BATCHES, rows=[4, 8, 32, 128]),
    measure=run,
    kind="checked",
    scale="a layer of 6 features, and one of 16 over 300 batches of random data",
    seeds=8,
    rules=(
        Rule(
            "mean",
            "The running mean is torch's",
            lambda r: r.get("value", what=WHAT[0]),
            below=1e-6,
            no="The running mean of the note's BatchNorm is not torch's: it is off by {effect}.",
        ),
        Rule(
            "variance",
            "The running variance counts n instead of n - 1: 0.75 at four rows",
            lambda r: r.get("value", what=WHAT[1]),
            0.74,
            0.76,
            unit="of torch's",
            yes="The running variance of the note's BatchNorm is too small: {effect} with "
            "batches of four rows.",
            no="Its running variance is not three quarters of torch's with batches of four rows, but "
            "{effect}.",
        ),
        Rule(
            "saved",
            "Two statistics are missing from what is saved",
            lambda r: r.get("value", what=WHAT[2]),
            above=1.5,
            unit="tensors",
            yes="Both of its statistics are missing from what is saved.",
            no="Of its statistics {effect} are missing from what is saved.",
        ),
        Rule(
            "copied",
            "It cannot be copied once it was trained",
            lambda r: r.get("value", what=WHAT[3]),
            above=0.5,
            count=True,
            yes="Once trained it cannot be copied, for its statistics hold the graph of the batch.",
            no="It can be copied once trained; that failed in {effect}.",
        ),
        Rule(
            "images",
            "It takes no images",
            lambda r: r.get("value", what=WHAT[4]),
            above=0.5,
            count=True,
            yes="It takes no images.",
            no="It takes images; that failed in {effect}.",
        ),
        Rule(
            "positions",
            "On sequences it keeps one statistic for each of seven positions",
            lambda r: r.get("value", what=WHAT[5]),
            above=6.5,
            unit="a feature",
            yes="On sequences it keeps one mean for each position and feature.",
            no="On sequences it does not keep one mean for each position, but {effect}.",
        ),
        Rule(
            "gap",
            "After 100 batches of 8 rows evaluation still differs from training by more than 5 %",
            lambda r: r.get("gap", batches=100, rows=8),
            above=0.05,
            unit="of the output",
            aside=True,
            yes="Even a right BatchNorm differs between training and evaluation, by {effect} with batches "
            "of 8 rows.",
            no="With batches of 8 rows a right BatchNorm differs between training and evaluation by no more "
            "than 5 %: {effect}.",
        ),
        Rule(
            "gap-slope",
            "That difference falls as the root of the rows in a batch: a slope of -0.5, to 0.1",
            _at_last,
            -0.6,
            -0.4,
            aside=True,
        ),
    ),
    plots=(
        Plot(
            "batches",
            "gap",
            "rows",
            "A right BatchNorm in evaluation against training, on the same rows. With time only the size "
            "of the batch matters.",
            log_x=True,
            log_y=True,
            x_title="batches seen",
            y_title="share of the output",
        ),
        Plot(
            "what",
            "value",
            None,
            "What the note's layer does otherwise than torch's: a count, a ratio, or 1 for yes. Its "
            "running mean is right.",
            kind="rows",
        ),
    ),
    cheap=True,
    limits="The code of one note; the gap is that of one layer on data that do not change.",
)

"""Is a bias before LayerNorm redundant, and is its gain blind to a uniform error?

Question: A note says that LayerNorm cancels a bias before it, and that an error signal that is the same
for all features gives the gain no gradient. Are both so?

Hypothesis: As the note says: the best beta does what the bias of a new linear layer before LayerNorm
does, to 1 % of the output; and a uniform error gives each gain less than 1 % of its usual gradient.

Method: 512 random vectors of 64 features through a linear layer and LayerNorm. Change of the output, over
its size, for a constant bias; for the bias that a new linear layer of torch has, of a standard deviation of
0.07; for a trained one, as large as the data; and for both after the best fixed beta is taken off; gradient
of the gain under a uniform error, feature by feature and in sum, over its gradient under a random error.

Refuted if: with the best beta a new bias still changes the output by 1 % or more, or a uniform error
gives gains 1 % or more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from normkit import functional as F
from normkit.lab.design import Plot, Rule, Study, grid

ROWS, DIM = 512, 64


def run(cell: Mapping[str, Any]) -> dict[str, float]:
    torch.manual_seed(cell["seed"])
    linear = nn.Linear(DIM, DIM, dtype=torch.float64)
    with torch.no_grad():
        x = torch.randn(ROWS, DIM, dtype=torch.float64) @ linear.weight.T
    what = cell["what"]
    biases = {
        "constant": lambda: torch.full((DIM,), 0.7, dtype=torch.float64),
        "new": lambda: linear.bias.detach(),
        "large": lambda: x.std() * torch.randn(DIM, dtype=torch.float64),
    }
    if "bias" in what:
        bias = biases[what.split()[0]]()
        norm = _batch_norm if what.endswith("BatchNorm") else _layer_norm
        change = norm(x + bias) - norm(x)
        if what.endswith("best beta"):
            change = change - change.mean(dim=0)
        return {"ratio": (change.norm() / norm(x).norm()).item()}
    gain = torch.ones(DIM, dtype=torch.float64, requires_grad=True)

    def gradient(error: Tensor) -> Tensor:
        return torch.autograd.grad((F.layer_norm(x, (DIM,), gain) * error).sum(), gain)[0]

    usual = gradient(torch.randn(ROWS, DIM, dtype=torch.float64))
    uniform = gradient(torch.randn(ROWS, 1, dtype=torch.float64).expand(ROWS, DIM))
    if what == "uniform error, sum of gains":
        return {"ratio": (uniform.sum().abs() / usual.norm()).item()}
    return {"ratio": (uniform.norm() / usual.norm()).item()}


def _layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, (DIM,))


def _batch_norm(x: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, training=True)


WHAT = (
    *("constant bias", "new bias", "new bias, best beta", "large bias", "large bias, best beta"),
    *("large bias, BatchNorm", "uniform error, each gain", "uniform error, sum of gains"),
)

STUDY = Study(
    claims=(59, 62, 63),
    cells=grid(what=WHAT),
    measure=run,
    scale="512 random vectors of 64 features, untrained, in float64",
    rules=(
        Rule(
            "constant",
            "A constant bias before LayerNorm changes nothing",
            lambda r: r.get("ratio", what="constant bias"),
            below=1e-5,
            aside=True,
            yes="In part: LayerNorm cancels a bias that is the same for all features.",
            no="LayerNorm does not cancel even a bias that is the same for all features: {effect}.",
        ),
        Rule(
            "redundant",
            "The bias of a new linear layer before LayerNorm changes less than 1 %",
            lambda r: r.get("ratio", what="new bias"),
            below=0.01,
            unit="of the output",
            aside=True,
        ),
        Rule(
            "absorbed",
            "The best beta does what it does, to 1 %",
            lambda r: r.get("ratio", what="new bias, best beta"),
            below=0.01,
            unit="of the output",
            yes="Even where it is not constant, the best beta does what such a bias does, but for {effect}: "
            "leave it out.",
            no="A bias that differs from feature to feature is not redundant in exact terms: the best beta "
            "does all but {effect} of what the bias of a new layer does. Whether training without it costs "
            "anything is the question of the study bias-before-norm.",
        ),
        Rule(
            "absorbed-large",
            "Where the bias is as large as the data, the best beta does it, to 1 %",
            lambda r: r.get("ratio", what="large bias, best beta"),
            below=0.01,
            unit="of the output",
            aside=True,
        ),
        Rule(
            "gain",
            "A uniform error gives each gain less than 1 % of its usual gradient",
            lambda r: r.get("ratio", what="uniform error, each gain"),
            below=0.01,
            unit="of the usual gradient",
            yes="An error that is the same for all features gives the gain no gradient to speak of: "
            "{effect}.",
            no="An error that is the same for all features gives each gain as much gradient as any other "
            "error does, {effect}; only their sum vanishes.",
        ),
    ),
    plots=(
        Plot(
            *("what", "ratio", None),
            "Share of the output, or of the usual gradient. A constant bias vanishes, any other does not; "
            "only the sum over gains vanishes. Before BatchNorm any bias vanishes.",
            kind="rows",
            log_y=True,
            y_title="share",
        ),
    ),
    cheap=True,
    limits="What a bias can do, not what it does for a trained network (study bias-before-norm).",
)

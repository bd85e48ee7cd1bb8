"""Is a bias before LayerNorm redundant, and is its gain blind to a uniform error?

Question: A note says that LayerNorm cancels a bias before it, so that it can be left out; and that an
error signal that is the same for all features gives the gain no gradient. Are both so?

Hypothesis: As the note says: a bias before LayerNorm changes less than 1 % of the output, and a uniform
error gives each gain less than 1 % of its usual gradient.

Method: 512 random vectors of 64 features. Change of the output, over its size, for a constant bias, for a
general bias, and for a general bias after the best fixed beta is taken off; gradient of the gain under a
uniform error, feature by feature and in sum, over its gradient under a random error.

Refuted if: a general bias changes the output by 1 % or more, or a uniform error gives gains 1 % or more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from normkit import functional as F
from normkit.lab.studies.base import Plot, Rule, Study, grid

ROWS, DIM = 512, 64


def run(cell: Mapping[str, Any]) -> dict[str, float]:
    torch.manual_seed(cell["seed"])
    x = torch.randn(ROWS, DIM, dtype=torch.float64)
    before = F.layer_norm(x, (DIM,))
    what = cell["what"]
    if what in ("constant bias", "general bias", "general bias, beta refitted", "general bias, BatchNorm"):
        bias = (
            torch.full((DIM,), 0.7).double()
            if what == "constant bias"
            else torch.randn(DIM, dtype=torch.float64)
        )
        if what == "general bias, BatchNorm":
            before = F.batch_norm(x, None, None, training=True)
            change = F.batch_norm(x + bias, None, None, training=True) - before
        else:
            change = F.layer_norm(x + bias, (DIM,)) - before
        if what.endswith("refitted"):
            change = change - change.mean(dim=0)
        return {"ratio": (change.norm() / before.norm()).item() + 1e-17}
    gain = torch.ones(DIM, dtype=torch.float64, requires_grad=True)

    def gradient(error: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad((F.layer_norm(x, (DIM,), gain) * error).sum(), gain)[0]

    usual = gradient(torch.randn(ROWS, DIM, dtype=torch.float64))
    uniform = gradient(torch.randn(ROWS, 1, dtype=torch.float64).expand(ROWS, DIM))
    if what == "uniform error, sum of gains":
        return {"ratio": (uniform.sum().abs() / usual.norm()).item() + 1e-17}
    return {"ratio": (uniform.norm() / usual.norm()).item()}


WHAT = (
    *("constant bias", "general bias", "general bias, beta refitted", "general bias, BatchNorm"),
    *("uniform error, each gain", "uniform error, sum of gains"),
)

STUDY = Study(
    claims=(59, 60, 62, 63),
    cells=grid(what=WHAT),
    measure=run,
    rules=(
        Rule(
            "constant",
            "A constant bias before LayerNorm changes nothing",
            lambda r: r.get("ratio", what="constant bias"),
            below=1e-5,
        ),
        Rule(
            "redundant",
            "A general bias before LayerNorm changes less than 1 %",
            lambda r: r.get("ratio", what="general bias"),
            below=0.01,
            unit="of the output",
        ),
        Rule(
            "absorbed",
            "What it changes can be absorbed by beta, to 1 %",
            lambda r: r.get("ratio", what="general bias, beta refitted"),
            below=0.01,
            unit="of the output",
        ),
        Rule(
            "gain",
            "A uniform error gives each gain less than 1 % of its usual gradient",
            lambda r: r.get("ratio", what="uniform error, each gain"),
            below=0.01,
            unit="of the usual gradient",
        ),
    ),
    plots=(
        Plot(
            *("what", "ratio", None),
            "Share of the output, or of the usual gradient. A constant bias vanishes, a general one does "
            "not; only the sum "
            "over gains vanishes. BatchNorm does absorb any bias.",
            kind="bar",
            log_y=True,
            y_title="share",
        ),
    ),
    cheap=True,
)

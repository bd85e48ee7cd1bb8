"""How does the gradient depend on depth, at initialisation?

Question: How large is the gradient of the last feed-forward's output weight in a stack of L layers, for
Pre-LN and Post-LN?

Hypothesis: Xiong et al. 2020 (arXiv:2002.04745): in Pre-LN it falls like L^-1/2, in Post-LN it does not
depend on L; and in Pre-LN the gradients of the first layers are larger than those of the last, but do not
explode: their ratio grows less than in proportion to the depth.

Method: Stacks of 2 to 32 layers, 64 features, untrained. Norm of the gradient for the loss of one token,
averaged over four tokens; slope of a straight line through its logarithm against that of the depth. Not
for the loss averaged over tokens: in a deep Post-LN tokens become alike, so their gradients add up. Ratio
of the first layer's gradient to the last one's at 32 layers.

Refuted if: the slope of Pre-LN is outside of -0.75 to -0.25, or that of Post-LN outside of -0.25 to 0.25;
or in Pre-LN the first gradient is not twice the last at 32 layers, or the slope of that ratio is 1 or
more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from normkit.lab.design import Plot, Rows, Rule, Study, grid
from normkit.transformer import LanguageModel

DEPTHS = (2, 4, 8, 16, 32)
PLACEMENTS = ("post", "pre", "peri", "output", "deepnorm", "admin", "lns", "mix", "keel", "dual")


def untrained(placement: str, depth: int, seed: int) -> tuple[LanguageModel, Tensor]:
    """A new stack of 64 features, and eight rows of random tokens."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"vocab": 64, "dim": 64, "depth": depth, "heads": 4, "context": 64}
    model = LanguageModel(**sizes, placement=placement, activation="relu", tied=False)
    return model, torch.randint(64, (8, 32))


def slope(depths: Sequence[float], values: Sequence[float]) -> float:
    """Of a straight line through (log depth, log value)."""
    x, y = ([math.log(v) for v in numbers] for numbers in (depths, values))
    middle = fmean(x)
    return sum((a - middle) * (b - fmean(y)) for a, b in zip(x, y, strict=True)) / sum(
        (a - middle) ** 2 for a in x
    )


def slope_of(rows: Rows, name: str, placement: str) -> float:
    found = sorted((r["depth"], r[name]) for r in rows.where(placement=placement))
    return slope([d for d, _ in found], [v for _, v in found])


def run(cell: Mapping[str, Any]) -> dict[str, float]:
    model, ids = untrained(cell["placement"], cell["depth"], cell["seed"])
    blocks: Any = model.stack.blocks
    weights = [block.feed_forward.fn.output.weight for block in blocks]
    first, last = [], []
    for row in ids[:4]:
        logits = model(row[None])[:, -1]
        loss = F.cross_entropy(logits, torch.randint(64, (1,)))
        bottom, top = torch.autograd.grad(loss, [weights[0], weights[-1]])
        first.append(bottom.norm().item())
        last.append(top.norm().item())
    return {"gradient": fmean(last), "first over last": fmean(first) / fmean(last)}


STUDY = Study(
    claims=(25, 73, 77),
    cells=grid(placement=PLACEMENTS, depth=DEPTHS),
    quick_cells=grid(placement=["post", "pre"], depth=[2, 4, 32]),
    measure=run,
    rules=(
        Rule(
            "pre",
            "In Pre-LN the last gradient falls like the root of the depth",
            lambda r: slope_of(r, "gradient", "pre"),
            -0.75,
            -0.25,
            unit="slope",
        ),
        Rule(
            "post",
            "In Post-LN it does not depend on the depth",
            lambda r: slope_of(r, "gradient", "post"),
            -0.25,
            0.25,
            unit="slope",
        ),
        Rule(
            "bottom",
            "In Pre-LN of 32 layers the first gradient is more than twice the last",
            lambda r: r.get("first over last", placement="pre", depth=32),
            above=2,
            unit="times",
            log=True,
        ),
        Rule(
            "bounded",
            "In Pre-LN that ratio grows less than in proportion to the depth",
            lambda r: slope_of(r, "first over last", "pre"),
            below=1,
            unit="slope",
        ),
    ),
    plots=(
        Plot(
            "depth",
            "gradient",
            "placement",
            "Gradient of the last feed-forward's output weight. Flat: it does not depend on the depth.",
            log_x=True,
            log_y=True,
            x_title="layers",
            y_title="norm of the gradient",
        ),
        Plot(
            "depth",
            "first over last",
            "placement",
            "The first layer's gradient over the last one's.",
            log_x=True,
            log_y=True,
            x_title="layers",
            y_title="first over last",
        ),
    ),
    cheap=True,
)

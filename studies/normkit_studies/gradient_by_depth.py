"""How does the gradient depend on depth, at initialisation?

Question: How large is the gradient of the last feed-forward's output weight in a stack of L layers, in
Pre-LN, in Post-LN, and without norms? And how much larger is that of the first layer?

Hypothesis: Xiong et al. 2020 (arXiv:2002.04745): in Pre-LN it falls like L^-1/2, in Post-LN it does not
depend on L. In Pre-LN the gradients of the first layers are larger than those of the last, the more so the
deeper the stack, but less than in proportion to the depth. Without any norm gradients explode; in Pre-LN and
Post-LN they neither explode nor vanish.

Method: Stacks of 2 to 32 layers, 64 features, untrained, in float64. Norm of the gradient of the output
weight of the first and of the last feed-forward, for the loss of one token, as in the paper's theorem,
averaged over four tokens; and for the loss averaged over whole sequences, as training has it, where tokens
that become alike add up. Slopes are those of a straight line through both logarithms over all depths; the
growth with each layer that through the logarithm of the gradient against the depth, which gives a factor.
1.25 with each layer is a thousand-fold over 31. (After an earlier run with other seeds, whose ratio of first
to last in Pre-LN was 8.3 at 32 layers, that ratio at one depth became its slope over the depth; the arm
without norms, whole sequences, Peri-LN and the output norm, which was in the rows with a ratio of 40 and not
reported, were added. A first run of these seeds was in float32, where the gradient of 32 layers without norms
overflows; the rules are the same.)

Refuted if: the slope of Pre-LN is outside of -0.75 to -0.25, or that of Post-LN outside of -0.25 to 0.25; the
slope of Pre-LN's ratio of first to last is 0.25 or less, or 1 or more; without norms the first gradient grows
by 1.25 or less with each layer; or in Pre-LN or Post-LN it changes by more than that, up or down.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from normkit.lab import design
from normkit.lab.design import Plot, Rows, Rule, Study, grid
from normkit.transformer import LanguageModel

DEPTHS = (2, 4, 8, 16, 32)
PLACEMENTS = ("none", "post", "pre", "peri", "output", "deepnorm", "admin", "lns", "mix", "keel", "dual")


def untrained(placement: str, depth: int, seed: int) -> tuple[LanguageModel, Tensor]:
    """A new stack of 64 features, and eight rows of random tokens."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"vocab": 64, "dim": 64, "depth": depth, "heads": 4, "context": 64}
    model = LanguageModel(**sizes, placement=placement, activation="relu", tied=False)
    return model, torch.randint(64, (8, 32))


def slope(depths: Sequence[float], values: Sequence[float]) -> float:
    """Of a straight line through (log depth, log value)."""
    return design.slope(depths, values, log=True)


def _over_depth(rows: Rows, name: str, placement: str) -> tuple[list[int], list[float]]:
    found = sorted((r["depth"], r[name]) for r in rows.where(placement=placement))
    return [depth for depth, _ in found], [value for _, value in found]


def slope_of(rows: Rows, name: str, placement: str) -> float:
    return slope(*_over_depth(rows, name, placement))


def _a_layer(rows: Rows, name: str, placement: str) -> float:
    """The factor by which it grows with each layer."""
    depths, values = _over_depth(rows, name, placement)
    return math.exp(design.slope(depths, [math.log(value) for value in values]))


def run(cell: Mapping[str, Any]) -> dict[str, float]:
    model, ids = untrained(cell["placement"], cell["depth"], cell["seed"])
    model.double()  # without norms the gradient of 32 layers overflows float32
    blocks: Any = model.stack.blocks
    ends = [blocks[k].feed_forward.fn.output.weight for k in (0, -1)]

    def norms(loss: Tensor) -> tuple[float, float]:
        bottom, top = torch.autograd.grad(loss, ends)
        return bottom.norm().item(), top.norm().item()

    tokens = [norms(F.cross_entropy(model(row[None])[:, -1], torch.randint(64, (1,)))) for row in ids[:4]]
    first, last = (fmean(values) for values in zip(*tokens, strict=True))
    logits = model(ids)
    bottom, top = norms(F.cross_entropy(logits.flatten(0, 1), torch.randint(64, (ids.numel(),))))
    return {
        "gradient": last,
        "first gradient": first,
        "first over last": first / last,
        "whole-sequence gradient": top,
        "whole-sequence first over last": bottom / top,
    }


STUDY = Study(
    claims=(25, 30, 73, 77, 90),
    cells=grid(placement=PLACEMENTS, depth=DEPTHS),
    quick_cells=grid(placement=["none", "post", "pre", "peri", "output"], depth=[2, 4, 32]),
    measure=run,
    scale="untrained stacks of 2 to 32 layers of 64 features, random tokens",
    paper="Xiong et al. 2020: the expected gradient of the last layer is of the order d √ln d in Post-LN, "
    "and d √(ln d / L) in Pre-LN",
    rules=(
        Rule(
            "pre",
            "In Pre-LN the last gradient falls like the root of the depth: its slope",
            lambda r: slope_of(r, "gradient", "pre"),
            -0.75,
            -0.25,
            yes="Before training the gradient of the last layer falls about like the root of the depth in "
            "Pre-LN, with a slope of {effect}.",
            no="Before training the gradient of the last layer does not fall like the root of the depth in "
            "Pre-LN: its slope is {effect}.",
        ),
        Rule(
            "post",
            "In Post-LN it does not depend on the depth: its slope",
            lambda r: slope_of(r, "gradient", "post"),
            -0.25,
            0.25,
            yes="In Post-LN it does not depend on the depth: the slope is {effect}.",
            no="In Post-LN it depends on the depth, with a slope of {effect}.",
        ),
        Rule(
            "bottom",
            "In Pre-LN the first gradient over the last grows with the depth: its slope",
            lambda r: slope_of(r, "first over last", "pre"),
            above=0.25,
            yes="In Pre-LN the first layers have the larger gradients, the more so the deeper the stack: "
            "first over last has a slope of {effect}.",
            no="In Pre-LN the gradients of the first layers hardly grow against those of the last: "
            "the slope is {effect}.",
        ),
        Rule(
            "bounded",
            "In Pre-LN that slope is less than 1: less than in proportion to the depth",
            lambda r: slope_of(r, "first over last", "pre"),
            below=1,
        ),
        Rule(
            "no-norm",
            "Without any norm the first gradient grows more than 1.25-fold with each layer",
            lambda r: _a_layer(r, "first gradient", "none"),
            above=1.25,
            unit="times a layer",
            log=True,
            yes="Without any norm gradients explode with the depth: {effect}.",
            no="Even without any norm gradients do not explode with the depth: {effect}.",
        ),
        *(
            Rule(
                f"no-norm-{placement}",
                f"In {title} it changes less than that, up or down",
                partial(_a_layer, name="first gradient", placement=placement),
                0.8,
                1.25,
                unit="times a layer",
                log=True,
                yes=f"In {title} they neither explode nor vanish: {{effect}}.",
                no=f"In {title} they do so, too, or vanish: {{effect}}.",
            )
            for placement, title in (("pre", "Pre-LN"), ("post", "Post-LN"))
        ),
        Rule(
            "whole-sequence-pre",
            "The last gradient of Pre-LN falls like the root of the depth for whole sequences, too",
            lambda r: slope_of(r, "whole-sequence gradient", "pre"),
            -0.75,
            -0.25,
            aside=True,
            yes="That is the gradient for one token. For whole sequences it falls alike, with "
            "a slope of {effect}.",
            no="That is the gradient for one token. For whole sequences the slope of Pre-LN is "
            "another: {effect}.",
        ),
        Rule(
            "whole-sequence-post",
            "That of Post-LN does not depend on the depth for whole sequences, either",
            lambda r: slope_of(r, "whole-sequence gradient", "post"),
            -0.25,
            0.25,
            aside=True,
            yes="For whole sequences Post-LN's hardly depends on the depth, either: the slope is {effect}, "
            "within 0.25.",
            no="For whole sequences Post-LN's does depend on the depth, as tokens become alike: the slope is "
            "{effect}.",
        ),
        Rule(
            "whole-sequence-bottom",
            "In Pre-LN the first gradient over the last grows with the depth for whole sequences, too",
            lambda r: slope_of(r, "whole-sequence first over last", "pre"),
            above=0.25,
            aside=True,
        ),
        Rule(
            "peri",
            "In Peri-LN the first gradient over the last grows less with the depth than in Pre-LN",
            lambda r: slope_of(r, "first over last", "pre") - slope_of(r, "first over last", "peri"),
            above=0,
            aside=True,
            yes="In Peri-LN first and last layers are closer to each other than in Pre-LN: the slope of "
            "first over last is lower by {effect}.",
            no="In Peri-LN first and last layers are no closer to each other than in Pre-LN: the slope "
            "of first over last is lower by {effect}.",
        ),
        Rule(
            "output",
            "With the output norm it grows less than in proportion to the depth",
            lambda r: slope_of(r, "first over last", "output"),
            below=1,
            aside=True,
        ),
        Rule(
            "output-largest",
            "With the output norm the first gradient of 32 layers is more than ten times the last",
            lambda r: r.get("first over last", placement="output", depth=32),
            above=10,
            unit="times",
            log=True,
            aside=True,
            yes="With the output norm the first gradient of 32 layers is much larger than the last: "
            "{effect}.",
            no="With the output norm the first gradient of 32 layers is no ten times the last: {effect}.",
        ),
    ),
    plots=(
        Plot(
            "depth",
            "gradient",
            "placement",
            "Gradient of the last feed-forward's output weight, for one token. Flat: it does not depend on "
            "the depth.",
            log_x=True,
            log_y=True,
            x_title="layers",
            y_title="norm of the gradient",
        ),
        Plot(
            "depth",
            "first gradient",
            "placement",
            "That of the first feed-forward. A line that bends upwards explodes.",
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
        Plot(
            "depth",
            "whole-sequence gradient",
            "placement",
            "Gradient of the last feed-forward's output weight for whole sequences.",
            log_x=True,
            log_y=True,
            x_title="layers",
            y_title="norm of the gradient",
        ),
    ),
    seeds=8,
    cheap=True,
    limits="Stacks before training, up to 32 layers; random tokens in place of text.",
)

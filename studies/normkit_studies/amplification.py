"""Does a stack amplify small changes of its weights?

Question: How far does the output of an untrained stack move when every weight is perturbed a little, and how
does that depend on its depth? And how large is the stream at the end?

Hypothesis: Liu et al. 2020 (arXiv:2004.08249): like L in Post-LN, like log L in Pre-LN. In Post-LN the
stream keeps its variance, in Pre-LN it grows; without any norm it explodes. Each Post-LN weakens the
identity branch by the root of two.

Method: Stacks of 2 to 32 layers; every matrix gets noise of a thousandth of its standard deviation. Squared
distance of the outputs before and after. Variance of the stream behind the last layer over that behind the
first. Slopes are those of a straight line through all depths: through both logarithms, and without norms
through the logarithm of the growth against the depth, which gives a factor for each layer. By how much each
Post-LN divides the sum that it reads, which is what it does to the identity branch, as a geometric mean, at
8 layers. (The bounds of the growth were restated as slopes after an earlier run with other seeds: 1.25 a
layer is a thousand-fold over 31 layers.)

Refuted if: the slope of Post-LN is 0.8 or less, or that of Pre-LN 0.5 or more; the stream's growth over 32
layers is outside of 0.9 to 1.1 in Post-LN, its slope 0.5 or less in Pre-LN, or 1.25 a layer or less without
norms; or each Post-LN does not weaken the identity branch to below 0.95, and by the root of a half, to 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any

import torch

from normkit.lab import design
from normkit.lab.design import Plot, Rows, Rule, Study, grid
from normkit.placement import Residual
from normkit_studies.gradient_by_depth import DEPTHS, slope_of, untrained

NOISE = 1e-3  # over the standard deviation of a matrix


@torch.no_grad()
def run(cell: Mapping[str, Any]) -> dict[str, float]:
    model, ids = untrained(cell["placement"], cell["depth"], cell["seed"])
    variances: list[float] = []
    factors: list[float] = []

    def watch(_: Any, __: Any, stream: Any) -> None:
        variances.append(stream.total.var(-1).mean().item())

    def weigh(_: Any, given: Any) -> None:
        factors.append(1 / given[0].std(-1).mean().item())

    posts = [m.post for m in model.modules() if isinstance(m, Residual) and m.post is not None]
    hooks = [block.register_forward_hook(watch) for block in model.stack.blocks]
    hooks += [post.register_forward_pre_hook(weigh) for post in posts]
    before = model.hidden(ids)
    for hook in hooks:
        hook.remove()
    # The first norm reads the embedding, which is smaller than what comes later.
    identity = math.exp(fmean(math.log(factor) for factor in factors[1:])) if posts else 1.0
    for weight in model.stack.blocks.parameters():
        if weight.ndim > 1:
            weight.add_(NOISE * weight.std() * torch.randn_like(weight))
    moved = (model.hidden(ids) - before).square().sum(-1).mean().item()
    return {"moved": moved, "growth": variances[-1] / variances[0], "identity": identity}


def _a_layer(rows: Rows, placement: str) -> float:
    """The factor by which the stream's variance grows with each layer."""
    found = sorted((r["depth"], math.log(r["growth"])) for r in rows.where(placement=placement))
    return math.exp(design.slope([depth for depth, _ in found], [growth for _, growth in found]))


STUDY = Study(
    claims=(10, 76),
    cells=grid(placement=["post", "pre", "peri", "deepnorm", "lns", "keel", "none"], depth=DEPTHS),
    quick_cells=grid(placement=["post", "pre", "deepnorm", "none"], depth=[2, 8, 32]),
    measure=run,
    scale="untrained stacks of 2 to 32 layers of 64 features",
    rules=(
        Rule(
            "post",
            "Post-LN amplifies: the slope of the squared distance over the depth",
            lambda r: slope_of(r, "moved", "post"),
            above=0.8,
            yes="An untrained Post-LN stack amplifies a small change of its weights about in proportion to "
            "its depth: the squared distance rises with a slope of {effect}.",
            no="An untrained Post-LN stack does not amplify a small change of its weights in proportion to "
            "its depth: {effect}.",
        ),
        Rule(
            "pre",
            "Pre-LN hardly does: its slope",
            lambda r: slope_of(r, "moved", "pre"),
            below=0.5,
            yes="A Pre-LN stack hardly does: {effect}.",
            no="A Pre-LN stack does so, too: {effect}.",
        ),
        Rule(
            "deepnorm",
            "DeepNorm damps: its slope",
            lambda r: slope_of(r, "moved", "deepnorm"),
            below=0.0,
            aside=True,
        ),
        Rule(
            "post-stream",
            "In Post-LN the stream keeps its variance over 32 layers",
            lambda r: r.get("growth", placement="post", depth=32),
            0.9,
            1.1,
            unit="times",
        ),
        Rule(
            "pre-stream",
            "In Pre-LN it grows with the depth: its slope",
            lambda r: slope_of(r, "growth", "pre"),
            above=0.5,
        ),
        Rule(
            "no-norm",
            "Without norms it grows more than 1.25-fold with each layer",
            lambda r: _a_layer(r, "none"),
            above=1.25,
            unit="times a layer",
            log=True,
            yes="Without any norm the variance of the stream explodes, by {effect}.",
            no="Even without any norm the variance of the stream does not explode: {effect}.",
        ),
        Rule(
            "identity",
            "Each Post-LN weakens the identity branch",
            lambda r: r.get("identity", placement="post", depth=8),
            below=0.95,
            unit="times",
        ),
        Rule(
            "root-half",
            "It does so by the root of a half, to 5 %",
            lambda r: r.get("identity", placement="post", depth=8),
            0.672,
            0.743,
            unit="times",
        ),
    ),
    plots=(
        Plot(
            "depth",
            "moved",
            "placement",
            "How far the output moves when all weights are perturbed. A steep line: a stack that is hard to "
            "train.",
            log_x=True,
            log_y=True,
            x_title="layers",
            y_title="squared distance",
        ),
        Plot(
            "depth",
            "growth",
            "placement",
            "Variance of the residual stream behind the last layer over that behind the first.",
            log_x=True,
            log_y=True,
            x_title="layers",
            y_title="growth of the stream",
        ),
    ),
    seeds=8,
    cheap=True,
    limits="Stacks before training, up to 32 layers.",
)

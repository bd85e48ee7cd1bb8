"""Does BatchNorm help because it reduces internal covariate shift?

Question: TODO

Hypothesis: TODO

Method: TODO

Refuted if: TODO
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normkit.lab.design import Plot, Rows, Rule, Study, grid
from normkit_studies.small_batches import (
    NORMS,
    STRIDES,
    Images,
    Norm,
    Step,
    estimate_statistics,
    judged,
    network,
    split,
    training,
)

SIZE = 32  # images in a batch
PROBE = 128  # images by which a shift is measured
POINTS = 20  # of a training at which shift and variation are measured
LENGTHS = (0.5, 1.0, 2.0, 4.0)  # of steps along the gradient, over the learning rate
LOSS, SMOOTH = 0.1, 26  # nats; batches, a third of an epoch


class Noise(nn.Module):
    """Scale and shift by random numbers, whose distribution is drawn anew for every channel at every step.

    In evaluation by their expectation. Algorithm 1 of the paper, with its constants.
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
    before: list[Moments] = []
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
            shifts.append(_shift(before, _moments(model, probe)))
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


def _shift(before: Moments, after: Moments) -> tuple[float, float]:
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
    weights = [weight for weight in model.parameters() if weight.grad is not None]
    start = [weight.clone() for weight in weights]
    losses = []
    for length in LENGTHS:
        for weight, old in zip(weights, start, strict=True):
            weight.copy_(old - length * lr * weight.grad)
        losses.append(float(F.cross_entropy(model(step.batch.x), step.batch.y)))
    for weight, old in zip(weights, start, strict=True):
        weight.copy_(old)
    return max(losses) - min(losses)


def _steps_to(losses: list[float]) -> float:
    """After how many steps the mean of the last batches is below the loss; infinite if it never is."""
    ends = range(SMOOTH, len(losses) + 1)
    return next((end for end in ends if fmean(losses[end - SMOOTH : end]) < LOSS), math.inf)


STUDY = Study(claims=(6,), rules=(), plots=())

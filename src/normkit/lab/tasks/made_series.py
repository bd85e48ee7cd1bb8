"""Series that need no download: made here, always the same, and said to be so."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from normkit.lab.tasks.series_data.panel import Panel

__all__ = ["made_classes", "made_forecast"]

HOURS, CHANNELS = 6000, 4
KINDS = ("sine", "square", "sawtooth", "triangle", "chirp", "noise")
SERIES, STEPS = 960, 128  # of the classes


@functools.cache
def made_forecast() -> Panel:
    r"""Four channels, hour by hour: a day, a week, a level and a scale that wander, and noise that lingers.

        x_t = level_t + exp(scale_t) · (day_t + week_t) + noise_t
        level_t = 0.997 level_{t−1} + 0.04 ε_t + jump_t,   about every 500 hours a jump of size 1
        scale_t = 0.997 scale_{t−1} + 0.02 ε_t,            noise_t = 0.7 noise_{t−1} + 0.2 ε_t

    Daily and weekly shapes have two harmonics each, others in every channel; half of the variance of level
    and scale is common to all channels.
    """
    draw = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    def common(size: float) -> Tensor:
        return size * (random(HOURS, 1) + random(HOURS, CHANNELS)) / math.sqrt(2)

    hours = torch.arange(HOURS, dtype=torch.float64)[:, None]
    waves = torch.zeros(HOURS, CHANNELS, dtype=torch.float64)
    for period, size in ((24, 1.0), (12, 0.5), (168, 0.6), (84, 0.3)):
        amplitude = size * (0.75 + 0.5 * torch.rand(CHANNELS, generator=draw, dtype=torch.float64))
        phase = 2 * math.pi * torch.rand(CHANNELS, generator=draw, dtype=torch.float64)
        waves += amplitude * (2 * math.pi * hours / period + phase).sin()
    jumps = (torch.rand(HOURS, CHANNELS, generator=draw) < 1 / 500) * random(HOURS, CHANNELS)
    level, scale = _lasting(common(0.04) + jumps, 0.997), _lasting(common(0.02), 0.997)
    values = level + scale.exp() * waves + _lasting(0.2 * random(HOURS, CHANNELS), 0.7)
    names = tuple(f"channel {k}" for k in range(1, CHANNELS + 1))
    source = f"made here: {HOURS:,} hours of {CHANNELS} channels, with days, weeks, jumps and noise"
    series = torch.zeros(HOURS, dtype=torch.long)
    return Panel(source, names, values, series, hours.flatten() / HOURS)


def _lasting(shocks: Tensor, share: float) -> Tensor:
    """x_t = share · x_{t−1} + shock_t, along the first axis."""
    x = shocks.clone()
    for t in range(1, len(x)):
        x[t] += share * x[t - 1]
    return x


@functools.cache
def made_classes() -> Panel:
    r"""Waves of six kinds, each series at a level, a scale, a period and a phase of its own, under noise.

        x_t = level + scale · (wave(phase + t / period) + ε_t)

    Kinds: sine, square, sawtooth, triangle, a chirp whose period shrinks, and no wave but noise that lingers.
    Level and scale say nothing about the kind.
    """
    draw = torch.Generator().manual_seed(0)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(SERIES, 1, generator=draw, dtype=torch.float64)

    steps = torch.arange(STEPS, dtype=torch.float64)[None]
    turns = uniform(0, 1) + steps / uniform(12, 32)
    faster = turns + 0.5 * (steps / STEPS) ** 2 * STEPS / 24
    noise = torch.randn(SERIES, STEPS, generator=draw, dtype=torch.float64)
    waves = {
        "sine": (2 * math.pi * turns).sin() * math.sqrt(2),
        "square": (2 * math.pi * turns).sin().sign(),
        "sawtooth": (2 * (turns % 1) - 1) * math.sqrt(3),
        "triangle": (4 * (turns % 1 - 0.5).abs() - 1) * math.sqrt(3),
        "chirp": (2 * math.pi * faster).sin() * math.sqrt(2),
        "noise": _lasting(noise.mT, 0.9).mT * math.sqrt(1 - 0.9**2),
    }
    labels = torch.arange(SERIES) % len(KINDS)
    chosen = torch.stack([waves[kind] for kind in KINDS])[labels, torch.arange(SERIES)]
    hiss = 0.5 * torch.randn(SERIES, STEPS, generator=draw, dtype=torch.float64)
    values = uniform(-2, 2) + uniform(-1.5, 0.5).exp() * (chosen + hiss)
    return Panel(
        f"made here: {SERIES} series of {STEPS} steps, waves of {len(KINDS)} kinds at any level and scale",
        ("wave",),
        values.reshape(-1, 1),
        torch.arange(SERIES).repeat_interleave(STEPS),
        (steps / STEPS).expand(SERIES, STEPS).flatten(),
        labels.repeat_interleave(STEPS),
        KINDS,
    )

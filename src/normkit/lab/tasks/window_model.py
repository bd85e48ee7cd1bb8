"""A Transformer over windows of a series, with or without a normalisation of each window."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normkit.transformer import Encoder

if TYPE_CHECKING:
    from normkit.lab.run import Run

__all__ = ["ReversibleInstanceNorm", "WindowModel"]


class ReversibleInstanceNorm(nn.Module):
    r"""Normalise each channel of each window by its own statistics, and undo that at the output (RevIN).

        x_hat = (x − mean) / std · weight + bias,   y = (y_hat − bias) / weight · std + mean
        mean, var over the steps of the window,     std = sqrt(var + eps)

    The first line's left half is an InstanceNorm over (N, channels, steps); the statistics of the window go
    around the network, which need not know at which level and scale a series is.

    Shape: (N, steps, channels) -> the same; ``undo`` takes (N, horizon, channels).

    Example:
        >>> norm, x = ReversibleInstanceNorm(3), torch.randn(2, 8, 3)
        >>> x_hat, statistics = norm(x)
        >>> torch.allclose(norm.undo(x_hat, statistics), x, atol=1e-5)
        True

    Reference: Kim et al. 2022, "Reversible Instance Normalization for Accurate Time-Series Forecasting
    against Distribution Shift", ICLR.
    """

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        var, mean = torch.var_mean(x, dim=1, correction=0, keepdim=True)
        std = (var + self.eps).sqrt()
        return (x - mean) / std * self.weight + self.bias, (mean, std)

    def undo(self, y: Tensor, statistics: tuple[Tensor, Tensor], channels: Tensor | None = None) -> Tensor:
        """Of all channels, or of those that ``channels`` numbers."""
        mean, std = statistics
        own = slice(None) if channels is None else channels
        # As in the reference: a weight that passes through 0 is not divided by.
        y_hat = (y - self.bias[own]) / (self.weight[own] + self.eps * self.eps)
        return y_hat * std[..., own] + mean[..., own]


class WindowModel(nn.Module):
    """Patches of a window, an Encoder over them, a linear output of all of them.

    Shape: (N, length, channels) -> (N, outputs...). A window that patches do not divide is continued to the
    front with its first value.

    Args:
        run: norm, placement, depth and width.
        length, channels, patch, heads: the steps of a window and of a patch; heads of attention.
        outputs: (horizon, channels) of a forecast, or (classes,).
        targets: the channels that are forecast; None for a classification.
        instance: normalise each window, and undo it for a forecast.

    Reference: patches: Nie et al. 2023, arXiv:2211.14730.
    """

    targets: Tensor | None

    def __init__(
        self,
        run: Run,
        *,
        length: int,
        channels: int,
        patch: int,
        heads: int,
        outputs: tuple[int, ...],
        targets: Tensor | None,
        instance: bool,
    ) -> None:
        super().__init__()
        self.patch, self.missing, self.outputs = patch, -length % patch, outputs
        tokens = (length + self.missing) // patch
        self.instance = ReversibleInstanceNorm(channels) if instance else None
        self.register_buffer("targets", targets, persistent=False)
        self.entry = nn.Linear(patch * channels, run.width)
        self.encoder = Encoder(
            vocab=None,
            dim=run.width,
            depth=run.depth,
            heads=heads,
            context=tokens,
            positions="learned",
            placement=run.placement_rule,
            norm=run.norm_factory,
        )
        self.head = nn.Linear(tokens * run.width, torch.Size(outputs).numel())

    def forward(self, x: Tensor) -> Tensor:
        statistics = None
        if self.instance is not None:
            x, statistics = self.instance(x)
        if self.missing:
            x = F.pad(x.mT, (self.missing, 0), mode="replicate").mT
        patches = x.unflatten(1, (-1, self.patch)).flatten(2)
        y = self.head(self.encoder(self.entry(patches)).flatten(1)).unflatten(1, self.outputs)
        if self.instance is not None and statistics is not None and self.targets is not None:
            return self.instance.undo(y, statistics, self.targets)
        return y

"""Forecasts that are simpler than any network: what a loss is set beside."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["simple_forecasts"]

RIDGE = 1e-3  # for each fitted window: windows of a smooth series are nearly alike


def simple_forecasts(
    x: Tensor, targets: Tensor, horizon: int, seen: tuple[Tensor, Tensor]
) -> dict[str, Tensor]:
    """The forecasts (N, horizon, targets) for windows (N, length, channels), by name.

    Args:
        x: windows, standardised: the mean of the training data is 0.
        targets: the channels that are forecast.
        seen: windows of the training data and what came after them, for the one that is fitted.
    """
    x = x[..., targets]
    last = x[:, -1:]
    shape = (len(x), horizon, len(targets))
    return {
        "the mean": torch.zeros(shape),
        "the window's mean": x.mean(dim=1, keepdim=True).expand(shape),
        "the last value": last.expand(shape),
        "a linear forecast": _linear(seen[0][..., targets], seen[1], x),
    }


def _linear(seen: Tensor, after: Tensor, x: Tensor) -> Tensor:
    """Least squares from window to forecast, both less the window's last value; the same for all channels.

    Reference: NLinear, Zeng et al. 2023, arXiv:2205.13504.
    """

    def rows(windows: Tensor, last: Tensor) -> Tensor:
        return (windows - last).mT.flatten(0, 1).double()  # (N · channels, steps)

    last = seen[:, -1:]
    a, b = rows(seen, last), rows(after, last)
    gram = a.mT @ a + RIDGE * len(a) * torch.eye(a.shape[1], dtype=a.dtype)
    weight = torch.linalg.solve(gram, a.mT @ b)
    y = (rows(x, x[:, -1:]) @ weight).unflatten(0, (len(x), -1)).mT
    return (y + x[:, -1:]).float()

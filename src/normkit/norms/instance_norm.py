from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.nn.modules import instancenorm

from normkit import checks, functional
from normkit.errors import user_error
from normkit.norms.affine import reset_affine

__all__ = ["InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"]


class InstanceNormBase(instancenorm._InstanceNorm):
    """What every InstanceNorm shares. The named classes also inherit from torch's."""

    axis: int = 1
    rank: int  # how many axes a batched input has; one fewer is a single sample

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        axis: int = 1,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)  # type: ignore[arg-type]
        if not bias:  # torch has this argument in recent releases only
            self.register_parameter("bias", None)
        self.axis = axis

    def reset_parameters(self) -> None:
        self.reset_running_stats()
        reset_affine(self)

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        self._check_input_dim(input)
        if input.dim() == self.rank - 1:
            mask = mask.unsqueeze(0) if isinstance(mask, Tensor) else mask
            return self.forward(input.unsqueeze(0), mask).squeeze(0)
        self._check_channels(input)
        return functional.instance_norm(
            input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            0.0 if self.momentum is None else self.momentum,
            self.eps,
            axis=self.axis,
            mask=mask,
        )

    def _check_input_dim(self, input: Tensor) -> None:
        checks.floating(type(self).__name__, input)
        if input.dim() not in (self.rank - 1, self.rank):
            raise user_error(
                f"{type(self).__name__} got an input of shape {tuple(input.shape)}, with {input.dim()} axes.",
                expected=f"{self.rank} axes, or {self.rank - 1} without the batch",
            )

    def _check_channels(self, input: Tensor) -> None:
        channels = input.shape[checks.axis_of(type(self).__name__, self.axis, input.dim())]
        if channels == self.num_features:
            return
        who = f"{type(self).__name__}({self.num_features})"
        got = f"{who} got an input with {channels} channels at axis {self.axis}"
        if self.affine or self.track_running_stats:
            raise user_error(f"{got}.", expected=f"{self.num_features}", fix="point axis= at the channels.")
        warnings.warn(f"{got}; nothing depends on the number, as affine=False.", stacklevel=3)

    def extra_repr(self) -> str:
        return super().extra_repr() + (f", axis={self.axis}" if self.axis != 1 else "")


class InstanceNorm1d(InstanceNormBase, nn.InstanceNorm1d):
    r"""Normalise each channel of each sample by itself; scale and shift it.

        y = (x - mean) / sqrt(var + eps) * weight + bias

    where mean and (biased) variance are taken over the positions of one channel: ``n c [l]``.

    Shape: (batch, channels, length), or (channels, length) for one sample -> the same. Statistics in fp32 or
    wider, output in x.dtype.

    Args:
        num_features: how many channels.
        eps: added to the variance, inside the root.
        momentum: how fast the running averages follow.
        affine: whether there are a weight (starts at 1) and a bias (starts at 0), one number a channel.
        track_running_stats: True keeps running averages and uses them in evaluation.
        bias: False leaves the bias out.
        axis: where the channels are; -1 for channel-last data.

    ``forward(x, mask)``: the mask is True where a value is real. Padding enters no statistic, gets no
    gradient, and comes out as 0. It has the input's shape without the channel axis, or broadcasts against it.

    Example:
        >>> InstanceNorm1d(3)(torch.randn(2, 3, 8)).shape
        torch.Size([2, 3, 8])

    Reference: Ulyanov, Vedaldi & Lempitsky 2016, arXiv:1607.08022.
    """

    rank = 3


class InstanceNorm2d(InstanceNormBase, nn.InstanceNorm2d):
    r"""Normalise each channel of each image by itself: ``n c [h w]``.

    Shape: (batch, channels, height, width) or (channels, height, width) -> the same. All else as in
    :class:`InstanceNorm1d`.

    Example:
        >>> InstanceNorm2d(3)(torch.randn(3, 8, 8)).shape
        torch.Size([3, 8, 8])
    """

    rank = 4


class InstanceNorm3d(InstanceNormBase, nn.InstanceNorm3d):
    r"""Normalise each channel of each volume by itself: ``n c [d h w]``.

    Shape: (batch, channels, depth, height, width) or without the batch -> the same. All else as in
    :class:`InstanceNorm1d`.

    Example:
        >>> InstanceNorm3d(3)(torch.randn(1, 3, 4, 4, 4)).shape
        torch.Size([1, 3, 4, 4, 4])
    """

    rank = 5

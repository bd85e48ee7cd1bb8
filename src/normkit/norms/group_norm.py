from __future__ import annotations

import torch
from torch import Tensor, nn

from normkit import functional
from normkit.errors import user_error
from normkit.norms.affine import reset_affine

__all__ = ["GroupNorm"]


class GroupNorm(nn.GroupNorm):
    r"""Normalise groups of channels, each sample by itself; scale and shift each channel.

        y = (x - mean) / sqrt(var + eps) * weight + bias

    where mean and (biased) variance are taken over the channels of a group and all positions:
    ``n (g [c]) [h w]``. One channel a group is InstanceNorm, one group is LayerNorm over the whole sample.

    Shape: (batch, channels, ...) -> the same. Statistics in fp32 or wider, output in x.dtype.

    Args:
        num_groups: how many groups; it divides ``num_channels``.
        num_channels: how many channels.
        eps: added to the variance, inside the root.
        affine: whether there are a weight (starts at 1) and a bias (starts at 0), one number a channel.
        bias: False leaves the bias out.
        axis: where the channels are; -1 for channel-last data.

    ``forward(x, mask)``: the mask is True where a value is real. Padding enters no statistic, gets no
    gradient, and comes out as 0.

    Example:
        >>> GroupNorm(2, 6)(torch.randn(1, 6, 4, 4)).shape
        torch.Size([1, 6, 4, 4])

    Reference: Wu & He 2018, arXiv:1803.08494.
    """

    axis: int = 1

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        axis: int = 1,
    ) -> None:
        if num_groups < 1 or num_channels % num_groups != 0:
            raise user_error(
                f"GroupNorm got num_channels={num_channels} and num_groups={num_groups}.",
                expected="num_groups to divide num_channels",
            )
        super().__init__(num_groups, num_channels, eps, affine, device, dtype)
        if not bias:  # torch has this argument in recent releases only
            self.register_parameter("bias", None)
        self.axis = axis

    def reset_parameters(self) -> None:
        reset_affine(self)

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        return functional.group_norm(
            input, self.num_groups, self.weight, self.bias, self.eps, axis=self.axis, mask=mask
        )

    def extra_repr(self) -> str:
        return super().extra_repr() + (f", axis={self.axis}" if self.axis != 1 else "")

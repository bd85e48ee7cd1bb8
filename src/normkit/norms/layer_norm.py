from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from normkit import functional

__all__ = ["LayerNorm"]


class LayerNorm(nn.LayerNorm):
    r"""Give the last axes of every sample mean 0 and variance 1, then scale and shift each feature.

        y = (x - mean) / sqrt(var + eps) * weight + bias

    where mean and (biased) variance are taken over the normalised axes: ``... [d]``.

    Shape: (..., *normalized_shape) -> the same. Statistics in fp32 or wider, output in x.dtype.

    Args:
        normalized_shape: sizes of the normalised axes, one or several.
        eps: added to the variance, inside the root.
        elementwise_affine: whether there are a weight (starts at 1) and a bias (starts at 0).
        bias: False leaves the bias out.
        axis: the normalised axis, or the last of several. ``axis=1`` normalises the channels of
            (batch, channels, height, width).

    Example:
        >>> LayerNorm(4)(torch.tensor([1.0, 2, 3, 4]))
        tensor([-1.3416, -0.4472,  0.4472,  1.3416], grad_fn=...)
        >>> LayerNorm(3, axis=1)(torch.randn(2, 3, 5, 5)).shape
        torch.Size([2, 3, 5, 5])

    Reference: Ba, Kiros & Hinton 2016, arXiv:1607.06450.
    """

    axis: int = -1

    def __init__(
        self,
        normalized_shape: int | Sequence[int] | torch.Size,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        axis: int = -1,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)
        self.axis = axis

    def forward(self, input: Tensor) -> Tensor:
        return functional.layer_norm(
            input, self.normalized_shape, self.weight, self.bias, self.eps, axis=self.axis
        )

    def extra_repr(self) -> str:
        return super().extra_repr() + (f", axis={self.axis}" if self.axis != -1 else "")

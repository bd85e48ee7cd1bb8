from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from normkit import checks
from normkit.kernels.moments import widen
from normkit.norms.affine import make_affine, reset_affine

__all__ = ["DyT"]


class DyT(nn.Module):
    r"""Dynamic tanh: squash every number by itself, in place of a norm. No numbers share anything.

        y = tanh(alpha * x) * weight + bias

    where ``alpha`` is a single learned number, and ``weight`` and ``bias`` are those of LayerNorm.

    Shape: (..., *normalized_shape) -> the same. Computed in fp32 or wider, output in x.dtype.

    Args:
        normalized_shape: sizes of the axes that weight and bias have, as in :class:`LayerNorm`.
        alpha: where alpha starts.
        elementwise_affine: whether there are a weight (starts at 1) and a bias (starts at 0).
        bias: False leaves the bias out.
        axis: the axis of weight and bias, or the last of several; 1 for (batch, channels, height, width).

    Example:
        >>> DyT(3, alpha=1.0)(torch.tensor([-10.0, 0, 10]))
        tensor([-1.,  0.,  1.], grad_fn=...)

    Reference: Zhu, Chen, He, LeCun & Liu 2025, arXiv:2503.10622.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        alpha: float = 0.5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        axis: int = -1,
    ) -> None:
        super().__init__()
        self.normalized_shape = (
            tuple(normalized_shape) if isinstance(normalized_shape, Sequence) else (int(normalized_shape),)
        )
        self.init_alpha = alpha
        self.elementwise_affine = elementwise_affine
        self.axis = axis
        self.alpha = nn.Parameter(torch.empty((), device=device, dtype=dtype))
        bias = elementwise_affine and bias
        make_affine(
            self, self.normalized_shape, weight=elementwise_affine, bias=bias, device=device, dtype=dtype
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.alpha, self.init_alpha)
        reset_affine(self)

    def forward(self, x: Tensor) -> Tensor:
        checks.floating("DyT", x)
        axes = checks.normalized_axes("DyT", x, self.normalized_shape, self.axis, {})
        wide = widen(x)
        y = torch.tanh(self.alpha.to(wide.dtype) * wide)
        trailing = (1,) * (x.ndim - 1 - axes[-1])
        if self.weight is not None:
            y = y * self.weight.to(wide.dtype).reshape(self.normalized_shape + trailing)
        if self.bias is not None:
            y = y + self.bias.to(wide.dtype).reshape(self.normalized_shape + trailing)
        return y.to(x.dtype)

    def extra_repr(self) -> str:
        axis = f", axis={self.axis}" if self.axis != -1 else ""
        return (
            f"{self.normalized_shape}, alpha={self.init_alpha}, "
            f"elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}{axis}"
        )

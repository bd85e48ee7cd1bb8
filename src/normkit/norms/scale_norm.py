from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from normkit import checks
from normkit.kernels.moments import moments, widen

__all__ = ["ScaleNorm"]


class ScaleNorm(nn.Module):
    r"""Give every vector one learned length.

        y = scale * x / sqrt(‖x‖² + eps²)

    where ‖x‖ is the length of the last axis, ``... [d]`` and not centred, and ``scale`` is a single number
    that starts at sqrt(dim): as such it is RMSNorm without a weight. (The paper's code divides by
    max(‖x‖, eps), which is the same but for vectors as short as eps, and not smooth there.)

    Shape: (..., dim) -> (..., dim). Statistics in fp32 or wider, output in x.dtype.

    Args:
        dim: size of the normalised axis.
        eps: a length that does not count.
        axis: the normalised axis.

    Example:
        >>> ScaleNorm(4)(torch.tensor([3.0, 0, 4, 0]))
        tensor([1.2000, 0.0000, 1.6000, 0.0000], grad_fn=...)

    Reference: Nguyen & Salazar 2019, arXiv:1910.05895.
    """

    def __init__(
        self,
        dim: int,
        eps: float = 1e-5,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        axis: int = -1,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.eps = eps
        self.axis = axis
        self.scale = nn.Parameter(torch.empty((), device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.scale, math.sqrt(self.dim))

    def forward(self, x: Tensor) -> Tensor:
        checks.floating("ScaleNorm", x)
        axes = checks.normalized_axes("ScaleNorm", x, (self.dim,), self.axis, {})
        # mean(x²) = ‖x‖² / dim
        x_hat = moments(x, axes, center=False).x_hat(self.eps**2 / self.dim)
        return (x_hat * (widen(self.scale) / math.sqrt(self.dim))).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.dim}, eps={self.eps}" + (f", axis={self.axis}" if self.axis != -1 else "")

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from normkit import checks
from normkit.kernels.moments import widen

__all__ = ["ScaleNorm"]


class ScaleNorm(nn.Module):
    r"""Give every vector one learned length.

        y = scale * x / max(‖x‖₂, eps)

    where ‖x‖₂ is the length of the last axis and ``scale`` is a single number that starts at sqrt(dim).
    With that start it is RMSNorm without a weight.

    Shape: (..., dim) -> (..., dim). The length is taken in fp32 or wider, output in x.dtype.

    Args:
        dim: size of the last axis.
        eps: the least length that is divided by.

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
    ) -> None:
        super().__init__()
        self.dim = dim
        self.eps = eps
        self.scale = nn.Parameter(torch.empty((), device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.scale, math.sqrt(self.dim))

    def forward(self, x: Tensor) -> Tensor:
        checks.floating("ScaleNorm", x)
        checks.normalized_axes("ScaleNorm", x, (self.dim,), -1, {})
        wide = widen(x)
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        return (self.scale.to(wide.dtype) * wide / length.clamp_min(self.eps)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.dim}, eps={self.eps}"

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normkit.kernels.cpu import library

__all__ = ["Linear"]

FEW = 8  # rows; for more of them a matrix product is faster


class Linear(nn.Linear):
    """torch's linear layer, but faster where a model writes one token after the other.

        y = x weightᵀ + bias

    A few rows without a gradient are bound by reading the weight, which torch does with one thread.
    """

    def forward(self, input: Tensor) -> Tensor:
        if self._is_small(input):
            y: Tensor = library.raw("linear")(input, self.weight, self.bias)
            return y
        return F.linear(input, self.weight, self.bias)

    def _is_small(self, x: Tensor) -> bool:
        return (
            not torch.is_grad_enabled()
            and library.is_plain(x)
            and 0 < x.numel() <= FEW * self.in_features
            and library.MISSING is None
            and type(self.weight) is nn.Parameter
            and self.weight.dtype == x.dtype == torch.float32
            and x.shape[-1] == self.in_features
            and x.is_contiguous()
            and self.weight.is_contiguous()
            and not torch.is_autocast_enabled("cpu")
        )

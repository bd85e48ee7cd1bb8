from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from normkit import checks, functional

__all__ = ["RMSNorm"]


class RMSNorm(nn.RMSNorm):
    r"""Divide by the root mean square of the last axes; do not centre.

        y = x / sqrt(mean(x²) + eps) * weight

    where the mean is taken over the normalised axes: ``... [d]``, not centred.

    Shape: (..., *normalized_shape) -> the same. Statistics in fp32 or wider, output in x.dtype.

    Args:
        normalized_shape: sizes of the normalised axes, one or several.
        eps: added to the mean square, inside the root; None stands for the epsilon of the
            input's dtype or float32, whichever is wider.
        elementwise_affine: whether there is a weight.
        axis: the normalised axis, or the last of several.
        zero_centered_weight: multiply by 1 + weight, with a weight that starts at 0 (Gemma), so that weight
            decay pulls the gain towards 1.
        multiply: "before_cast" multiplies by the weight in fp32 and rounds once; "after_cast" rounds to the
            input's dtype first and multiplies in the dtype of both (Llama), so that a wider weight widens
            the output. The two differ for fp16 and bf16 alone.

    Example:
        >>> RMSNorm(4)(torch.ones(2, 4)).shape
        torch.Size([2, 4])
        >>> RMSNorm(4, zero_centered_weight=True).weight.sum().item()
        0.0

    Reference: Zhang & Sennrich 2019, arXiv:1910.07467.
    """

    axis: int = -1
    zero_centered_weight: bool = False
    multiply: str = "before_cast"

    def __init__(
        self,
        normalized_shape: int | Sequence[int] | torch.Size,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        axis: int = -1,
        zero_centered_weight: bool = False,
        multiply: str = "before_cast",
    ) -> None:
        checks.one_of(multiply, functional.MULTIPLY, what="multiply=")
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        self.axis = axis
        self.zero_centered_weight = zero_centered_weight
        self.multiply = multiply
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.elementwise_affine and self.zero_centered_weight:
            nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(
            x,
            self.normalized_shape,
            self.weight,
            self.eps,
            axis=self.axis,
            zero_centered_weight=self.zero_centered_weight,
            multiply=self.multiply,
        )

    def extra_repr(self) -> str:
        ours = {"axis": -1, "zero_centered_weight": False, "multiply": "before_cast"}
        changed = (
            f", {k}={getattr(self, k)!r}" for k, default in ours.items() if getattr(self, k) != default
        )
        return super().extra_repr() + "".join(changed)

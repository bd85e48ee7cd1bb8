from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from normkit import checks
from normkit.kernels.moments import valid, widen
from normkit.norms.affine import make_affine, reset_affine

__all__ = ["PowerNorm"]


class PowerNorm(nn.Module):
    r"""Divide each feature by a running root mean square; approximate the gradient with a running one.

        forward    x_hat = x / psi                               psi² as it was before this batch
                   y     = x_hat * weight + bias
                   psi²  <- psi² + (1 - alpha_forward) (mean(x²) - psi²)

        backward   g     = dL/dx_hat = dL/dy * weight
                   dL/dx = (g - nu * x_hat) / psi                nu as it was before this batch
                   nu    <- nu + (1 - alpha_backward) (mean(g * x_hat) - nu * mean(x_hat²))

    where the means are taken over everything but the features, ``[...] d`` and not centred, and psi stands
    for sqrt(psi² + eps). Because the output depends on earlier batches, the gradient is approximate by
    definition: it has no second derivative, and asking for one raises. In training it knows neither
    ``torch.func`` nor activation checkpointing, which would compute the forward again with a psi that moved.

    Shape: (batch, ..., dim) -> the same, in training; any number of batch axes. Statistics in fp32 or wider,
    output in x.dtype.

    Args:
        num_features: size of the feature axis.
        eps: added to psi², inside the root.
        alpha_forward: how slowly psi² follows the batches.
        alpha_backward: how slowly nu follows the gradients.
        affine: whether there are a weight (starts at 1) and a bias (starts at 0).
        axis: where the features are.

    ``forward(x, mask)``: the mask is True where a value is real. Padding enters no statistic, gets no
    gradient, and comes out as 0.

    Example:
        >>> norm = PowerNorm(4)
        >>> _ = norm(3 * torch.ones(2, 4))
        >>> norm.running_square
        tensor([1.8000, 1.8000, 1.8000, 1.8000])

    Reference: Shen, Yao, Gholami, Mahoney & Keutzer 2020, arXiv:2003.07845, algorithm 2.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_square: Tensor
    running_grad: Tensor

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        alpha_forward: float = 0.9,
        alpha_backward: float = 0.9,
        affine: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        axis: int = -1,
    ) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.alpha_forward = alpha_forward
        self.alpha_backward = alpha_backward
        self.affine = affine
        self.axis = axis
        make_affine(self, (num_features,), weight=affine, bias=affine, device=device, dtype=dtype)
        self.register_buffer("running_square", torch.empty(num_features, device=device, dtype=dtype))
        self.register_buffer("running_grad", torch.empty(num_features, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.running_square)
        nn.init.zeros_(self.running_grad)
        reset_affine(self)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        checks.floating("PowerNorm", x)
        state = {"running_square": self.running_square}
        axis = checks.channel_axis("PowerNorm", x, self.axis, state)
        mask = checks.mask_like("PowerNorm", mask, x, (axis,))
        mask = None if mask is None else mask.expand(x.shape).movedim(axis, x.ndim - 1)
        rows = valid(widen(x).movedim(axis, x.ndim - 1), mask)
        square = self.running_square.to(rows.dtype)
        if self.training:
            psi = _root(square, self.eps)
            x_hat = _PowerNorm.apply(rows, psi, self.running_grad, self.alpha_backward, mask)
            self._follow(rows.detach(), mask)
        else:
            x_hat = rows / torch.sqrt(square + self.eps)
        y = x_hat
        if self.weight is not None and self.bias is not None:
            y = x_hat * widen(self.weight) + widen(self.bias)
        return valid(y, mask).movedim(x.ndim - 1, axis).to(x.dtype)

    @torch.no_grad()
    def _follow(self, x: Tensor, mask: Tensor | None) -> None:
        square, seen = _mean(x * x, mask)
        old = self.running_square.to(x.dtype)
        self.running_square.copy_(torch.where(seen, old + (1 - self.alpha_forward) * (square - old), old))

    def extra_repr(self) -> str:
        axis = f", axis={self.axis}" if self.axis != -1 else ""
        return (
            f"{self.num_features}, eps={self.eps}, alpha_forward={self.alpha_forward}, "
            f"alpha_backward={self.alpha_backward}, affine={self.affine}{axis}"
        )


@torch.library.custom_op("normkit::root", mutates_args=())
def _root(square: Tensor, eps: float) -> Tensor:
    """psi. An operator of its own, because a compiler would compute it anew for the backward pass, from a
    running square that has moved on by then."""
    return torch.sqrt(square + eps)


@_root.register_fake
def _(square: Tensor, eps: float) -> Tensor:
    return torch.empty_like(square)


class _PowerNorm(torch.autograd.Function):
    """x / psi, with the gradient of the paper, which moves ``nu`` when it is computed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, psi: Tensor, nu: Tensor, alpha: float, mask: Tensor | None) -> Tensor:
        x_hat = x / psi
        ctx.save_for_backward(x_hat, psi, mask)
        ctx.nu, ctx.alpha = nu, alpha
        return x_hat

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x_hat, psi, mask = ctx.saved_tensors
        nu, keep = ctx.nu.to(g.dtype), 1 - ctx.alpha
        g = valid(g, mask)
        grad = (g - nu * x_hat) / psi
        power, seen = _mean(x_hat * x_hat, mask)
        slope, _ = _mean(g * x_hat, mask)
        ctx.nu.copy_(torch.where(seen, nu + keep * (slope - nu * power), nu))
        return grad, None, None, None, None


def _mean(rows: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The mean of each feature over its valid values, and whether it had any."""
    axes = tuple(range(rows.ndim - 1))
    valid = torch.ones_like(rows, dtype=torch.bool) if mask is None else mask
    count = valid.sum(axes)
    return torch.where(valid, rows, 0).sum(axes) / count.clamp_min(1), count > 0

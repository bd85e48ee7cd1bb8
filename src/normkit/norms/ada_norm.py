from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from normkit import checks
from normkit.errors import user_error
from normkit.kernels.moments import valid, widen

__all__ = ["AdaNorm"]


class AdaNorm(nn.Module):
    r"""Any norm, with weight and bias computed from a condition instead of learned.

        scale, shift = Linear(activation(cond))
        y = norm(x) * (1 + scale) + shift

    where ``norm`` has no parameters of its own, as a rule. The linear map starts at zero, so that the layer
    starts as the plain norm. With LayerNorm it is the adaLN of DiT, with InstanceNorm AdaIN, with BatchNorm
    conditional BatchNorm.

    Shape: x (batch, ..., dim) and cond (batch, cond_dim) -> the shape of x. A condition with as many axes as
    x, (batch, ..., cond_dim), varies along x; axes of size 1 broadcast.

    Args:
        norm: the norm to condition, for example ``LayerNorm(dim, elementwise_affine=False)``.
        dim: size of the axis that is scaled and shifted.
        cond_dim: size of the condition.
        activation: applied to the condition first.
        axis: where ``dim`` is; 1 for (batch, channels, height, width).

    ``forward(x, cond, mask)``: the mask is handed on to a norm that takes one; padding comes out as 0.

    Example:
        >>> ada = AdaNorm(nn.LayerNorm(8, elementwise_affine=False), dim=8, cond_dim=3)
        >>> ada(torch.randn(2, 5, 8), torch.randn(2, 3)).shape
        torch.Size([2, 5, 8])

    Reference: Peebles & Xie 2022 (DiT), arXiv:2212.09748; Huang & Belongie 2017 (AdaIN), arXiv:1703.06868.
    """

    def __init__(
        self,
        norm: nn.Module,
        dim: int,
        cond_dim: int,
        activation: nn.Module | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        axis: int = -1,
    ) -> None:
        super().__init__()
        if not isinstance(norm, nn.Module):
            raise user_error(f"AdaNorm got {norm!r} as its norm.", expected="a layer, such as LayerNorm(...)")
        self.norm = norm
        self.dim = dim
        self.cond_dim = cond_dim
        self.axis = axis
        self.activation = nn.SiLU() if activation is None else activation
        self.modulation = ZeroLinear(cond_dim, 2 * dim, device=device, dtype=dtype)

    def forward(self, x: Tensor, cond: Tensor, mask: Tensor | None = None) -> Tensor:
        checks.floating("AdaNorm", x)
        checks.floating("AdaNorm's condition", cond)
        axis = checks.axis_of("AdaNorm", self.axis, x.ndim)
        self._check(x, cond, axis)
        if mask is not None and self._mixes_padding:
            raise user_error(
                f"AdaNorm got a mask, and its norm, {type(self.norm).__name__}, takes none.",
                fix="use normkit's norm of that name.",
            )
        padding = checks.mask_like("AdaNorm", mask, x, (axis,))
        scale, shift = self.modulation(self.activation(cond.to(self.modulation.weight.dtype))).chunk(
            2, dim=-1
        )
        x_valid = valid(x, padding)
        y = widen(
            self.norm(x_valid, mask=padding) if mask is not None and self._takes_mask else self.norm(x_valid)
        )
        y = y * (1 + _spread(scale, x.ndim, axis).to(y.dtype)) + _spread(shift, x.ndim, axis).to(y.dtype)
        return valid(y, padding).to(x.dtype)

    @property
    def _takes_mask(self) -> bool:
        return "mask" in inspect.signature(self.norm.forward).parameters

    @property
    def _mixes_padding(self) -> bool:
        """Whether the norm takes no mask, although its statistics are those of many positions."""
        return not self._takes_mask and isinstance(self.norm, _NormBase | nn.GroupNorm)

    def _check(self, x: Tensor, cond: Tensor, axis: int) -> None:
        rest = [s for i, s in enumerate(x.shape) if i != axis]
        cond_rest = list(cond.shape[:-1])
        broadcasts = cond_rest == rest[:1] or (
            len(cond_rest) == len(rest) and all(c in (1, r) for c, r in zip(cond_rest, rest, strict=True))
        )
        fits = x.shape[axis] == self.dim and cond.shape[-1:] == (self.cond_dim,) and broadcasts
        if not fits:
            raise user_error(
                f"AdaNorm(dim={self.dim}, cond_dim={self.cond_dim}) got x of shape {tuple(x.shape)} and a "
                f"condition of shape {tuple(cond.shape)}.",
                expected=f"{self.dim} at axis {axis} of x, and a condition of shape "
                f"{(*rest[:1], self.cond_dim)} or {(*rest, self.cond_dim)}",
            )

    def extra_repr(self) -> str:
        return f"dim={self.dim}, cond_dim={self.cond_dim}" + (
            f", axis={self.axis}" if self.axis != -1 else ""
        )


class ZeroLinear(nn.Linear):
    """A linear map that starts at zero, also when a model made on the meta device is filled part by part."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


def _spread(value: Tensor, ndim: int, axis: int) -> Tensor:
    """(batch, dim) or (batch, ..., dim) -> an axis for each of x, with dim at ``axis``."""
    while value.ndim < ndim:
        value = value.unsqueeze(1)
    return value.movedim(-1, axis)

"""The general norm: any pattern of axes that share one mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from normkit import functional
from normkit.errors import user_error
from normkit.norms.affine import make_affine, reset_affine
from normkit.pattern import ELLIPSIS, Pattern, describe

__all__ = ["Norm"]


class Norm(nn.Module):
    r"""Normalise together the axes that stand in brackets.

        y = (x - mean) / sqrt(var + eps) * weight + bias

    where mean and variance are taken over the bracketed axes; with ``center=False``,
    y = x / sqrt(mean(x²) + eps) * weight. There are no running statistics: training and evaluation
    compute the same (``BatchNorm*`` has them).

    Shape: any, as the pattern names it -> the same. Statistics in fp32 or wider, output in x.dtype.

    Args:
        pattern: names the axes of the input. Brackets mark those that share one mean, parentheses split an
            axis, an ellipsis stands for any number of axes.
        eps: added to the variance, inside the root.
        center: False leaves the mean in and divides by the root mean square.
        affine: names of the axes that ``weight`` and ``bias`` have, as in ``"c"`` or ``"c h w"``; False for
            no parameters. If left out: every axis whose size is given. Factors of one split axis that are
            all named make one axis of the parameter, as they do in the input.
        bias: whether there is a bias; if left out, only where there is a mean to put back (``center``).
        sizes: the sizes of named axes: those of ``affine``, and all but one factor of a split axis.

    Example:
        >>> norm = Norm("n (g [c]) [h w]", g=8, c=64)  # GroupNorm(8, 512)
        >>> norm.weight.shape
        torch.Size([512])
        >>> norm(torch.randn(2, 512, 7, 7)).shape
        torch.Size([2, 512, 7, 7])
        >>> print(norm.describe((2, 512, 7, 7)))
        n (g [c]) [h w] on shape (2, 512, 7, 7):
          numbers that differ only in c, h and w share one mean;
          every n and g has a mean of its own.
          16 means (2 n x 8 g), each over 3,136 values (64 c x 7 h x 7 w).
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        pattern: str,
        eps: float = 1e-5,
        *,
        center: bool = True,
        affine: str | Sequence[str] | bool | None = None,
        bias: bool | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **sizes: int,
    ) -> None:
        super().__init__()
        self._pattern = Pattern.parse(pattern)
        self._pattern.check_sizes(sizes)
        self.eps = eps
        self.center = center
        self.sizes = dict(sizes)
        self.affine = _affine_axes(self._pattern, affine, sizes)
        shape = self._pattern.parameter_shape(self.affine, sizes)
        has_bias = bool(shape) and (center if bias is None else bias)
        make_affine(self, shape, weight=bool(shape), bias=has_bias, device=device, dtype=dtype)
        self.reset_parameters()

    @property
    def pattern(self) -> str:
        return self._pattern.text

    def reset_parameters(self) -> None:
        reset_affine(self)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return functional.normalize(
            x,
            self._pattern,
            self.weight,
            self.bias,
            self.eps,
            center=self.center,
            affine=self.affine or None,
            mask=mask,
            **self.sizes,  # type: ignore[arg-type]  # no axis is named out
        )

    def describe(self, shape: Sequence[int]) -> str:
        """Say in words which numbers of an input of ``shape`` share one mean, and how many they are."""
        return describe(self._pattern, shape, center=self.center, **self.sizes)

    def extra_repr(self) -> str:
        parts = [repr(self.pattern), *(f"{k}={v}" for k, v in self.sizes.items()), f"eps={self.eps}"]
        parts += [f"affine={' '.join(self.affine)!r}" if self.affine else "affine=False"]
        parts += [f"center={self.center}"] * (not self.center)
        parts += [f"bias={self.bias is not None}"] * (
            bool(self.affine) and (self.bias is not None) != self.center
        )
        return ", ".join(parts)


def _affine_axes(
    parsed: Pattern, affine: str | Sequence[str] | bool | None, sizes: Mapping[str, int]
) -> tuple[str, ...]:
    if affine is False:
        return ()
    names = parsed.affine(None if affine is True else affine, sizes)
    missing = [n for n in names if n not in sizes]
    if missing or not names:
        wanted = missing or _unsized(parsed, sizes)
        raise user_error(
            f"Norm({parsed.text!r}) cannot make its weight: no size is given for {', '.join(wanted)}.",
            expected="the size of every axis that has parameters",
            fix=f"pass {', '.join(f'{n}=...' for n in wanted)}, or affine=False for no parameters at all.",
        )
    return names


def _unsized(parsed: Pattern, sizes: Mapping[str, int]) -> list[str]:
    """What to ask for: the rest of an axis that is partly sized, else the last axis."""
    axes = [[f.name for f in axis.factors if f.name != ELLIPSIS] for axis in parsed.axes]
    partly = [axis for axis in axes if any(n in sizes for n in axis)]
    return [n for n in (partly or [a for a in axes if a] or [["d"]])[-1] if n not in sizes]

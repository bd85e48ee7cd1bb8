"""A placement at work: the residual stream, a sublayer beside it, and the end of a stack."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normkit.errors import user_error
from normkit.placement.norm_factory import NormFactory, add_norm, apply_norm, make_norm
from normkit.placement.rule import Learned, Placement
from normkit.placement.table import PlacementLike, placement_at

__all__ = ["FinalNorm", "Residual", "Stream"]


class Stream(NamedTuple):
    """The residual stream between two sublayers.

    What the last one adds is kept apart until somebody needs the sum: a norm then does both in one pass.
    """

    x: Tensor
    added: Tensor | None = None  # the stream is x + added
    second: Tensor | None = None  # ResiDual's other stream

    @property
    def total(self) -> Tensor:
        return self.x if self.added is None else self.x + self.added


class Residual(nn.Module):
    r"""A sublayer beside the residual stream, with norms where a placement says.

        x <- post( skip · x + gate · out( F( scale · pre(x) ) ) )

    Shape: (..., dim) -> the same. A tensor gives a tensor. A :class:`Stream` gives a Stream, whose residual
    add is done together with the next norm.

    Args:
        fn: the sublayer, called with the tensor and whatever else ``forward`` gets.
        dim: features of the stream.
        placement: a name, a :class:`Placement`, or a function (layer, depth, kind) -> Placement.
        norm: a name ("layer", "rms", "batch", ...) or anything that builds a norm from ``dim``.
        layer, depth: which layer this is, from 1, and how many there are.
        kind: what a function for ``placement`` is told: "attention", "cross_attention", "feed_forward".
        dropout: how much of what is added is dropped.

    Example:
        >>> block = Residual(nn.Linear(8, 8), 8, "pre")
        >>> block(torch.randn(2, 8)).shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        fn: nn.Module,
        dim: int,
        placement: PlacementLike = "pre",
        norm: NormFactory = "layer",
        *,
        layer: int = 1,
        depth: int = 1,
        kind: str = "feed_forward",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if not isinstance(fn, nn.Module):
            raise user_error(f"Residual got {type(fn).__name__} for fn.", expected="a torch.nn.Module")
        if not (type(layer) is type(depth) is int and 1 <= layer <= depth):
            raise user_error(f"Residual got layer={layer}, depth={depth}.", expected="1 <= layer <= depth")
        self.placement = rule = placement_at(placement, layer, depth, kind)
        missing = set(rule.inner) - set(getattr(fn, "inner", ()))
        if missing:
            raise user_error(
                f"placement {placement!r} has norms inside of the sublayer: {', '.join(sorted(missing))}.",
                expected="a sublayer that has a place for them, and an attribute `inner` that names them",
                fix="use normkit's Attention and FeedForward, or a placement without inner norms.",
            )
        if not 0 <= dropout < 1:
            raise user_error(f"dropout= got {dropout}.", expected="a number from 0 to below 1")
        self.fn = fn
        initialise: Any = getattr(fn, "initialise", None)
        if initialise is not None:
            initialise(rule.gain)
        self.pre = make_norm(norm, dim) if rule.pre else None
        self.out = make_norm(norm, dim) if rule.out else None
        self.post = make_norm(norm, dim) if rule.post else None
        self.skip = _parameter(rule.skip, dim)
        self.gate = _parameter(rule.gate, dim)
        self.dropout = nn.Dropout(dropout) if dropout > 0 else None
        self.takes_mask = "mask" in inspect.signature(fn.forward).parameters

    def forward(self, stream: Tensor | Stream, *args: Any, mask: Tensor | None = None, **kwargs: Any) -> Any:
        """``mask`` marks real tokens, for norms whose statistics go across them; a sublayer that takes one
        gets it too, and all the rest."""
        if not isinstance(stream, Stream):
            if self.placement.dual:
                raise user_error(
                    "Residual with a second stream got a tensor.",
                    expected="a Stream, and a FinalNorm in the end",
                    fix="call it with Stream(x).",
                )
            return self.forward(Stream(stream), *args, mask=mask, **kwargs).total
        rule = self.placement
        x, added, second = stream
        if rule.dual and second is None:
            second = stream.total
        if self.pre is None:
            read = x = stream.total
        elif added is None:
            read = apply_norm(self.pre, x, mask)
        else:
            read, x = add_norm(self.pre, added, x, mask)
        read = _times(rule.scale, None, read)
        y = self.fn(read, *args, **kwargs, **({"mask": mask} if self.takes_mask else {}))
        if self.out is not None:
            y = apply_norm(self.out, y, mask)
        if self.dropout is not None:
            y = self.dropout(y)
        y = _times(rule.gate, self.gate, y)
        x = _times(rule.skip, self.skip, x)
        if second is not None:
            second = second + y
        if self.post is None:
            return Stream(x, y, second)
        # Under autocast y is narrow; the norm's output is the stream, which stays as wide as it was.
        return Stream(add_norm(self.post, y.to(x.dtype), x, mask)[0], None, second)

    def extra_repr(self) -> str:
        return str(self.placement)


class FinalNorm(nn.Module):
    """The end of a stack: the last residual add, and the norm that a placement ends with, if it does."""

    def __init__(self, dim: int, placement: Placement, norm: NormFactory = "layer") -> None:
        super().__init__()
        self.norm = make_norm(norm, dim) if placement.final or placement.dual else None
        self.dual = placement.dual

    def forward(self, stream: Tensor | Stream, mask: Tensor | None = None) -> Tensor:
        stream = stream if isinstance(stream, Stream) else Stream(stream)
        if self.norm is None:
            return stream.total
        if self.dual:
            second = stream.total if stream.second is None else stream.second
            return stream.total + apply_norm(self.norm, second, mask)
        if stream.added is None:
            return apply_norm(self.norm, stream.x, mask)
        return add_norm(self.norm, stream.added, stream.x, mask)[0]


def _parameter(number: Any, dim: int) -> nn.Parameter | None:
    if not isinstance(number, Learned):
        return None
    return nn.Parameter(torch.full((dim,) if number.per_feature else (), float(number.start)))  # type: ignore[arg-type]  # at() has made it a number


def _times(number: Any, parameter: nn.Parameter | None, x: Tensor) -> Tensor:
    if parameter is not None:
        return x * parameter
    return x if number == 1 else x * number

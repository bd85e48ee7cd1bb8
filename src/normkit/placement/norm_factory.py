"""Which norm stands in a place: a name, or anything that builds one from a number of features."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from normkit import checks, functional
from normkit.errors import user_error
from normkit.norms import BatchNorm1d, DyT, LayerNorm, PowerNorm, RMSNorm, ScaleNorm

__all__ = ["NORMS", "NormFactory", "add_norm", "apply_norm", "make_norm", "takes_mask"]

NormFactory = str | Callable[[int], nn.Module]

# For (batch, length, features), whose last axis has one weight each.
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layer": LayerNorm,
    "rms": partial(RMSNorm, eps=1e-6),
    "rms_after_cast": partial(RMSNorm, eps=1e-6, multiply="after_cast"),
    "batch": partial(BatchNorm1d, axis=-1),
    "power": PowerNorm,
    "scale": ScaleNorm,
    "dyt": DyT,
    "none": lambda dim: nn.Identity(),
}


def make_norm(norm: NormFactory, dim: int) -> nn.Module:
    """A new norm of ``dim`` features."""
    if isinstance(norm, str):
        checks.one_of(norm, NORMS, what="norm=")
        norm = NORMS[norm]
    made = norm(dim) if callable(norm) and not isinstance(norm, nn.Module) else None
    if not isinstance(made, nn.Module):
        raise user_error(
            f"norm= got {type(norm).__name__}.",
            expected=f"one of {', '.join(map(repr, NORMS))}, or a function of dim that makes a module",
            fix="pass the class, for example norm=normkit.RMSNorm, or a functools.partial of it.",
        )
    takes_mask(made)
    return made


def takes_mask(norm: nn.Module) -> bool:
    """Do its statistics go across tokens? Kept with the module: looking it up takes longer than a norm."""
    known: bool | None = norm.__dict__.get("_takes_mask")
    if known is None:
        known = "mask" in inspect.signature(norm.forward).parameters
        norm.__dict__["_takes_mask"] = known
    return known


def apply_norm(norm: nn.Module, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Normalise; statistics that go across tokens leave padding out."""
    y: Tensor = norm(x, mask=mask) if mask is not None and takes_mask(norm) else norm(x)
    return y


def add_norm(
    norm: nn.Module, x: Tensor, residual: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(norm(x + residual), x + residual), in one pass where there is a kernel for it."""
    if type(norm) is LayerNorm and not _is_watched(norm):
        shape, weight, bias = norm.normalized_shape, norm.weight, norm.bias
        return functional.add_layer_norm(x, residual, shape, weight, bias, norm.eps, axis=norm.axis)
    if type(norm) is RMSNorm and not _is_watched(norm):
        return functional.add_rms_norm(
            x,
            residual,
            norm.normalized_shape,
            norm.weight,
            norm.eps,
            axis=norm.axis,
            zero_centered_weight=norm.zero_centered_weight,
            multiply=norm.multiply,
        )
    total = residual + x
    return apply_norm(norm, total, mask), total


def _is_watched(norm: nn.Module) -> bool:
    """Hooks see a module called; so it must be."""
    own = norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks or norm._backward_pre_hooks
    return bool(own) or _has_any_global_hook()

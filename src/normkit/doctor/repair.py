"""Safe fixes that several rules share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from normkit.doctor.case import Case
from normkit.inspect.edit import Edit
from normkit.inspect.equal import MismatchError
from normkit.inspect.sites import Site
from normkit.inspect.spec import NotANormError, bare_copy, call
from normkit.inspect.swapping import float32_statistics

__all__ = ["in_float32"]


def in_float32(case: Case, site: Site) -> Edit | None:
    """The layer of ours that computes the same with statistics in float32, or the layer itself with a cast
    before and behind it; None where that does not help."""
    if site.is_function:
        return None
    try:
        return float32_statistics(site.path, site.module, site.spec)
    except MismatchError:
        return _cast(site) if _helps(site) else None


def _cast(site: Site) -> Edit:
    module = site.module

    def make() -> Callable[[], None]:
        before = type(module)
        module.__class__ = widened(before)

        def undo() -> None:
            module.__class__ = before

        return undo

    return Edit(site.path, f"{type(module).__name__} computes in float32, and casts back", make)


def widened(kind: type[nn.Module]) -> type[nn.Module]:
    """A class that does the same in float32."""

    def forward(self: nn.Module, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        is_narrow = x.dtype in (torch.float16, torch.bfloat16)
        y: Tensor = kind.forward(self, x.float() if is_narrow else x, *args, **kwargs)
        return y.to(x.dtype) if is_narrow else y

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


@torch.no_grad()
def _helps(site: Site) -> bool:
    """On a copy: zeros and large numbers give what they give in float64."""
    generator = torch.Generator("cpu").manual_seed(0)
    x = torch.randn(site.shape, generator=generator, dtype=torch.float64, device="cpu")
    x[0] = 0
    try:
        narrow, wide = bare_copy(site.module, site.dtype), bare_copy(site.module)
        for ours, theirs in zip(wide.parameters(), narrow.parameters(), strict=True):
            ours.copy_(theirs)
        narrow.__class__ = widened(type(narrow))
        inputs = [(x * scale).to(site.dtype) for scale in (1.0, 500.0)]
        pairs = [(call(narrow, t).double(), call(wide, t.double())) for t in inputs]
    except NotANormError:
        return False
    return all(bool(((y - true).abs() <= 0.01 * true.abs().max()).all()) for y, true in pairs)

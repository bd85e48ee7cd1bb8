"""A copy of a norm, called again: in the dtype of the run, or with another input."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from normkit.doctor.case import Case
from normkit.inspect.sites import Site
from normkit.inspect.spec import NotANormError, bare_copy, call
from normkit.inspect.trace import tensors_of

__all__ = ["call_again", "outputs_in", "share_that_differs"]


@torch.no_grad()
def outputs_in(site: Site, scale: float) -> Tensor | None:
    """Of random numbers of this scale, in the dtype of the run; None if a copy cannot be called."""
    if site.spec.gate or not site.dtype.is_floating_point:
        return None
    dtype = next((p.dtype for p in site.module.parameters() if p.is_floating_point()), site.dtype)
    sizes = [
        n if -(len(site.shape) - k) in site.spec.axes or n in _known(site.module) else min(n, 3)
        for k, n in enumerate(site.shape)
    ]
    generator = torch.Generator("cpu").manual_seed(0)
    x = (
        torch.randn([max(n, 2) for n in sizes], generator=generator, dtype=torch.float64, device="cpu")
        * scale
    )
    try:
        return call(bare_copy(site.module, dtype), x.to(site.dtype))
    except NotANormError:
        return None


@torch.no_grad()
def share_that_differs(mine: Site, theirs: Site, dtype: torch.dtype, scale: float) -> float:
    """Of the numbers that copies of two norms give for the same input; 1 if they cannot be called alike."""
    generator = torch.Generator("cpu").manual_seed(0)
    x = torch.randn((8, *theirs.shape[1:]), generator=generator, dtype=torch.float64, device="cpu") * scale
    try:
        ours, other = (call(bare_copy(site.module, dtype), x.to(dtype)) for site in (mine, theirs))
    except NotANormError:
        return 1.0
    return float((ours != other).double().mean()) if ours.shape == other.shape else 1.0


def _known(module: nn.Module) -> set[int]:
    return {n for t in (*module.parameters(), *module.buffers()) for n in t.shape}


@torch.no_grad()
def call_again(case: Case, site: Site, x: Tensor) -> Tensor | None:
    """What a copy of the norm gives for x, with everything else that it was called with."""
    record = case.inspection.graph.nodes[site.nodes[0]].norm
    assert record is not None
    module = copy.deepcopy(site.module)
    args, kwargs = record.args, dict(record.kwargs)
    if site.is_function or not args:
        first = next((k for k, v in kwargs.items() if isinstance(v, Tensor)), None)
        args = (x,) if first is None else ()
        kwargs |= {first: x} if first is not None else {}
    else:
        args = (x, *args[1:])
    return next(iter(tensors_of(module(*args, **kwargs))), None)

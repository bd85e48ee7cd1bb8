"""How much memory a call takes: the allocator of a GPU counts, and torch's profiler on a CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from normkit.verify.cases import Inputs

__all__ = ["extra_memory"]


def extra_memory(run: Callable[..., Any], given: Inputs, device: torch.device) -> tuple[int | None, int]:
    """The most bytes of a forward above what was there (None if nobody counts), and those of its outputs."""
    moved = [None if t is None else t.to(device) for t in (given.x, given.weight, given.bias)]
    for tensor in moved:
        if tensor is not None:
            tensor.requires_grad_()
    other = None if given.other is None else given.other.to(device)

    def call() -> tuple[torch.Tensor, ...]:
        found = run(*moved, other, None)
        return found if isinstance(found, tuple) else (found,)

    outputs = sum(t.nbytes for t in call())  # and whatever is compiled or kept by a first call
    if device.type == "cpu":
        return _by_profiler(call), outputs
    module = torch.get_device_module(device)
    if not hasattr(module, "max_memory_allocated"):
        return None, outputs
    return _by_allocator(call, module, device), outputs


def _by_allocator(call: Callable[[], object], module: Any, device: torch.device) -> int:
    """What the device's own allocator says."""
    module.synchronize(device)
    module.reset_peak_memory_stats(device)
    before = module.memory_allocated(device)
    kept = call()
    module.synchronize(device)
    peak: int = module.max_memory_allocated(device) - before
    del kept
    return peak


def _by_profiler(call: Callable[[], object]) -> int:
    """The highest point of all that is allocated and freed in between."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise it speaks of itself in the terminal
    with torch.autograd.profiler.profile(use_kineto=False, profile_memory=True) as profile:
        kept = call()
    del kept
    now = peak = 0
    for event in profile.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak

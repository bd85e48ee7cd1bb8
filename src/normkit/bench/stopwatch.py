"""How one turn is timed: by the host's clock on a CPU, by the device's own events elsewhere.

A kernel is launched long before it runs. Events are written by the device when it comes to them, so that what
lies between two of them is the work alone. Before each call a large buffer is written over: it throws the
input out of the cache, as the rest of a model does, and gives the host time to launch what follows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

__all__ = ["Turn", "host_turn", "turn_on"]

Turn = Callable[[Callable[[], object], int], float]  # a call and how often -> seconds of one
FLUSH = 256 << 20  # bytes; at least, and four times the cache
MOST = 50  # calls of a turn on a device


def host_turn(call: Callable[[], object], repeats: int) -> float:
    start = perf_counter()
    for _ in range(repeats):
        call()
    return (perf_counter() - start) / repeats


def turn_on(device: torch.device) -> Turn:
    """The way to time a turn there."""
    if device.type == "cpu":
        return host_turn
    module = torch.get_device_module(device)
    if hasattr(module, "set_device"):
        module.set_device(device)  # events and launches belong to the current one
    properties = getattr(module, "get_device_properties", lambda _: None)(device)
    cache = getattr(properties, "L2_cache_size", None) or 0
    flushed = torch.empty(max(FLUSH, 4 * cache), dtype=torch.int8, device=device)
    return functools.partial(device_turn, module, flushed)


def device_turn(module: Any, flushed: Tensor, call: Callable[[], object], repeats: int) -> float:
    """Between two events around each call, with the cache flushed before it."""
    repeats = min(repeats, MOST)
    marks = [tuple(module.Event(enable_timing=True) for _ in range(2)) for _ in range(repeats)]
    for start, end in marks:
        flushed.zero_()
        start.record()
        call()
        end.record()
    module.synchronize()
    return sum(start.elapsed_time(end) for start, end in marks) / repeats / 1e3

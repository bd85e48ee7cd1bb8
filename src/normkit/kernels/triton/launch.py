"""Launching a kernel: compiled once for a kind of call, and then by the handle that was kept.

Triton's own launch binds and inspects all arguments each time, which takes longer than the norm of a small
row. What a compiled kernel depends on is few: the device, the constants, dtypes, and whether addresses and
sizes divide by 16. Sizes and constants are a ``Launch``, made once for a shape; a tensor whose address does
not divide goes Triton's way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from normkit.kernels.triton.versions import INTERPRETED

__all__ = ["OPTIONS", "Launch", "launch", "stream_of"]

# No product is fused into a sum: of a reduction, one lane would have (a·a + round(b·b)) and its neighbour
# (round(a·a) + b·b), and which of the two is stored would be left to the hardware.
OPTIONS = {"num_stages": 1, "enable_fp_fusion": False}


class Launch:
    """``kernel(*tensors, *numbers, *constants)`` on a grid, without the tensors."""

    __slots__ = ("constants", "grid", "kept", "kernel", "numbers", "rest", "warps")

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        numbers: Sequence[float],
        constants: Sequence[Any],
        warps: int,
    ) -> None:
        self.kernel, self.warps = kernel, warps
        self.grid = (*grid, 1, 1)[:3]
        self.numbers, self.constants = tuple(numbers), tuple(constants)
        self.rest = self.numbers + self.constants
        self.kept: dict[Any, Any] = {}  # (device, dtypes) -> the compiled kernel


def launch(call: Launch, tensors: Sequence[Tensor | None], device: torch.device) -> Any:
    """Run it on ``tensors``; None stands for one that is left out. Returns how to run it on others like them:
    (run, grid, what Triton wants of its own, numbers and constants), or None if that cannot be said."""
    if INTERPRETED:
        call.kernel[call.grid](*tensors, *call.rest)
        return None
    addresses: list[int | None] = []
    dtypes: list[torch.dtype | None] = []
    together = 0
    for t in tensors:
        if t is None:
            addresses.append(None)
            dtypes.append(None)
        else:
            address = t.data_ptr()
            addresses.append(address)
            dtypes.append(t.dtype)
            together |= address
    key = (device, *dtypes)
    kept = call.kept.get(key) if together & 15 == 0 else None
    if kept is None or not _is_current(device):
        with torch.get_device_module(device).device(device):
            made = call.kernel[call.grid](*tensors, *call.rest, num_warps=call.warps, **OPTIONS)
        if together & 15 == 0:
            # as Triton itself launches, without its hooks
            own = (made.function, made.packed_metadata, None, None, None)
            kept = call.kept[key] = (made.run, call.grid, own, call.rest)
        return kept
    run, grid, own, rest = kept
    run(*grid, stream_of(device.type)(device.index), *own, *addresses, *rest)
    return kept


def _is_current(device: torch.device) -> bool:
    """A kernel goes to the device that is current, whatever its tensors say."""
    index: int = torch.get_device_module(device).current_device()
    return index == device.index


@functools.cache
def stream_of(device: str) -> Callable[[int], int]:
    """The current stream of a device with an index, as its driver knows it."""
    if device == "cuda":
        current: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
        return current
    return lambda index: torch.get_device_module(device).current_stream(index).sycl_queue  # xpu

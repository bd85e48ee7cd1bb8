"""Launching a kernel: compiled once for a kind of call, and then by the handle that was kept.

Triton's own launch binds and inspects all arguments each time, which takes longer than the norm of a small
row. What a compiled kernel depends on is few: the device, the constants, dtypes, and whether addresses and
sizes divide by 16. Sizes and constants are a ``Launch``, made once for a shape; a tensor whose address does
not divide goes Triton's way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from normkit.kernels.triton.versions import INTERPRETED

__all__ = ["Launch", "launch"]

_OPTIONS = {"num_stages": 1, "enable_fp_fusion": True}  # explicit: Triton 3.10 changes the default


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


def launch(call: Launch, tensors: Sequence[Tensor | None], device: torch.device) -> None:
    """Run it on ``tensors``; None stands for one that is left out."""
    if INTERPRETED:
        call.kernel[call.grid](*tensors, *call.rest)
        return
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
    if kept is None:
        with torch.get_device_module(device).device(device):
            kept = call.kernel[call.grid](*tensors, *call.rest, num_warps=call.warps, **_OPTIONS)
        if together & 15 == 0:
            call.kept[key] = kept
        return
    # as Triton itself launches, without its hooks
    kept.run(
        *call.grid,
        _stream(device),
        kept.function,
        kept.packed_metadata,
        None,
        None,
        None,
        *addresses,
        *call.rest,
    )


def _stream(device: torch.device) -> int:
    """The current stream, as the driver knows it."""
    if device.type == "cuda":
        return torch._C._cuda_getCurrentRawStream(device.index)
    return torch.get_device_module(device).current_stream(device).sycl_queue  # xpu

"""Launching a kernel: compiled once for a kind of call, and then by the handle that was kept.

Triton's own launch binds and inspects all arguments each time, which takes longer than the norm of a small
row. What a compiled kernel depends on is few: the device, the constants, the dtypes, and whether addresses
and sizes divide by 16. That is the key under which its handle is kept.
"""

from __future__ import annotations


from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from normkit.kernels.triton.versions import INTERPRETED

__all__ = ["launch"]



_KEPT: dict[Any, Any] = {}
_OPTIONS = {"num_stages": 1, "enable_fp_fusion": True}  # explicit: Triton 3.10 changes the default


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    arguments: Sequence[Any],
    constants: tuple[Any, ...],
    warps: int,
    device: torch.device,
) -> None:
    """Run ``kernel`` on a grid. Tensors come first among the arguments; None stands for one that is left out."""
    if INTERPRETED:
        kernel[grid](*arguments, *constants)
        return
    key = (kernel, device.index, warps, constants, *map(_kind, arguments))
    kept = _KEPT.get(key)
    if kept is None:
        with torch.cuda.device(device):
            _KEPT[key] = kernel[grid](*arguments, *constants, num_warps=warps, **_OPTIONS)
        return
    g1 = grid[1] if len(grid) > 1 else 1
    stream = torch._C._cuda_getCurrentRawStream(device.index)
    kept.run(grid[0], g1, 1, stream, kept.function, kept.packed_metadata, None, None, None, *arguments, *constants)


def _kind(argument: Any) -> Any:
    """What Triton compiles an argument for."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return 1 if argument == 1 else (argument % 16 == 0, argument >= 2**31)
    return type(argument)

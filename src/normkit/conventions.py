"""What torch does around its norms, and we do after it: the dtype under autocast, the layout of an output."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["autocast", "laid_out"]


def autocast(x: Tensor) -> Tensor:
    """On accelerators torch lists these norms among those that autocast runs in float32."""
    accelerator = x.device.type in ("cuda", "xpu")
    narrow = x.dtype in (torch.float16, torch.bfloat16)
    return x.float() if accelerator and narrow and torch.is_autocast_enabled(x.device.type) else x


def laid_out(y: Tensor, x: Tensor, *, channels: bool = True) -> Tensor:
    """Contiguous, as torch's outputs are, so that ``view`` works on them; but channels_last stays so."""
    return y if channels and _is_channels_last(x) else y.contiguous()


def _is_channels_last(x: Tensor) -> bool:
    """By strides, because vmap cannot ask a tensor for its memory format."""
    if x.ndim not in (4, 5):
        return False
    step = 1
    for axis in (1, *range(x.ndim - 1, 1, -1), 0):
        if x.stride(axis) != step:
            return False
        step *= x.shape[axis]
    return True

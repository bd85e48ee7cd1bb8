"""Ordinary calls in one step: functions that look at their arguments, and compute or return None.

A single row is done in a tenth of a microsecond; what a call costs is the way there. These functions take a
call that ``admit`` would give to the CPU kernels and that needs nothing else: plain tensors of one device
that nothing watches. None means that nothing has been done, and the call goes the long way. Without the
extension all calls do. Calls on a GPU are taken too (``triton.quick``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _get_tracing_state, _len_torch_dispatch_stack
from torch.autograd import forward_ad
from torch.nn import Parameter

from normkit.kernels.cpu import eager, library
from normkit.kernels.operators import raw

__all__ = [
    "RMS_OPTIONS",
    "add_layer_norm",
    "add_rms_norm",
    "channels",
    "layer_norm",
    "linear",
    "rms_norm",
]

MAX_ROWS = 8  # for more of them a matrix product is faster
# What an RMSNorm may ask for, as its C functions read it; what is not here is an error.
RMS_OPTIONS = {  # (zero_centered_weight, multiply)
    (False, "before_cast"): 0,
    (True, "before_cast"): 2,
    (False, "after_cast"): 16,
    (True, "after_cast"): 18,
}


def _declines(*call: Any) -> None:
    return None


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """The same tests as in C++: a few rows are worth them without the extension, too."""
    tensors = (x, weight) if bias is None else (x, weight, bias)
    plain = all(
        type(t) in (Tensor, Parameter) and t.is_cpu and t.dtype == torch.float32 and t.is_contiguous()
        for t in tensors
    )
    watched = _len_torch_dispatch_stack() or _are_functorch_transforms_active() or _get_tracing_state()
    forward_mode = forward_ad._current_level >= 0
    if not plain or watched or forward_mode or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return None
    fits = weight.ndim == 2 and x.ndim > 0 and x.shape[-1] == weight.shape[1]
    if library.MISSING or not fits or not 0 < x.numel() <= MAX_ROWS * weight.shape[1]:
        return None
    y: Tensor = raw("linear")(x, weight, bias)
    return y


layer_norm: Any = getattr(eager.MODULE, "layer_norm", _declines)
rms_norm: Any = getattr(eager.MODULE, "rms_norm", _declines)
add_layer_norm: Any = getattr(eager.MODULE, "add_layer_norm", _declines)
add_rms_norm: Any = getattr(eager.MODULE, "add_rms_norm", _declines)
channels: Any = getattr(eager.MODULE, "channels", _declines)  # BatchNorm, InstanceNorm, GroupNorm
linear: Any = getattr(eager.MODULE, "linear", _linear)

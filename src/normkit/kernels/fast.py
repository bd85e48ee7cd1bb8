"""Ordinary calls in one step: C functions that look at their arguments, and compute or return None.

A single row is done in a tenth of a microsecond; what a call costs is the way there. These functions take a
call that ``admit`` would give to the CPU kernels and that needs nothing else: plain tensors of one device
that nothing watches. None means that nothing has been done, and the call goes the long way. Without the
extension all calls do.
"""

from __future__ import annotations

from typing import Any

from torch._C import _are_functorch_transforms_active, _get_tracing_state
from torch.autograd import forward_ad

from normkit.kernels.cpu import eager

__all__ = ["RMS_OPTIONS", "add_layer_norm", "add_rms_norm", "is_watched", "layer_norm", "rms_norm"]

# What an RMSNorm may ask for, as its C functions read it; what is not here is an error.
RMS_OPTIONS = {  # (zero_centered_weight, multiply)
    (False, "before_cast"): 0,
    (True, "before_cast"): 2,
    (False, "after_cast"): 16,
    (True, "after_cast"): 18,
}


def is_watched() -> bool:
    """Is there a transform, a forward-mode level or a tracer that must see every operation?"""
    return (
        forward_ad._current_level >= 0
        or _are_functorch_transforms_active()
        or _get_tracing_state() is not None
    )


def _declines(*call: Any) -> None:
    return None


layer_norm: Any = getattr(eager.MODULE, "layer_norm", _declines)
rms_norm: Any = getattr(eager.MODULE, "rms_norm", _declines)
add_layer_norm: Any = getattr(eager.MODULE, "add_layer_norm", _declines)
add_rms_norm: Any = getattr(eager.MODULE, "add_rms_norm", _declines)

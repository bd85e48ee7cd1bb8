"""Ordinary calls of row norms on a GPU: what the long way found out about a kind of call is kept.

A small norm takes a GPU two microseconds, and Python's checks ten times as long. Whether a call is right, and
that the kernels take it, depends on shapes, strides, dtypes and devices alone: it is looked up. What may
change from call to call without them (modes, transforms, autocast) is asked each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _get_tracing_state, _len_torch_dispatch_stack
from torch.autograd import forward_ad

from normkit.kernels import rows
from normkit.kernels.admission import admit
from normkit.kernels.by_reference import CENTER, ZERO_CENTERED
from normkit.kernels.operators import DIRECT, PLAIN
from normkit.kernels.triton.launch import Launch, launch

__all__ = ["layer_norm", "rms_norm"]

_KNOWN: dict[
    Any, Launch | None
] = {}  # kinds of calls, and what they launch; None: not for the Triton kernels
_MOST = 4096  # kinds; a program with more of them has shapes that do not come again


def layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float, out: Any
) -> Tensor | None:
    return _rows("layer_norm", x, shape, weight, bias, eps, out, CENTER)


def rms_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None, out: Any, options: int | None
) -> Tensor | None:
    if options not in (0, ZERO_CENTERED):  # rounding before the weight depends on dtypes: the long way knows
        return None
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    return _rows("rms_norm", x, shape, weight, None, eps, out, options)


def _rows(
    op: str,
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    out: Any,
    kind: int,
) -> Tensor | None:
    if out is not None or type(x) not in PLAIN or x.device.type not in DIRECT or _is_watched(x):
        return None
    if type(shape) is not tuple and not isinstance(shape, torch.Size):
        return None
    key = (kind, eps, shape, x.shape, x.stride(), x.dtype, x.device, _metadata(weight), _metadata(bias))
    known = _KNOWN.get(key, ...)
    if known is ...:
        known = _look(op, x, shape, weight, bias, eps, kind)
        if len(_KNOWN) < _MOST:
            _KNOWN[key] = known
    if known is None:
        return None
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        return rows.norm(x, weight, bias, len(shape), eps, kind)
    y = torch.empty_like(x)
    launch(known, (x, None, weight, bias, y, None, None), x.device)
    return y


def _metadata(parameter: Any) -> Any:
    if parameter is None:
        return None
    if type(parameter) not in PLAIN:
        return False
    return parameter.shape, parameter.stride(), parameter.dtype, parameter.device


def _is_watched(x: Tensor) -> bool:
    return bool(
        _len_torch_dispatch_stack()
        or _are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or _get_tracing_state() is not None
        or torch.is_autocast_enabled(x.device.type)
    )


def _look(
    op: str,
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    kind: int,
) -> Launch | None:
    """What it launches, if it is right and the kernels take it. What is wrong, the long way says."""
    first = x.ndim - len(shape)
    if len(shape) == 0 or first < 0 or tuple(x.shape[first:]) != tuple(shape) or type(eps) is not float:
        return None
    if not x.is_contiguous() or x.numel() == 0:
        return None
    for p in (weight, bias):
        right = p is None or (type(p) in PLAIN and p.shape == tuple(shape) and p.device == x.device)
        if not right or (p is not None and not p.is_contiguous()):
            return None
    call: dict[str, Any] = {"axes": tuple(range(first, x.ndim)), "weight": weight, "eps": eps}
    if op == "layer_norm":
        call["bias"] = bias
    else:
        call |= {"zero_centered_weight": bool(kind & ZERO_CENTERED), "multiply": "before_cast"}
    if admit(op, x, call).backend != "triton":
        return None
    from normkit.kernels.triton.rows import plan_forward  # imports Triton

    given = (False, weight is not None, bias is not None, False)
    return plan_forward(x.shape, (x.stride(), None), x.element_size(), len(shape), eps, kind, given)

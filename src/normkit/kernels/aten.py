"""torch's own operators: where no kernel of ours runs, and in graphs that leave Python.

They are as fast as torch is, and round as torch does: digits are lost where the mean is large against the
spread (``normkit.exact()`` asks for the reference instead). ``torch.export`` and ``torch.onnx.export``
write one node a norm rather than the dozen operators of the reference. What torch cannot express is left to
the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from normkit.kernels import reference

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "batch_norm",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "normalize",
    "refuses",
    "rms_norm",
]

_NARROW = (torch.float16, torch.bfloat16)


def refuses(op: str, x: Tensor, call: dict[str, Any]) -> str | None:
    """Why torch cannot compute a call, or None if it can."""
    if x.dtype.is_complex:
        return "torch has no norms of complex numbers"
    residual = call.get("residual")
    if residual is not None and residual.dtype != x.dtype:
        return "torch keeps one dtype for both terms of a sum"
    if op == "normalize" and not _is_layer_norm(x, **call):
        return "torch normalises the last axes, and has parameters for them alone"
    if call.get("axis", 1) != 1:
        return "torch takes the channels at axis 1 only"
    if call.get("mask") is not None or call.get("process_group") is not None:
        return "torch has neither mask= nor process_group="
    if op == "instance_norm" and not torch.compiler.is_exporting() and x.shape[0] == 0:
        return "torch's fails on an empty batch"
    if op == "batch_norm" and call["training"] and call["momentum"] is None:
        return "torch's function keeps no plain average"
    if op == "batch_norm" and torch.compiler.is_exporting() and call.get("num_batches_tracked") is not None:
        return "torch's function does not count batches"
    running = [call.get(name) for name in ("running_mean", "running_var")]
    if any(t is not None and t.requires_grad for t in running):
        return "torch gives running statistics no gradient"
    dtypes = {t.dtype for t in (call.get("weight"), call.get("bias"), *running) if t is not None}
    mixed = op in ("batch_norm", "instance_norm") and x.dtype in _NARROW and dtypes == {torch.float32}
    if dtypes - {x.dtype} and not mixed:
        return "torch takes parameters of the input's dtype only"
    ours = call.get("multiply") == "after_cast" or call.get("zero_centered_weight", False)
    if ours and x.dtype in _NARROW and call["weight"] is not None:
        return "torch multiplies by a weight of the input's dtype, before the cast"
    return None


def normalize(
    x: Tensor,
    *,
    axes: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    center: bool,
    mask: None,
) -> Tensor:
    shape = x.shape[axes[0] :]
    weight = None if weight is None else weight.reshape(shape)
    bias = None if bias is None else bias.reshape(shape)
    return F.layer_norm(x, shape, weight, bias, eps) if center else F.rms_norm(x, shape, weight, eps)


def layer_norm(
    x: Tensor, *, axes: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    return _last(F.layer_norm, x, axes, weight, bias, eps)


def rms_norm(
    x: Tensor,
    *,
    axes: Sequence[int],
    weight: Tensor | None,
    eps: float,
    zero_centered_weight: bool,
    multiply: str,
) -> Tensor:
    if weight is not None and zero_centered_weight:
        weight = 1 + weight
    return _last(F.rms_norm, x, axes, weight, eps)


def group_norm(x: Tensor, *, num_groups: int, axis: int, mask: None, **call: Any) -> Tensor:
    return F.group_norm(x, num_groups, **call)


def batch_norm(
    x: Tensor, *, axis: int, mask: None, process_group: None, num_batches_tracked: Tensor | None, **call: Any
) -> Tensor:
    if call["training"]:
        reference.count_batch(num_batches_tracked, 1, call["momentum"])
    return F.batch_norm(x, **call)


def instance_norm(x: Tensor, *, axis: int, mask: None, **call: Any) -> Tensor:
    return F.instance_norm(x, **call)


def add_layer_norm(x: Tensor, *, residual: Tensor, **call: Any) -> tuple[Tensor, Tensor]:
    total = x + residual
    return layer_norm(total, **call), total


def add_rms_norm(x: Tensor, *, residual: Tensor, **call: Any) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, **call), total


def _last(norm: Callable[..., Tensor], x: Tensor, axes: Sequence[int], *parameters: Any) -> Tensor:
    """torch normalises the last axes: move others there, and back."""
    last = list(range(x.ndim - len(axes), x.ndim))
    tracing = torch.jit.is_tracing()  # type: ignore[attr-defined]  # it is there
    shape = [int(x.shape[a]) if tracing else x.shape[a] for a in axes]  # a traced size is no number
    if list(axes) == last:
        return norm(x, shape, *parameters)
    return norm(x.movedim(list(axes), last), shape, *parameters).movedim(last, list(axes))


def _is_layer_norm(
    x: Tensor,
    axes: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    center: bool,
    **_: Any,
) -> bool:
    first = x.ndim - len(axes)
    shape = (1,) * first + tuple(x.shape[first:])
    trailing = list(axes) == list(range(first, x.ndim))
    return (
        trailing
        and (center or bias is None)
        and all(p is None or tuple(p.shape) == shape for p in (weight, bias))
    )

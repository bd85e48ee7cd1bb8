"""torch's own operators, for exporting: a graph that leaves Python should hold one node a norm.

``torch.export`` and ``torch.onnx.export`` then write ``layer_norm`` or ``LayerNormalization`` rather than
the dozen operators of the reference. Numbers agree for ordinary inputs; torch's lose digits where the mean
is large against the spread. A call that torch cannot express is left to the next backend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

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


def refuses(op: str, x: Tensor, **call: Any) -> str | None:
    """Why this backend cannot take a call, or None if it can."""
    traced = torch._C._get_tracing_state() is not None and torch.onnx.is_in_onnx_export()
    if not (traced or torch.compiler.is_exporting()):
        return "it serves torch.export and torch.onnx.export only"
    if op not in __all__:
        return f"torch has no {op}"
    if ("rms" in op or not call.get("center", True)) and not torch.compiler.is_exporting():
        return "the TorchScript exporter does not know rms_norm"
    residual = call.get("residual")
    if residual is not None and residual.dtype != x.dtype:
        return "torch keeps one dtype for both terms of a sum"
    if op == "normalize" and not _is_layer_norm(x, **call):
        return "torch normalises the last axes, and has parameters for them alone"
    if call.get("axis", 1) != 1:
        return "torch takes the channels at axis 1 only"
    if call.get("mask") is not None or call.get("process_group") is not None:
        return "torch has neither mask= nor process_group="
    if call.get("num_batches_tracked") is not None:
        return "torch's function does not count batches"
    if op == "group_norm" and not x.is_contiguous():
        return "torch's loses digits in channels_last"
    tensors = (call.get(name) for name in ("weight", "bias", "running_mean", "running_var"))
    if any(t is not None and t.dtype != x.dtype for t in tensors):
        return "torch takes parameters of the input's dtype only"
    ours = call.get("multiply") == "after_cast" or call.get("zero_centered_weight", False)
    if ours and x.dtype in (torch.float16, torch.bfloat16):
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
    x: Tensor, *, axis: int, mask: None, process_group: None, num_batches_tracked: None, **call: Any
) -> Tensor:
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

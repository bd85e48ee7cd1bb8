"""The CPU backend: C++ kernels through LibTorch's stable ABI, for float32, float64, bfloat16 and float16.

``rows`` holds the norms of the last axes, ``groups`` every other grouping, ``csrc`` the kernels themselves.
Derivatives of second order, forward-mode derivatives and vmap are left to the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active
from torch.autograd import forward_ad

from normkit.kernels import reference
from normkit.kernels.cpu import groups, library, rows
from normkit.kernels.cpu import registration as registration  # with torch
from normkit.kernels.cpu.rows import add_at_once, at_once
from normkit.kernels.moments import widen

__all__ = [
    "add_at_once",
    "add_layer_norm",
    "add_rms_norm",
    "at_once",
    "batch_norm",
    "can_write",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "normalize",
    "refuses",
    "rms_norm",
    "takes_channels",
]

DTYPES = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})


def refuses(op: str, x: Tensor, **call: Any) -> str | None:
    """Why this backend cannot take a call, or None if it can."""
    if not x.is_cpu:
        return f"it computes on the CPU; this tensor is on {x.device.type}"
    if library.MISSING is not None:
        return library.MISSING
    if type(x) not in (Tensor, torch.nn.Parameter):
        return f"a {type(x).__name__} has ways of its own"
    if x.dtype not in DTYPES:
        return f"it has no kernels for {x.dtype}"
    if torch.compiler.is_exporting() or torch._C._get_tracing_state() is not None:
        return "a graph that leaves Python holds torch's own operators"
    if _are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return "torch.func and forward-mode derivatives need plain torch operations"
    if call.get("process_group") is not None:
        return "statistics over several processes are put together by the reference"
    reason = _refuses_dtypes(x, **call)
    if reason is not None or _is_rows(op, x, **call):
        return reason
    if op.startswith("add_") or call.get("multiply") == "after_cast":
        return "it does this over the last axes only"
    mask = call.get("mask")
    channels: tuple[int, ...] = (call.get("axis", 1),)
    if "axes" in call:
        planned = _plan(x, **call)
        if isinstance(planned, str):
            return planned
        channels = planned.channels
    if mask is not None and any(mask.shape[a] != 1 and mask.stride(a) != 0 for a in channels):
        return "its mask differs from channel to channel"
    return None


def takes_channels(x: Tensor, *parameters: Tensor | None) -> bool:
    """Is nothing about this norm of the channels at axis 1 in need of a closer look?"""
    if not library.is_plain(x) or library.MISSING is not None or x.ndim < 2 or x.dtype not in DTYPES:
        return False
    if not (x.is_contiguous() or (x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last))):
        return False
    shape = x.shape[1:2]
    for p in parameters:
        if p is None:
            continue
        if not isinstance(p, Tensor) or p.shape != shape or not p.is_cpu or p.dtype not in DTYPES:
            return False
    return True


def can_write(op: str, x: Tensor, out: Tensor | tuple[Tensor, Tensor], **call: Any) -> bool:
    """Can the kernels write straight into ``out``? Rows one after the other, groups as ``x`` lies."""
    inputs = {x.data_ptr(), *(t.data_ptr() for t in (call.get("residual"),) if t is not None)}
    outputs = out if isinstance(out, tuple) else (out,)
    if any(t.data_ptr() in inputs for t in outputs):
        return False  # they write some numbers twice, and would read what they have written
    if isinstance(out, tuple) or _is_rows(op, x, **call):
        return all(t.is_contiguous() for t in outputs)
    return out.stride() == x.stride() and groups.is_dense(x)


def layer_norm(
    x: Tensor,
    *,
    axes: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    out: Tensor | None = None,
) -> Tensor:
    if _is_last(x, axes):
        return _rows(x, weight, bias, len(axes), eps, rows.CENTER, out)
    weight, bias = reference.along(axes, x.ndim, weight), reference.along(axes, x.ndim, bias)
    return normalize(x, axes=axes, weight=weight, bias=bias, eps=eps, out=out)


def rms_norm(
    x: Tensor,
    *,
    axes: Sequence[int],
    weight: Tensor | None,
    eps: float,
    zero_centered_weight: bool = False,
    multiply: str = "before_cast",
    out: Tensor | None = None,
) -> Tensor:
    if _is_last(x, axes):
        kind = rows.kind_of(x.dtype, zero_centered_weight, multiply, weight)
        return _rows(x, weight, None, len(axes), eps, kind, out)
    if weight is not None and zero_centered_weight:
        weight = 1 + widen(weight)
    weight = reference.along(axes, x.ndim, weight)
    return normalize(x, axes=axes, weight=weight, eps=eps, center=False, out=out)


def normalize(
    x: Tensor,
    *,
    axes: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    center: bool = True,
    mask: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    call: dict[str, Any] = {"axes": axes, "weight": weight, "bias": bias, "center": center, "mask": mask}
    if _is_rows("normalize", x, **call):
        shape = x.shape[axes[0] :]
        weight = None if weight is None else weight.reshape(shape)
        bias = None if bias is None else bias.reshape(shape)
        return _rows(x, weight, bias, len(axes), eps, rows.CENTER if center else 0, out)
    order = groups.memory_order(x) or ()
    if mask is None and axes and order != tuple(sorted(order)) and set(order[-len(axes) :]) == set(axes):
        # Last in memory: the channels of channels_last are rows.
        weight, bias, into = (None if t is None else t.permute(order) for t in (weight, bias, out))
        last = range(x.ndim - len(axes), x.ndim)
        y = normalize(x.permute(order), axes=last, weight=weight, bias=bias, eps=eps, center=center, out=into)
        return y.permute([order.index(a) for a in range(x.ndim)]) if out is None else out
    planned = _plan(x, **call)
    assert not isinstance(planned, str), planned  # refuses() has asked
    weight, bias = _flat(weight, planned), _flat(bias, planned)
    return groups.norm(x, planned, weight, bias, eps, center=center, mask=mask, out=out)[0]


def group_norm(
    x: Tensor,
    *,
    num_groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    axis: int = 1,
    mask: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    planned = groups.plan_channels(x, axis, over_batch=False, num_groups=num_groups)
    return groups.norm(x, planned, weight, bias, eps, mask=mask, out=out)[0]


def batch_norm(
    x: Tensor,
    *,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float | None,
    eps: float,
    axis: int = 1,
    mask: Tensor | None = None,
    process_group: None = None,
    num_batches_tracked: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    planned = groups.plan_channels(x, axis, over_batch=True)
    mean, var = (None, None) if training else (running_mean, running_var)
    y, stats = groups.norm(x, planned, weight, bias, eps, mask=mask, mean=mean, var=var, out=out)
    if training:
        share = reference.count_batch(num_batches_tracked, 1 if mask is None else stats[2], momentum)
        if running_mean is not None and running_var is not None:
            if isinstance(share, Tensor):
                _move(running_mean, running_var, stats, share, average=False)
            else:
                library.operator("update_running")(running_mean, running_var, stats, share)
    return y


def instance_norm(
    x: Tensor,
    *,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    axis: int = 1,
    mask: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    planned = groups.plan_channels(x, axis, over_batch=not use_input_stats)
    mean, var = (None, None) if use_input_stats else (running_mean, running_var)
    y, stats = groups.norm(x, planned, weight, bias, eps, mask=mask, mean=mean, var=var, out=out)
    if use_input_stats and running_mean is not None and running_var is not None:
        _move(running_mean, running_var, stats.reshape(3, x.shape[0], x.shape[axis]), momentum, average=True)
    return y


def add_layer_norm(
    x: Tensor,
    *,
    residual: Tensor,
    axes: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    return rows.add(x, residual, weight, bias, len(axes), eps, rows.CENTER, out)


def add_rms_norm(
    x: Tensor,
    *,
    residual: Tensor,
    axes: Sequence[int],
    weight: Tensor | None,
    eps: float,
    zero_centered_weight: bool = False,
    multiply: str = "before_cast",
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    kind = rows.kind_of(x.dtype, zero_centered_weight, multiply, weight)
    return rows.add(x, residual, weight, None, len(axes), eps, kind, out)


def _rows(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    dims: int,
    eps: float,
    kind: int,
    out: Tensor | None,
) -> Tensor:
    if out is None:
        return rows.norm(x, weight, bias, dims, eps, kind)
    rows.norm_out(x, weight, bias, dims, eps, kind, out)
    return out


def _is_last(x: Tensor, axes: Sequence[int]) -> bool:
    return list(axes) == list(range(x.ndim - len(axes), x.ndim)) and len(axes) > 0


def _is_rows(op: str, x: Tensor, **call: Any) -> bool:
    """Is this a norm of the last axes, with parameters along all of them or none?"""
    if "axes" not in call or not _is_last(x, call["axes"]):
        return False
    if op != "normalize":
        return True
    first = x.ndim - len(call["axes"])
    shape = (1,) * first + tuple(x.shape[first:])
    weight, bias = call.get("weight"), call.get("bias")
    fits = all(p is None or tuple(p.shape) == shape for p in (weight, bias))
    return fits and call.get("mask") is None and (bias is None or call.get("center", True))


def _plan(x: Tensor, **call: Any) -> groups.Plan | str:
    """Parameters of ``normalize`` broadcast; those of the others have the shape of ``axes``."""
    given = [p for p in (call.get("weight"), call.get("bias")) if p is not None]
    if "mask" not in call:
        return groups.plan(x, call["axes"], call["axes"] if given else ())
    along = {tuple(a for a in range(x.ndim) if p.shape[a] != 1) for p in given}
    if len(along) > 1:
        return "its weight and its bias lie along different axes"
    return groups.plan(x, call["axes"], along.pop() if along else ())


def _flat(parameter: Tensor | None, planned: groups.Plan) -> Tensor | None:
    """A parameter that broadcasts against x, in the order of memory."""
    if parameter is None:
        return None
    order = planned.order or ()
    return (parameter.permute(order) if order != tuple(sorted(order)) else parameter).reshape(-1)


def _refuses_dtypes(x: Tensor, **call: Any) -> str | None:
    for name in ("weight", "bias", "running_mean", "running_var"):
        tensor = call.get(name)
        if tensor is None:
            continue
        if tensor.dtype not in DTYPES:
            return f"it has no kernels for a {name} of {tensor.dtype}"
        if name.startswith("running") and tensor.requires_grad:
            return f"its {name} requires a gradient"
    weight, residual = call.get("weight"), call.get("residual")
    if call.get("multiply") == "after_cast" and weight is not None and weight.dtype != x.dtype:
        return "multiply='after_cast' with a weight of another dtype gives an output of another dtype"
    if (
        residual is not None
        and residual.dtype != x.dtype
        and not (residual.dtype == torch.float32 and x.dtype in rows.ROUND)
    ):
        return f"it does not add {x.dtype} and {residual.dtype}"
    return None


@torch.no_grad()
def _move(
    running_mean: Tensor, running_var: Tensor, stats: Tensor, share: float | Tensor, *, average: bool
) -> None:
    """Running statistics by the reference's own rule."""
    mean, var, count = stats.unbind()
    unbiased = var * count / (count - 1).clamp_min(1)
    reference.update(running_mean, lambda: mean, count > 0, share, average=average)
    reference.update(running_var, lambda: unbiased, count > 1, share, average=average)

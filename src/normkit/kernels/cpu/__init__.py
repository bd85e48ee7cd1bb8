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
from normkit.kernels.cpu import fakes as fakes  # registers them
from normkit.kernels.cpu import groups, library, rows
from normkit.kernels.cpu.rows import at_once
from normkit.kernels.moments import widen

__all__ = [
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
]

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def refuses(op: str, x: Tensor, **call: Any) -> str | None:
    """Why this backend cannot take a call, or None if it can."""
    if x.device.type != "cpu":
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
    given = [call.get(name) for name in ("running_mean", "running_var")]
    if any(t is not None and t.requires_grad for t in given):
        return "the running statistics require a gradient"
    reason = _refuses_dtypes(x, **call)
    if reason is not None or op not in _PLANS or _is_rows(op, x, **call):
        return reason
    if op.startswith("add_") or call.get("multiply") == "after_cast":
        return "it does this over the last axes only"
    planned = _PLANS[op](x, **call)
    if isinstance(planned, str):
        return planned
    mask = call.get("mask")
    if mask is not None and op == "group_norm":
        mask = mask.unsqueeze(call["axis"])
    if mask is not None and any(mask.shape[a] != 1 and mask.stride(a) != 0 for a in planned.channels):
        return "its mask differs from channel to channel"
    return None


def can_write(op: str, x: Tensor, out: Tensor | tuple[Tensor, Tensor], **call: Any) -> bool:
    """Can the kernels write straight into ``out``? Rows one after the other, groups as ``x`` lies."""
    if isinstance(out, tuple):
        return all(t.is_contiguous() for t in out)
    if _is_rows(op, x, **call):
        return out.is_contiguous()
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
    y, _ = groups.norm(x, _planned(_plan_axes(x, **call)), eps=eps, out=out, **call)
    return y


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
    split, axes, channels = _split(x, num_groups, axis)
    planned = _planned(groups.plan(split, axes, channels))
    y, _ = groups.norm(
        split,
        planned,
        axes=axes,
        weight=_on(channels, split, weight),
        bias=_on(channels, split, bias),
        eps=eps,
        mask=None if mask is None else mask.unsqueeze(axis),
        out=None if out is None else _split(out, num_groups, axis)[0],
    )
    return y.flatten(*channels) if out is None else out


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
    axes = reference.all_but(axis, x.ndim)
    y, stats = groups.norm(
        x,
        _planned(groups.plan(x, axes, (axis,))),
        axes=axes,
        weight=_on((axis,), x, weight),
        bias=_on((axis,), x, bias),
        eps=eps,
        mask=mask,
        mean=None if training else running_mean,
        var=None if training else running_var,
        out=out,
    )
    if training:
        mean, var, count = stats.unbind()
        share = reference.count_batch(num_batches_tracked, 1 if mask is None else count, momentum)
        if running_mean is not None and running_var is not None:
            if isinstance(share, Tensor):
                _move(running_mean, running_var, mean, var, count, share, average=False)
            else:
                torch.ops.normkit.update_running(running_mean, running_var, stats, share)
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
    axes = reference.all_but(axis, x.ndim)[1 if use_input_stats else 0 :]
    y, stats = groups.norm(
        x,
        _planned(groups.plan(x, axes, (axis,))),
        axes=axes,
        weight=_on((axis,), x, weight),
        bias=_on((axis,), x, bias),
        eps=eps,
        mask=mask,
        mean=None if use_input_stats else running_mean,
        var=None if use_input_stats else running_var,
        out=out,
    )
    if use_input_stats and running_mean is not None and running_var is not None:
        mean, var, count = stats.reshape(3, x.shape[0], x.shape[axis]).unbind()
        _move(running_mean, running_var, mean, var, count, momentum, average=True)
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


def _plan_axes(x: Tensor, **call: Any) -> groups.Plan | str:
    if "mask" not in call:  # layer_norm and rms_norm: parameters have the shape of the axes
        has_any = call.get("weight") is not None or call.get("bias") is not None
        return groups.plan(x, call["axes"], call["axes"] if has_any else ())
    given = [p for p in (call.get("weight"), call.get("bias")) if p is not None]
    along = {tuple(a for a in range(x.ndim) if p.shape[a] != 1) for p in given}
    if len(along) > 1:
        return "its weight and its bias lie along different axes"
    return groups.plan(x, call["axes"], along.pop() if along else ())


def _plan_channels(x: Tensor, **call: Any) -> groups.Plan | str:
    return groups.plan(x, reference.all_but(call["axis"], x.ndim), (call["axis"],))


def _plan_instances(x: Tensor, **call: Any) -> groups.Plan | str:
    axes = reference.all_but(call["axis"], x.ndim)
    return groups.plan(x, axes[1:] if call["use_input_stats"] else axes, (call["axis"],))


def _plan_groups(x: Tensor, **call: Any) -> groups.Plan | str:
    return groups.plan(*_split(x, call["num_groups"], call["axis"]))


_PLANS = {
    "add_layer_norm": _plan_axes,
    "add_rms_norm": _plan_axes,
    "batch_norm": _plan_channels,
    "group_norm": _plan_groups,
    "instance_norm": _plan_instances,
    "layer_norm": _plan_axes,
    "normalize": _plan_axes,
    "rms_norm": _plan_axes,
}


def _planned(plan: groups.Plan | str) -> groups.Plan:
    assert not isinstance(plan, str), plan  # refuses() has asked
    return plan


def _split(x: Tensor, num_groups: int, axis: int) -> tuple[Tensor, list[int], tuple[int, int]]:
    """The channels as (groups, channels of a group); the axes that share a mean; those two axes."""
    split = x.unflatten(axis, (num_groups, x.shape[axis] // num_groups))
    return split, [i for i in range(1, split.ndim) if i != axis], (axis, axis + 1)


def _on(axes: Sequence[int], x: Tensor, parameter: Tensor | None) -> Tensor | None:
    """A parameter along several axes, viewed so that it broadcasts against ``x``."""
    if parameter is None:
        return None
    return parameter.reshape([x.shape[a] if a in axes else 1 for a in range(x.ndim)])


def _refuses_dtypes(x: Tensor, **call: Any) -> str | None:
    for name in ("weight", "bias", "running_mean", "running_var"):
        tensor = call.get(name)
        if tensor is not None and tensor.dtype not in DTYPES:
            return f"it has no kernels for a {name} of {tensor.dtype}"
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
    running_mean: Tensor,
    running_var: Tensor,
    mean: Tensor,
    var: Tensor,
    count: Tensor,
    share: float | Tensor,
    *,
    average: bool,
) -> None:
    """Running statistics by the reference's own rule."""
    unbiased = var * count / (count - 1).clamp_min(1)
    reference.update(running_mean, lambda: mean, count > 0, share, average=average)
    reference.update(running_var, lambda: unbiased, count > 1, share, average=average)

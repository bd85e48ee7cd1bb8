"""The norms as calls of the operators: the same for every device that has kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from normkit.kernels import groups, reference, rows
from normkit.kernels.by_reference import CENTER, ROUND_BF16, ROUND_F16, ZERO_CENTERED
from normkit.kernels.moments import widen
from normkit.kernels.operators import operator
from normkit.kernels.plans import GroupPlan, Plan, RowPlan, plan

__all__ = ["DTYPES", "plan_call", "run"]

DTYPES = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})
_ROUND = {torch.bfloat16: ROUND_BF16, torch.float16: ROUND_F16}
Axes = tuple[int, ...]
Grouping = tuple[Axes, Axes, Axes, Axes, bool]  # the arguments of `plan`


def plan_call(op: str, x: Tensor, call: dict[str, Any], dtypes: frozenset[torch.dtype]) -> Plan | str:
    """How the kernels do a call, or why they cannot; ``dtypes`` are those that they read."""
    reason = _refuses_dtypes(x, call, dtypes)
    if reason is not None:
        return reason
    grouping = _GROUPINGS[op](x, call)
    if isinstance(grouping, str):
        return grouping
    found = plan(*grouping)
    if isinstance(found, str):
        return found
    if isinstance(found, RowPlan):
        return "it adds over the last axes only" if found.order and op.startswith("add_") else found
    if op.startswith("add_"):
        return "it adds over the last axes only"
    if _rounding(x, call):
        return "multiply='after_cast' is done over neighbours in memory only"
    mask = _split_mask(op, x, call)
    if mask is not None and any(mask.shape[a] != 1 and mask.stride(a) != 0 for a in found.channels):
        return "its mask differs from channel to channel"
    return found


def run(op: str, x: Tensor, call: dict[str, Any], plan: Plan, out: Any = None) -> Any:
    """Compute a call that has been planned. ``out`` is an offer: if it can be written to, it is returned."""
    if isinstance(plan, RowPlan):
        return _run_rows(op, x, call, plan, out)
    y, stats = _run_groups(op, x, call, plan, out)
    if op == "batch_norm" and call["training"]:
        _move_batch(call, stats)
    elif op == "instance_norm" and call["use_input_stats"] and call["running_mean"] is not None:
        per_instance = stats[:3].reshape(3, x.shape[0], x.shape[call["axis"]])
        mean, var = call["running_mean"], call["running_var"]
        reference.move_running(mean, var, per_instance, call["momentum"], average=True)
    return y


# ---- which numbers share one mean? -------------------------------------------------------------------------


def _of_axes(x: Tensor, call: dict[str, Any]) -> Grouping | str:
    """LayerNorm, RMSNorm: parameters have the shape of the axes."""
    axes = tuple(call["axes"])
    given = call["weight"] is not None or call.get("bias") is not None
    return x.shape, x.stride(), axes, axes if given else (), True


def _of_pattern(x: Tensor, call: dict[str, Any]) -> Grouping | str:
    """normalize: parameters broadcast."""
    axes, weight, bias = tuple(call["axes"]), call["weight"], call["bias"]
    along = {tuple(a for a in range(x.ndim) if p.shape[a] != 1) for p in (weight, bias) if p is not None}
    if len(along) > 1:
        return "its weight and its bias lie along different axes"
    own = along.pop() if along else ()
    everywhere = own == tuple(a for a in axes if x.shape[a] != 1)
    known = call["mask"] is None and (bias is None or call["center"])
    rows = known and (everywhere or (weight is None and bias is None))
    return x.shape, x.stride(), axes, own, rows


def _of_channels(x: Tensor, call: dict[str, Any]) -> Grouping:
    """BatchNorm, InstanceNorm: one number a channel. Given statistics are those of all samples."""
    axis = call["axis"]
    each_sample = call.get("use_input_stats", False)
    axes = tuple(a for a in range(1 if each_sample else 0, x.ndim) if a != axis)
    return x.shape, x.stride(), axes, (axis,), False


def _of_groups(x: Tensor, call: dict[str, Any]) -> Grouping:
    """GroupNorm: the axis of the channels stands for two, groups and channels of a group."""
    axis, num_groups = call["axis"], call["num_groups"]
    shape, strides = x.shape, x.stride()
    each = shape[axis] // num_groups
    split = (*shape[:axis], num_groups, each, *shape[axis + 1 :])
    steps = (*strides[:axis], strides[axis] * each, strides[axis], *strides[axis + 1 :])
    axes = tuple(a for a in range(1, x.ndim + 1) if a != axis)
    return split, steps, axes, (axis, axis + 1), False


_GROUPINGS: dict[str, Callable[[Tensor, dict[str, Any]], Grouping | str]] = {
    "add_layer_norm": _of_axes,
    "add_rms_norm": _of_axes,
    "batch_norm": _of_channels,
    "group_norm": _of_groups,
    "instance_norm": _of_channels,
    "layer_norm": _of_axes,
    "normalize": _of_pattern,
    "rms_norm": _of_axes,
}


def _refuses_dtypes(x: Tensor, call: dict[str, Any], dtypes: frozenset[torch.dtype]) -> str | None:
    for name in ("weight", "bias", "running_mean", "running_var"):
        tensor = call.get(name)
        if tensor is None:
            continue
        if tensor.dtype not in dtypes:
            return f"it has no kernels for a {name} of {tensor.dtype}"
        if name.startswith("running") and tensor.requires_grad:
            return f"its {name} requires a gradient"
    weight, residual = call.get("weight"), call.get("residual")
    if call.get("multiply") == "after_cast" and weight is not None and weight.dtype != x.dtype:
        return "multiply='after_cast' with a weight of another dtype gives an output of another dtype"
    if residual is None or residual.dtype == x.dtype:
        return None
    widens = residual.dtype == torch.float32 and x.dtype in _ROUND
    return None if widens else f"it does not add {x.dtype} and {residual.dtype}"


# ---- the calls ---------------------------------------------------------------------------------------------


def _run_rows(op: str, x: Tensor, call: dict[str, Any], plan: RowPlan, out: Any) -> Any:
    dims, order = plan
    weight, bias, eps = call["weight"], call.get("bias"), call["eps"]
    if op == "normalize" or order is not None:
        weight, bias = (_row_parameter(op, x, call, plan, t) for t in (weight, bias))
    center = call.get("center", "rms" not in op)
    zero_centered = ZERO_CENTERED if call.get("zero_centered_weight") else 0
    kind = CENTER if center else zero_centered + _rounding(x, call)
    if op.startswith("add_"):
        residual = call["residual"]
        if out is None or not all(t.is_contiguous() for t in out):
            return rows.add(x, residual, weight, bias, dims, eps, kind)
        rows.add_out(x, residual, weight, bias, dims, eps, kind, out)
        return out
    if order is not None:
        x = x.permute(order)
    into = out if out is None or order is None else out.permute(order)
    if into is None or not into.is_contiguous():
        y = rows.norm(x, weight, bias, dims, eps, kind)
        return y if order is None else y.permute([order.index(a) for a in range(x.ndim)])
    rows.norm_out(x, weight, bias, dims, eps, kind, into)
    return out


def _run_groups(
    op: str, x: Tensor, call: dict[str, Any], plan: GroupPlan, out: Tensor | None
) -> tuple[Tensor, Tensor]:
    if plan.order is None:
        x = x.contiguous()
    weight, bias = (_group_parameter(op, x, call, plan, t) for t in (call["weight"], call.get("bias")))
    given = not call.get("training", call.get("use_input_stats", True))
    mean, var = (call["running_mean"], call["running_var"]) if given else (None, None)
    mask = _flat_mask(op, x, call, plan)
    center = call.get("center", "rms" not in op)
    settings = (plan.sizes, plan.on_rows, mask, mean, var, call["eps"], center)
    if out is not None and _lies_as(out, x):
        return out, groups.norm_out(x, weight, bias, *settings, out=out)
    return groups.norm(x, weight, bias, *settings)


def _move_batch(call: dict[str, Any], stats: Tensor) -> None:
    count = 1 if call["mask"] is None else stats[2]
    share = reference.count_batch(call["num_batches_tracked"], count, call["momentum"])
    mean, var = call["running_mean"], call["running_var"]
    if mean is None or var is None:
        return
    if isinstance(share, Tensor) or not (mean.is_contiguous() and var.is_contiguous()):
        reference.move_running(mean, var, stats[:3], share)
    else:
        operator("update_running", stats)(mean, var, stats, share)


def _rounding(x: Tensor, call: dict[str, Any]) -> int:
    """Is x_hat rounded before it meets the weight? float32 is as wide as what is computed in."""
    rounds = call.get("multiply") == "after_cast" and call["weight"] is not None
    return _ROUND.get(x.dtype, 0) if rounds else 0


def _row_parameter(
    op: str, x: Tensor, call: dict[str, Any], plan: RowPlan, parameter: Tensor | None
) -> Tensor | None:
    """With the axes of a row, in the order of memory."""
    if parameter is None:
        return None
    order = plan.order or tuple(range(x.ndim))
    broadcast = parameter if op == "normalize" else reference.along(call["axes"], x.ndim, parameter)
    assert broadcast is not None
    if broadcast.ndim < x.ndim:  # along the last axes
        broadcast = broadcast.reshape((1,) * (x.ndim - broadcast.ndim) + broadcast.shape)
    return broadcast.permute(order).reshape([x.shape[a] for a in order[-plan.dims :]])


def _group_parameter(
    op: str, x: Tensor, call: dict[str, Any], plan: GroupPlan, parameter: Tensor | None
) -> Tensor | None:
    """Flat, in the order of memory."""
    if parameter is None:
        return None
    if call.get("zero_centered_weight"):
        parameter = 1 + parameter.to(torch.promote_types(parameter.dtype, widen(x[:0]).dtype))
    if parameter.ndim > 1:
        broadcast = parameter if op == "normalize" else reference.along(call["axes"], x.ndim, parameter)
        assert broadcast is not None
        order = plan.order or tuple(range(x.ndim))
        if broadcast.ndim < x.ndim:
            broadcast = broadcast.reshape((1,) * (x.ndim - broadcast.ndim) + broadcast.shape)
        parameter = broadcast.permute(order).reshape(-1)
    # One number for all: axes of size 1 have no place among the five sizes.
    return parameter if parameter.numel() == plan.parameters else widen(parameter).expand(plan.parameters)


def _flat_mask(op: str, x: Tensor, call: dict[str, Any], plan: GroupPlan) -> Tensor | None:
    """One value for each place that all channels share, as they lie in memory."""
    mask = _split_mask(op, x, call)
    if mask is None or x.numel() == 0:
        return None
    for axis in plan.channels:
        mask = mask.narrow(axis, 0, 1)
    return mask.permute(plan.order or tuple(range(mask.ndim))).contiguous()


def _split_mask(op: str, x: Tensor, call: dict[str, Any]) -> Tensor | None:
    """A mask with the axes of a plan: those of x, of which GroupNorm counts that of the channels twice."""
    mask: Tensor | None = call.get("mask")
    if mask is None:
        return None
    mask = mask.expand(x.shape)
    if op != "group_norm":
        return mask
    axis, num_groups = call["axis"], call["num_groups"]
    return mask.unflatten(axis, (num_groups, x.shape[axis] // num_groups))


def _lies_as(out: Tensor, x: Tensor) -> bool:
    """Has every number of ``out`` the place in memory that it has in ``x``?"""
    pairs = zip(out.shape, out.stride(), x.stride(), strict=True)
    return all(size == 1 or a == b for size, a, b in pairs)

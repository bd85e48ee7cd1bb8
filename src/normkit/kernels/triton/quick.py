"""Ordinary calls on a GPU: what the long way found out about a kind of call is kept.

A small norm takes a GPU two microseconds, and Python's checks ten times as long. The extension of ``cpu``
looks at a call, finds what was launched for the last one of its kind, and launches it again. This is what it
asks when a kind is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from normkit.kernels.admission import admit
from normkit.kernels.by_reference import CENTER, ROUND_BF16, ROUND_F16, ZERO_CENTERED
from normkit.kernels.cpu import eager
from normkit.kernels.triton import DEVICES
from normkit.kernels.triton.launch import Launch, launch, stream_of

__all__ = ["serve", "serve_gpus"]


def serve_gpus() -> None:
    """The kinds of GPU that this torch was built for."""
    built = {"cuda": torch.version.cuda or torch.version.hip, "xpu": getattr(torch.version, "xpu", None)}
    for device in DEVICES:
        if built[device] and eager.MODULE is not None:
            serve(device)


def serve(device: str) -> dict[bytes, Any]:
    """From now on the extension takes calls on devices of this type; returns what it keeps of them."""
    known: dict[bytes, Any] = eager.MODULE.serve(device, look_rows, look_groups, launch, stream_of(device))
    return known


# The tensors of a call, in the order of the extension.
ROWS = ("x", "residual", "weight", "bias", "y", "total", "stats")
GROUPS = ("x", "mean", "var", "weight", "bias", "y", "stats", "work", "none")
Program = tuple[tuple[list[Any], ...], int]


def look_rows(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    dims: int,
    eps: float,
    kind: int,
    train: bool,
) -> Program | None:
    """What a call with these tensors, all contiguous, launches; None if it is not for the Triton kernels.

    NotImplemented is no answer for good: forward-mode derivatives are on.
    """
    if forward_ad._current_level >= 0:
        return NotImplemented
    call: dict[str, Any] = {"axes": tuple(range(x.ndim - dims, x.ndim)), "weight": weight, "eps": eps}
    if kind & CENTER:
        op, call["bias"] = "layer_norm", bias
    else:
        op, call["zero_centered_weight"] = "rms_norm", bool(kind & ZERO_CENTERED)
        call["multiply"] = "after_cast" if kind & (ROUND_BF16 | ROUND_F16) else "before_cast"
    if residual is not None:
        op, call["residual"] = f"add_{op}", residual
    if admit(op, x, call).backend != "triton":
        return None
    from normkit.kernels.triton.rows import plan_forward  # imports Triton

    given = (residual is not None, weight is not None, bias is not None, train)
    strides = (x.stride(), None if residual is None else residual.stride())
    found = plan_forward(x.shape, strides, x.element_size(), dims, eps, kind, given)
    return _program([(found, ROWS)], 0, ROWS)


def look_groups(
    x: Tensor,
    num_groups: int | bool | None,
    sizes: tuple[int, int, int, int, int],
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    given: bool,
    momentum: float,
    eps: float,
) -> Program | None:
    """The same for channels at axis 1; ``num_groups`` is None for BatchNorm and True for InstanceNorm."""
    if forward_ad._current_level >= 0:
        return NotImplemented
    call: dict[str, Any] = {"weight": weight, "bias": bias, "eps": eps, "axis": 1, "mask": None}
    running = {"running_mean": mean, "running_var": var, "momentum": momentum}
    if num_groups is None:
        op = "batch_norm"
        call |= {**running, "training": not given, "process_group": None, "num_batches_tracked": None}
    elif num_groups is True:
        op = "instance_norm"
        call |= {**running, "use_input_stats": not given}
    else:
        op, call["num_groups"] = "group_norm", num_groups
    if admit(op, x, call).backend != "triton":
        return None
    from normkit.kernels.triton.groups import plan_forward

    moves = momentum if mean is not None and not given else None
    of = (weight is not None, bias is not None)
    return _program(*plan_forward((*sizes, x.element_size()), eps, given, moves, *of), GROUPS)


def _program(steps: Sequence[tuple[Launch, Sequence[str]]], work: int, names: Sequence[str]) -> Program:
    return tuple([call, bytes(map(names.index, tensors)), None] for call, tensors in steps), work

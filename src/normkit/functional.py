"""Every norm as a function: torch's names and arguments, plus what torch does not have.

The arguments after ``*`` are ours. Everywhere: statistics are taken in float32 or wider, parameters may
have another dtype than the input, and the output has the input's dtype (``rms_norm`` with
``multiply="after_cast"``: that of input and weight). Like torch's, an output is contiguous, or channels_last
where the input is. ``out=`` takes a tensor that the output is written into, which saves the time that fresh
memory costs; as in torch, no gradient is recorded then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.compiler import is_compiling

from normkit import checks
from normkit.errors import user_error
from normkit.kernels import FORCED, fast
from normkit.pattern import Layout, Pattern
from normkit.torch_semantics import autocast, compute, compute_sum

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "batch_norm",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "normalize",
    "rms_norm",
]

MULTIPLY = ("before_cast", "after_cast")


def normalize(
    x: Tensor,
    /,
    pattern: str | Pattern,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    center: bool = True,
    affine: str | Sequence[str] | None = None,
    mask: Tensor | None = None,
    out: Tensor | None = None,
    **sizes: int,
) -> Tensor:
    r"""Normalise together the axes that stand in brackets.

        y = (x - mean) / sqrt(var + eps) * weight + bias

    Args:
        pattern: names the axes of ``x``; brackets mark those that share one mean. See ``normkit.pattern``.
        weight, bias: one size for every axis of ``affine``.
        center: False leaves the mean in and divides by the root mean square.
        affine: names of the axes that ``weight`` and ``bias`` have. If left out: the axes whose sizes are
            given, else those in brackets.
        mask: True where a value is real. Padding enters no statistic, gets no gradient, and comes out as 0.
            It broadcasts against ``x``, or leaves out the axes of ``affine`` if those are named or sized.
        sizes: sizes of named axes, needed where an axis is split.

    Example:
        >>> x = torch.tensor([[5.0, 5, 0, 0, 0, 0, 0, 0]])
        >>> normalize(x, "b [d]")[0, :3]
        tensor([ 1.7320,  1.7320, -0.5773])
    """
    pattern = pattern if isinstance(pattern, Pattern) else Pattern.parse(pattern)
    who = f"normalize({pattern.text!r})"
    checks.floating(who, x, complex_too=not center)
    x = autocast(x)
    pattern.check_sizes(sizes)
    layout = pattern.layout(x.shape, sizes)
    named = pattern.affine(affine, sizes)
    names = named or pattern.shared_names
    mask = checks.mask_like(who, mask, x, _whole_axes(layout, named))
    call = {
        "axes": layout.axes,
        "weight": _placed(who, "weight", weight, x, pattern, layout, names),
        "bias": _placed(who, "bias", bias, x, pattern, layout, names),
        "eps": eps,
        "center": center,
        "mask": None if mask is None else layout.split(mask.expand(x.shape)),
    }
    return compute("normalize", x, call, out, split=layout.split)


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    axis: int = -1,
    out: Tensor | None = None,
) -> Tensor:
    """Normalise the axes that end at ``axis``. See :class:`normkit.LayerNorm`."""
    if axis == -1 and not FORCED and not is_compiling():
        y: Tensor | None = fast.layer_norm(input, normalized_shape, weight, bias, eps, out)
        if y is not None:
            return y
    checks.floating("layer_norm", input)
    input = autocast(input)
    parameters = {"weight": weight, "bias": bias}
    axes = checks.normalized_axes("LayerNorm", input, normalized_shape, axis, parameters)
    call = {"axes": axes, "weight": weight, "bias": bias, "eps": eps}
    return compute("layer_norm", input, call, out, keep_channels_last=axis != -1)


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    axis: int = -1,
    zero_centered_weight: bool = False,
    multiply: str = "before_cast",
    out: Tensor | None = None,
) -> Tensor:
    """Divide the axes that end at ``axis`` by their root mean square. See :class:`normkit.RMSNorm`."""
    if axis == -1 and not FORCED and not is_compiling():
        options = fast.RMS_OPTIONS.get((zero_centered_weight, multiply))
        y: Tensor | None = fast.rms_norm(input, normalized_shape, weight, eps, out, options)
        if y is not None:
            return y
    checks.floating("rms_norm", input, complex_too=True)
    input = autocast(input)
    checks.one_of(multiply, MULTIPLY, what="multiply=")
    call = {
        "axes": checks.normalized_axes("RMSNorm", input, normalized_shape, axis, {"weight": weight}),
        "weight": weight,
        "eps": _rms_eps(eps, input),
        "zero_centered_weight": zero_centered_weight,
        "multiply": multiply,
    }
    return compute("rms_norm", input, call, out)


def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    axis: int = -1,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Add, then normalise: returns ``(layer_norm(x + residual), x + residual)``.

    The sum has the wider dtype of the two, so a float32 residual stream stays one; the normalised output
    is rounded to the dtype of ``x``.

    Example:
        >>> y, stream = add_layer_norm(torch.ones(2, 4), torch.zeros(2, 4), (4,))
        >>> stream.sum().item(), y.sum().item()
        (8.0, 0.0)
    """
    if axis == -1 and not FORCED and not is_compiling():
        both: tuple[Tensor, Tensor] | None = fast.add_layer_norm(
            x, residual, normalized_shape, weight, bias, eps, out
        )
        if both is not None:
            return both
    _check_sum("add_layer_norm", x, residual)
    parameters = {"weight": weight, "bias": bias}
    axes = checks.normalized_axes("LayerNorm", x, normalized_shape, axis, parameters)
    call = {"residual": residual, "axes": axes, "weight": weight, "bias": bias, "eps": eps}
    return compute_sum("add_layer_norm", x, call, out)


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    axis: int = -1,
    zero_centered_weight: bool = False,
    multiply: str = "before_cast",
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Add, then normalise: returns ``(rms_norm(x + residual), x + residual)``.

    Dtypes as in :func:`add_layer_norm`, so ``multiply`` refers to the dtype of ``x``; the other arguments as
    in :func:`rms_norm`.
    """
    if axis == -1 and not FORCED and not is_compiling():
        options = fast.RMS_OPTIONS.get((zero_centered_weight, multiply))
        both: tuple[Tensor, Tensor] | None = fast.add_rms_norm(
            x, residual, normalized_shape, weight, eps, out, options
        )
        if both is not None:
            return both
    _check_sum("add_rms_norm", x, residual)
    checks.one_of(multiply, MULTIPLY, what="multiply=")
    call = {
        "residual": residual,
        "axes": checks.normalized_axes("RMSNorm", x, normalized_shape, axis, {"weight": weight}),
        "weight": weight,
        "eps": _rms_eps(eps, x, residual),
        "zero_centered_weight": zero_centered_weight,
        "multiply": multiply,
    }
    return compute_sum("add_rms_norm", x, call, out)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    axis: int = 1,
    mask: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Normalise each of ``num_groups`` groups of channels of each sample. See :class:`normkit.GroupNorm`."""
    if axis == 1 and mask is None and not FORCED and not is_compiling():
        y: Tensor | None = fast.channels(input, num_groups, weight, bias, None, None, False, None, eps, out)
        if y is not None:
            return y
    checks.floating("group_norm", input)
    input = autocast(input)
    axis = checks.channel_axis("GroupNorm", input, axis, {"weight": weight, "bias": bias})
    channels = input.shape[axis]
    if num_groups < 1 or channels % num_groups != 0:
        raise user_error(
            f"GroupNorm got an input of shape {tuple(input.shape)} and num_groups={num_groups}.",
            expected=f"num_groups to divide the {channels} channels at axis {axis}",
            fix=f"choose one of {', '.join(str(g) for g in range(1, channels + 1) if channels % g == 0)}.",
        )
    samples_and_group = input.numel() // num_groups
    checks.several_values("GroupNorm", input, samples_and_group, of="a group")
    call = {
        "num_groups": num_groups,
        "weight": weight,
        "bias": bias,
        "eps": eps,
        "axis": axis,
        "mask": checks.mask_like("GroupNorm", mask, input, (axis,)),
    }
    return compute("group_norm", input, call, out)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    *,
    axis: int = 1,
    mask: Tensor | None = None,
    process_group: ProcessGroup | None = None,
    num_batches_tracked: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Normalise each channel over everything else; update the running statistics in place.

    ``process_group`` takes the statistics over all its processes. ``num_batches_tracked`` is counted up by 1,
    but for a batch of padding alone; with it, ``momentum=None`` keeps the plain average of all batches. See
    :class:`normkit.BatchNorm2d` and :class:`normkit.SyncBatchNorm`.
    """
    if axis == 1 and mask is None and process_group is None and not FORCED and not is_compiling():
        y: Tensor | None = fast.channels(
            input, None, weight, bias, running_mean, running_var, not training, momentum, eps, out
        )
        if y is not None:
            if training and num_batches_tracked is not None:
                num_batches_tracked.add_(1)
            return y
    checks.floating("batch_norm", input)
    checks.positive_eps("BatchNorm", eps, training=training)
    if training and momentum is None and num_batches_tracked is None:
        raise user_error(
            "batch_norm got momentum=None and no num_batches_tracked.",
            expected="a momentum, or the number of batches so far, for the plain average",
        )
    if tuple(input.shape) == (0,):  # no batch and no channels: torch hands it back, too
        return input.clone()
    checks.running("batch_norm", running_mean, running_var, needed=not training, flag="training=False")
    parameters = {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}
    axis = checks.channel_axis("BatchNorm", input, axis, parameters)
    if training and process_group is None:
        rest = [i for i in range(input.ndim) if i != axis]
        checks.several_values("BatchNorm", input, math.prod([input.shape[i] for i in rest]), of="a channel")
    call = {
        **parameters,
        "training": training,
        "momentum": momentum,
        "eps": eps,
        "axis": axis,
        "mask": checks.mask_like("BatchNorm", mask, input, (axis,)),
        "process_group": process_group,
        "num_batches_tracked": num_batches_tracked,
    }
    return compute("batch_norm", input, call, out)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    axis: int = 1,
    mask: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Normalise each channel of each sample by itself. See :class:`normkit.InstanceNorm2d`."""
    if axis == 1 and mask is None and not FORCED and not is_compiling():
        of = True if use_input_stats else None
        y: Tensor | None = fast.channels(
            input, of, weight, bias, running_mean, running_var, not use_input_stats, momentum, eps, out
        )
        if y is not None:
            return y
    checks.floating("instance_norm", input)
    checks.running(
        "instance_norm", running_mean, running_var, needed=not use_input_stats, flag="use_input_stats=False"
    )
    parameters = {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}
    axis = checks.channel_axis("InstanceNorm", input, axis, parameters)
    if use_input_stats:
        rest = [i for i in range(1, input.ndim) if i != axis]
        values = math.prod([input.shape[i] for i in rest])
        checks.several_values("InstanceNorm", input, values, of="a channel of a sample")
    call = {
        **parameters,
        "use_input_stats": use_input_stats,
        "momentum": momentum,
        "eps": eps,
        "axis": axis,
        "mask": checks.mask_like("InstanceNorm", mask, input, (axis,)),
    }
    return compute("instance_norm", input, call, out)


def _placed(
    who: str,
    what: str,
    parameter: Tensor | None,
    x: Tensor,
    pattern: Pattern,
    layout: Layout,
    names: Sequence[str],
) -> Tensor | None:
    """A parameter that broadcasts against the input with its axes split."""
    if parameter is None:
        return None
    found = dict(zip(layout.names, layout.sizes, strict=True))
    checks.parameter(who, what, parameter, x)
    shape = pattern.parameter_shape(names, found)
    if tuple(parameter.shape) != shape or not names:
        axes = [[f.name for f in axis.factors] for axis in pattern.axes if not axis.is_ellipsis]
        fitting = [own for own in axes if pattern.parameter_shape(own, found) == parameter.shape]
        raise user_error(
            f"{who} got a {what} of shape {tuple(parameter.shape)}.",
            expected=f"shape {shape}, the sizes of {' '.join(names)}",
            fix=f'name the axes that it has, for example affine="{" ".join(fitting[-1])}".'
            if fitting
            else None,
        )
    return parameter.reshape([size if name in names else 1 for name, size in found.items()])


def _whole_axes(layout: Layout, names: Sequence[str]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(a for n, a in zip(layout.names, layout.axis_of, strict=True) if n in names))


def _rms_eps(eps: float | None, *terms: Tensor) -> float:
    """torch's default: the epsilon of the dtype that the mean square is taken in, float32 or wider."""
    return min(torch.finfo(d).eps for d in (torch.float32, *(t.dtype for t in terms))) if eps is None else eps


def _check_sum(who: str, x: Tensor, residual: Tensor) -> None:
    checks.floating(who, x)
    checks.floating(who, residual)
    checks.same_device(who, x, {"residual": residual})
    if x.shape != residual.shape:
        raise user_error(
            f"{who} got x of shape {tuple(x.shape)} and residual of shape {tuple(residual.shape)}.",
            expected="the same shape",
        )

"""What every call is checked for before a kernel sees it. Each check raises ``NormkitError`` or returns
the argument in its plain form: axes counted from the front, a mask that broadcasts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from normkit.errors import NormkitError, user_error

__all__ = [
    "axis_of",
    "channel_axis",
    "floating",
    "integer",
    "mask_like",
    "normalized_axes",
    "one_of",
    "parameter",
    "positive_eps",
    "running",
    "same_device",
    "several_values",
]


def one_of(value: str, allowed: Iterable[str], *, what: str) -> None:
    """A choice is one of its names; the closest one is offered."""
    names = list(allowed)
    if value not in names:
        close = difflib.get_close_matches(str(value), names, n=1)
        raise user_error(
            f"{what} got {value!r}.",
            expected=f"one of {', '.join(map(repr, names))}",
            fix=f"did you mean {close[0]!r}?" if close else None,
        )


def integer(value: object, *, what: str, least: int) -> None:
    """An integer that is large enough."""
    if type(value) is not int or value < least:
        raise user_error(f"{what} got {value!r}.", expected=f"an integer of at least {least}")


def floating(who: str, x: object, *, complex_too: bool = False) -> None:
    if not isinstance(x, Tensor):
        raise user_error(
            f"{who} got {type(x).__name__}.", expected="a torch.Tensor", fix="torch.as_tensor(...)"
        )
    if not (x.is_floating_point() or (complex_too and x.is_complex())):
        raise user_error(
            f"{who} got an input of dtype {x.dtype}.",
            expected="a floating-point dtype",
            fix="convert it first, for example with x.float().",
        )


def positive_eps(layer: str, eps: float, *, training: bool) -> None:
    """A running variance is a number above 0 and needs no eps; that of a batch can be 0."""
    if eps < 0 or (training and eps == 0):
        least = "a number above 0 in training" if training else "a number of at least 0"
        raise user_error(f"{layer} got eps={eps}.", expected=least, fix="the usual one is 1e-5.")


def axis_of(who: str, axis: int, ndim: int) -> int:
    """An axis counted from the front."""
    if not isinstance(axis, int):
        raise user_error(f"{who} got axis={axis!r}.", expected="an integer")
    if not -ndim <= axis < ndim:
        raise user_error(
            f"{who} got axis={axis} for an input with {ndim} axes.", expected=f"{-ndim} to {ndim - 1}"
        )
    return axis % ndim


def normalized_axes(
    layer: str, x: Tensor, shape: Sequence[int], axis: int, parameters: Mapping[str, Tensor | None]
) -> tuple[int, ...]:
    """The axes that have ``shape`` and end at ``axis``; ``parameters`` must have that shape too."""
    if isinstance(shape, int):
        raise user_error(
            f"normalized_shape is {shape}.", expected="a tuple of sizes", fix=f"pass ({shape},)."
        )
    shape = tuple(shape)
    last = x.ndim - 1 if axis == -1 else axis_of(layer, axis, x.ndim) if x.ndim else -1
    first = last - len(shape) + 1
    if not shape or first < 0 or tuple(x.shape[first : last + 1]) != shape:
        raise _other_shape(layer, x, shape, first, last)
    for name, given in parameters.items():
        if given is None:
            continue
        parameter(layer, name, given, x)
        if tuple(given.shape) != shape:
            raise user_error(
                f"{_called(layer, shape)} got a {name} of shape {tuple(given.shape)}.",
                expected=f"the normalised shape, {shape}",
            )
    return tuple(range(first, last + 1))


def _called(layer: str, shape: Sequence[int]) -> str:
    return f"{layer}({shape[0] if len(shape) == 1 else shape})"


def _other_shape(layer: str, x: Tensor, shape: tuple[int, ...], first: int, last: int) -> NormkitError:
    if not shape:
        return user_error(
            f"{layer} got an empty normalized_shape.",
            expected="at least one size",
            fix="name the sizes of the axes that share one mean, for example (768,).",
        )
    got = tuple(x.shape[max(first, 0) : last + 1])
    where = "last" if last == x.ndim - 1 else f"axis {last} as the last"
    one = f"{where} dimension {shape[0]}" if len(shape) == 1 else f"{where} {len(shape)} dimensions {shape}"
    tail = ", ".join(map(str, shape)) if last == x.ndim - 1 else None
    return user_error(
        f"{_called(layer, shape)} got an input of shape {tuple(x.shape)}.",
        expected=one + (f", i.e. (..., {tail})" if tail else ""),
        fix=(f"build it with {layer}({got[0] if len(got) == 1 else got}), or " if first >= 0 else "")
        + "point axis= at the dimension that has that size.",
    )


def channel_axis(layer: str, x: Tensor, axis: int, parameters: Mapping[str, Tensor | None]) -> int:
    """The axis of the channels; every one of ``parameters`` must have one number a channel."""
    if x.ndim < 2:
        raise user_error(
            f"{layer} got an input of shape {tuple(x.shape)}.",
            expected="at least two axes, batch and channels",
            fix="add a batch axis with x.unsqueeze(0).",
        )
    axis = axis_of(layer, axis, x.ndim)
    if axis == 0:
        raise user_error(
            f"{layer} got axis=0, which is the batch.", expected="the axis of the channels, 1 or later"
        )
    for name, given in parameters.items():
        parameter(layer, name, given, x)
        if given is not None and tuple(given.shape) != (x.shape[axis],):
            raise user_error(
                f"{layer} got an input of shape {tuple(x.shape)} and a {name} of shape {tuple(given.shape)}.",
                expected=f"axis {axis} of the input (size {x.shape[axis]}) to be the channels",
                fix=f"build it for {x.shape[axis]} channels, or point axis= at the channels "
                "(axis=-1 for channel-last data).",
            )
    return axis


def several_values(layer: str, x: Tensor, values: int, *, of: str) -> None:
    """One value has no spread: refuse a statistic over a single number."""
    if values == 1:
        raise user_error(
            f"{layer} got an input of shape {tuple(x.shape)}, with a single value {of}.",
            expected=f"more than 1 value {of} when statistics are taken from the input",
            fix="use more data a call, or call eval() where running statistics should be used.",
        )


def mask_like(who: str, mask: Tensor | None, x: Tensor, without: Sequence[int]) -> Tensor | None:
    """A mask that broadcasts against ``x``. It may leave out the axes ``without``, where it does not vary."""
    if mask is None:
        return None
    got = tuple(mask.shape) if isinstance(mask, Tensor) else None
    short = tuple(size for i, size in enumerate(x.shape) if i not in without)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = f"dtype {mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
        raise user_error(
            f"{who} got a mask of {kind}.",
            expected="a tensor of dtype torch.bool, True where a value is real and False where it is padding",
            fix="convert it with mask.bool(), or invert a padding mask with ~mask.",
        )
    if mask.ndim == x.ndim - len(without):
        for i in sorted(without):
            mask = mask.unsqueeze(i)
    fits = mask.ndim == x.ndim and all(m in (1, s) for m, s in zip(mask.shape, x.shape, strict=True))
    if mask.device != x.device:
        same_device(who, x, {"mask": mask})
    if not fits:
        either = f"{short}, or " if without else ""
        raise user_error(
            f"{who} got a mask of shape {got} for an input of shape {tuple(x.shape)}.",
            expected=f"shape {either}one that broadcasts against the input",
        )
    return mask


def parameter(who: str, name: str, value: object, x: Tensor) -> None:
    """A parameter is a tensor of numbers as real as those of ``x``, where ``x`` is; or left out."""
    if value is None:
        return
    if not isinstance(value, Tensor):
        raise user_error(f"{who} got a {name} of {type(value).__name__}.", expected="a torch.Tensor, or None")
    if not (value.is_floating_point() or (x.is_complex() and value.is_complex())):
        raise user_error(
            f"{who} got a {name} of dtype {value.dtype}.",
            expected="a floating-point dtype",
            fix=f"convert it first, for example with {name}.{'real' if value.is_complex() else 'float()'}.",
        )
    if value.device != x.device:
        same_device(who, x, {name: value})


def same_device(who: str, x: Tensor, others: Mapping[str, Tensor | None]) -> None:
    for name, tensor in others.items():
        if tensor is not None and tensor.device != x.device:
            raise user_error(
                f"{who} got an input on {x.device} and a {name} on {tensor.device}.",
                expected="both on one device",
                fix="load or initialise the module first, for example with module.to_empty(device=...) "
                "and its state_dict."
                if tensor.device.type == "meta"
                else f"move one of them, for example with {name}.to({str(x.device)!r}).",
            )


def running(who: str, mean: Tensor | None, var: Tensor | None, *, needed: bool, flag: str) -> None:
    """Running statistics come in pairs, and are needed where the input gives none."""
    if (mean is None) != (var is None) or (needed and mean is None):
        missing = " and ".join(n for n, t in (("running_mean", mean), ("running_var", var)) if t is None)
        raise user_error(
            f"{who} got no {missing}.",
            expected=f"both with {flag}" if needed else "both or neither",
            fix=None if not needed else "pass running statistics, or take them from the input.",
        )

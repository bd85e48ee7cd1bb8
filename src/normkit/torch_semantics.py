"""What torch does around its norms, and we do after it: autocast, the layout of an output, ``out=``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from normkit import kernels
from normkit.errors import user_error

__all__ = ["autocast", "compute", "compute_sum"]


def autocast(x: Tensor) -> Tensor:
    """On accelerators torch lists these norms among those that autocast runs in float32."""
    if x.is_cpu or x.dtype not in (torch.float16, torch.bfloat16):
        return x
    device = x.device.type
    return x.float() if device in ("cuda", "xpu") and torch.is_autocast_enabled(device) else x


def compute(
    op: str,
    x: Tensor,
    call: dict[str, Any],
    out: Tensor | None = None,
    *,
    keep_channels_last: bool = True,
    split: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Run ``op``; the output lies in memory as torch's does, or in ``out``.

    ``split``: a view in which the kernels see the input and the output, with more axes.
    """
    if out is None:
        y: Tensor = kernels.run(op, x if split is None else split(x), call)
        if split is not None:
            y = y.reshape(x.shape)
        return _match_memory_format(y, x, channels_last=keep_channels_last)
    _check_out(out, x, call)
    offered = (
        None if is_compiling() or out.is_neg() or (split is not None and not out.is_contiguous()) else out
    )
    if split is None:
        return _copy_to_out(kernels.run(op, x, call, offered), out)
    into = None if offered is None else split(offered)
    y = kernels.run(op, split(x), call, into)
    return out if y is into else out.copy_(y.reshape(x.shape))


def compute_sum(
    op: str, x: Tensor, call: dict[str, Any], out: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """The same for a norm after a residual add, which has two outputs."""
    if out is None:
        y, total = kernels.run(op, x, call)
        return _match_memory_format(y, x, channels_last=False), _match_memory_format(
            total, x, channels_last=False
        )
    if not isinstance(out, tuple) or len(out) != 2:
        raise user_error(
            f"out= got {type(out).__name__}.", expected="a tuple of two tensors, (normalised, sum)"
        )
    _check_out(out[0], x, call)
    _check_out(out[1], x, call, dtype=torch.promote_types(x.dtype, call["residual"].dtype))
    if not is_compiling() and _overlap(*out):
        raise user_error("out= got two tensors that share memory.", expected="one for each output")
    y, total = kernels.run(op, x, call, None if is_compiling() or any(t.is_neg() for t in out) else out)
    return _copy_to_out(y, out[0]), _copy_to_out(total, out[1])


def _match_memory_format(y: Tensor, x: Tensor, *, channels_last: bool = True) -> Tensor:
    """Contiguous, as torch's outputs are, so that ``view`` works on them; but channels_last stays so."""
    if channels_last and x.ndim in (4, 5) and not x.is_contiguous() and _is_channels_last(x):
        return y.contiguous(memory_format=torch.channels_last if x.ndim == 4 else torch.channels_last_3d)
    return y.contiguous()


def _is_channels_last(x: Tensor) -> bool:
    """By strides, because vmap cannot ask a tensor for its memory format."""
    step = 1
    for axis in (1, *range(x.ndim - 1, 1, -1), 0):
        if x.stride(axis) != step:
            return False
        step *= x.shape[axis]
    return True


def _check_out(out: object, x: Tensor, call: dict[str, Any], dtype: torch.dtype | None = None) -> None:
    """``out`` must be able to hold the result, and hold nothing that is still to be read."""
    dtype = dtype or x.dtype
    if not isinstance(out, Tensor):
        raise user_error(f"out= got {type(out).__name__}.", expected="a torch.Tensor")
    if out.shape != x.shape or out.dtype != dtype or out.device != x.device or out.layout != x.layout:
        raise user_error(
            f"out= got a tensor of shape {tuple(out.shape)}, {out.dtype}, {out.layout}, on {out.device}.",
            expected=f"shape {tuple(x.shape)}, {dtype}, {x.layout}, on {x.device}",
        )
    tensors = [x, *(t for t in call.values() if isinstance(t, Tensor))]
    if torch.is_grad_enabled() and any(t.requires_grad for t in (out, *tensors)):
        raise user_error(
            "out= got tensors that require a gradient.",
            expected="no gradient to record",
            fix="call it under torch.no_grad(), or leave out= away.",
        )
    if is_compiling():  # there are no addresses to compare, and what is written is copied
        return
    if out.is_inference() and not torch.is_inference_mode_enabled():
        raise user_error(
            "out= got an inference tensor.",
            expected="an ordinary one, outside of torch.inference_mode()",
            fix="make it outside of inference mode, or clone() it.",
        )
    if out.numel() and any(n > 1 and step == 0 for n, step in zip(out.shape, out.stride(), strict=True)):
        raise user_error(
            "out= got an expanded tensor.", expected="a place for every number", fix="contiguous() makes one."
        )
    terms = (x, call.get("residual"))
    for tensor in tensors:
        same = out.data_ptr() == tensor.data_ptr() and out.stride() == tensor.stride()
        may_be_out = any(tensor is term for term in terms) and same and out.shape == tensor.shape
        if _overlap(out, tensor) and not may_be_out:
            raise user_error(
                "out= got a tensor that shares memory with an input.",
                expected="x or the residual itself, or memory of its own",
            )


def _copy_to_out(y: Tensor, out: Tensor) -> Tensor:
    """A kernel that could write into ``out`` has returned it; the result of another is copied."""
    return out if y is out else out.copy_(y)


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Do the bytes between the first and the last number of both meet?"""
    if a.numel() == 0 or b.numel() == 0:
        return False

    def span(t: Tensor) -> tuple[int, int]:
        last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
        return t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size()

    (a0, a1), (b0, b1) = span(a), span(b)
    return a0 < b1 and b0 < a1

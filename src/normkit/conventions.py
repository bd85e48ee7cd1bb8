"""What torch does around its norms, and we do after it: autocast, the layout of an output, ``out=``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from normkit import kernels
from normkit.errors import refusal

__all__ = ["autocast", "check_out", "compute", "compute_sum", "laid_out", "written"]


def autocast(x: Tensor) -> Tensor:
    """On accelerators torch lists these norms among those that autocast runs in float32."""
    accelerator = x.device.type in ("cuda", "xpu")
    narrow = x.dtype in (torch.float16, torch.bfloat16)
    return x.float() if accelerator and narrow and torch.is_autocast_enabled(x.device.type) else x


def laid_out(y: Tensor, x: Tensor, *, channels: bool = True) -> Tensor:
    """Contiguous, as torch's outputs are, so that ``view`` works on them; but channels_last stays so."""
    if channels and x.ndim in (4, 5) and _is_channels_last(x):
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


def compute(
    op: str, x: Tensor, out: Tensor | None, *, keep_channels_last: bool = True, **call: Any
) -> Tensor:
    """Run ``op``; the output lies in memory as torch's does, or in ``out``."""
    if out is None:
        return laid_out(kernels.run(op, x, **call), x, channels=keep_channels_last)
    check_out(out, x, call["weight"], call.get("bias"))
    return written(kernels.run(op, x, out=out, **call), out)


def compute_sum(op: str, x: Tensor, out: tuple[Tensor, Tensor] | None, **call: Any) -> tuple[Tensor, Tensor]:
    """The same for a norm after a residual add, which has two outputs."""
    if out is None:
        y, total = kernels.run(op, x, **call)
        return y, total
    residual = call["residual"]
    if not isinstance(out, tuple) or len(out) != 2:
        raise refusal(f"out= got {type(out).__name__}.", expected="a tuple of two tensors, (normalised, sum)")
    parameters = (call["weight"], call.get("bias"))
    check_out(out[0], x, residual, *parameters)
    wide = torch.promote_types(x.dtype, residual.dtype)
    check_out(out[1], x, residual, *parameters, dtype=wide)
    if _overlap(*out):
        raise refusal("out= got two tensors that share memory.", expected="one for each output")
    y, total = kernels.run(op, x, out=out, **call)
    return written(y, out[0]), written(total, out[1])


def check_out(out: object, x: Tensor, *others: Tensor | None, dtype: torch.dtype | None = None) -> None:
    """``out`` must be able to hold the result, and hold nothing that is still to be read."""
    dtype = dtype or x.dtype
    if not isinstance(out, Tensor):
        raise refusal(f"out= got {type(out).__name__}.", expected="a torch.Tensor")
    if out.shape != x.shape or out.dtype != dtype or out.device != x.device:
        raise refusal(
            f"out= got a tensor of shape {tuple(out.shape)}, {out.dtype}, on {out.device}.",
            expected=f"shape {tuple(x.shape)}, {dtype}, on {x.device}",
        )
    tensors = [t for t in (x, *others) if t is not None]
    if torch.is_grad_enabled() and any(t.requires_grad for t in (out, *tensors)):
        raise refusal(
            "out= got tensors that require a gradient.",
            expected="no gradient to record",
            fix="call it under torch.no_grad(), or leave out= away.",
        )
    for tensor in tensors:
        same = out.data_ptr() == tensor.data_ptr() and out.stride() == tensor.stride()
        if _overlap(out, tensor) and not (same and out.shape == tensor.shape):
            raise refusal(
                "out= got a tensor that shares memory with an input.",
                expected="the input itself, or memory of its own",
            )


def written(y: Tensor, out: Tensor) -> Tensor:
    """A kernel that could write into ``out`` has done so; the result of another is copied."""
    return (
        out if y is out or (y.data_ptr() == out.data_ptr() and y.stride() == out.stride()) else out.copy_(y)
    )


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Do the bytes between the first and the last number of both meet?"""
    if a.numel() == 0 or b.numel() == 0:
        return False

    def span(t: Tensor) -> tuple[int, int]:
        last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
        return t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size()

    (a0, a1), (b0, b1) = span(a), span(b)
    return a0 < b1 and b0 < a1

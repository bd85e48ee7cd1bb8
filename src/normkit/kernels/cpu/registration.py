"""What torch must know of the operators: what they return for tensors without data, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from normkit.kernels.cpu import library

__all__: list[str] = []


def _rows(x: Tensor, *call: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _rows_train(x: Tensor, weight: Any, bias: Any, dims: int, *call: Any) -> Any:
    return _rows(x), _row_stats(x, dims)


def _rows_add(x: Tensor, residual: Tensor, *call: Any) -> Any:
    return _rows(x), _total(x, residual)


def _rows_add_train(x: Tensor, residual: Tensor, weight: Any, bias: Any, dims: int, *call: Any) -> Any:
    total = _total(x, residual)
    return _rows(x), total, _row_stats(total, dims)


def _rows_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    stats: Any,
    dtotal: Any,
    dims: int,
    eps: float,
    kind: int,
    need_dx: bool,
    *need: bool,
) -> Any:
    shape = x.shape[x.ndim - dims :]
    return _rows(x) if need_dx else x.new_empty(0), *_parameters(x, shape, (weight, bias), need)


def _groups(x: Tensor, k0: int, r1: int, k2: int, r3: int, i: int, *call: Any) -> Any:
    return _alike(x), _group_stats(x, k0, r1, k2)


def _group_stats(x: Tensor, k0: int, r1: int, k2: int, *call: Any) -> Tensor:
    return x.new_empty((3, k0 * k2), dtype=torch.float64)


def _groups_backward(
    dy: Any,
    x: Tensor,
    k0: int,
    r1: int,
    k2: int,
    r3: int,
    i: int,
    weight: Tensor | None,
    bias: Tensor | None,
    on_rows: bool,
    *call: Any,
) -> Any:
    size = r1 if on_rows else k2 * r3
    return _alike(x), *_parameters(x, (size,), (weight, bias), call[-2:])


def _parameters(x: Tensor, shape: Any, of: Any, needed: Any) -> list[Tensor]:
    """Their gradients: empty where not needed."""
    return [
        x.new_empty(shape if need else (0,), dtype=_wide(x) if p is None else p.dtype)
        for p, need in zip(of, needed, strict=True)
    ]


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _nothing(*call: Any) -> None:
    return None


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _row_stats(x: Tensor, dims: int) -> Tensor:
    rows = 1
    for size in x.shape[: x.ndim - dims]:
        rows = rows * size
    return x.new_empty((2, rows), dtype=_wide(x))


def _total(x: Tensor, residual: Tensor) -> Tensor:
    return _rows(x).to(torch.promote_types(x.dtype, residual.dtype))


def _alike(x: Tensor) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


FAKES: dict[str, Callable[..., Any]] = {
    "rows": _rows,
    "rows_train": _rows_train,
    "rows_out": _nothing,
    "rows_add": _rows_add,
    "rows_add_train": _rows_add_train,
    "rows_add_out": _nothing,
    "rows_backward": _rows_backward,
    "groups": _groups,
    "groups_out": _group_stats,
    "groups_backward": _groups_backward,
    "update_running": _nothing,
    "linear": _linear,
}
# Their gradients are the Functions in rows.py, which call them with autograd switched off: that autograd does
# not look at them again saves a tenth of a call.
UNASKED = ("rows", "rows_train", "rows_out", "linear")
if library.MISSING is None:
    LIBRARY = torch.library.Library("normkit", "FRAGMENT")
    for name, fake in FAKES.items():
        torch.library.register_fake(f"normkit::{name}", fake, lib=LIBRARY)
    for name in UNASKED:
        LIBRARY.impl(name, torch.library.fallthrough_kernel, "AutogradCPU")

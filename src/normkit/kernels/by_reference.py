"""The operators in plain torch: what each of them means, and what computes it where no kernel does.

Every forward here is differentiable any number of times, so that the second derivative of a kernel is that
of its operator's meaning: ``recompute_with_reference``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear as linear

from normkit.kernels import reference
from normkit.kernels.moments import moments, widen
from normkit.kernels.plans import memory_order

__all__ = [
    "CENTER",
    "ROUND_BF16",
    "ROUND_F16",
    "STATISTICS",
    "ZERO_CENTERED",
    "group_statistics",
    "groups",
    "groups_backward",
    "groups_out",
    "pack_statistics",
    "recompute_with_reference",
    "row_statistics",
    "rows",
    "rows_add",
    "rows_add_out",
    "rows_add_train",
    "rows_backward",
    "rows_norm",
    "rows_out",
    "rows_train",
    "update_running",
]

# The bits of a row operator's `kind`; csrc/rows.cpp holds the same.
CENTER, ZERO_CENTERED, ROUND_BF16, ROUND_F16 = 1, 2, 4, 8
# Off the CPU, numbers a group in float32: mean, var, count; then shift, rest, rstd of x · scale, and scale.
STATISTICS = 7


def recompute_with_reference(
    forward: Callable[..., Tensor],
    inputs: Sequence[Tensor | None],
    needed: Sequence[bool],
    dy: Tensor,
) -> list[Tensor | None]:
    """The gradients of ``forward(*inputs)`` that are needed, None for the others.

    With respect to aliases: the inputs themselves may depend on each other, be one tensor, or have hooks, all
    of which the backward that called this takes care of.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():  # also where forward mode differentiates a backward
        inputs = [None if t is None else t.view_as(t) for t in inputs]
        wanted = [t for t, n in zip(inputs, needed, strict=True) if n and t is not None]
        y = forward(*inputs)
        found = iter(torch.autograd.grad(y, wanted, dy, create_graph=create_graph) if wanted else ())
    return [next(found) if n and t is not None else None for t, n in zip(inputs, needed, strict=True)]


# ---- rows: the last `dims` axes of x -----------------------------------------------------------------------


def rows_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    dims: int,
    eps: float,
    kind: int,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The norm of every row, cast to ``dtype`` (that of x)."""
    axes = tuple(range(x.ndim - dims, x.ndim))
    dtype = x.dtype if dtype is None else dtype
    if kind & CENTER:
        return reference.layer_norm(x, axes=axes, weight=weight, bias=bias, eps=eps).to(dtype)
    return reference.rms_norm(
        x,
        axes=axes,
        weight=weight,
        eps=eps,
        zero_centered_weight=bool(kind & ZERO_CENTERED),
        multiply="after_cast" if kind & (ROUND_BF16 | ROUND_F16) else "before_cast",
        dtype=dtype,
    )


def row_statistics(x: Tensor, dims: int, eps: float, kind: int) -> Tensor:
    """Mean (0 if it is not centred) and 1 / standard deviation of every row."""
    stats = moments(x, range(x.ndim - dims, x.ndim), center=bool(kind & CENTER))
    rstd = stats.scale / torch.sqrt(stats.var + eps * stats.scale * stats.scale)
    mean = stats.batch_mean() if kind & CENTER else torch.zeros_like(rstd)
    return torch.stack((mean.to(rstd.dtype).reshape(-1), rstd.reshape(-1)))


def rows(x: Tensor, *call: Any) -> Tensor:
    return rows_norm(x, *call).contiguous()


def rows_train(x: Tensor, *call: Any) -> tuple[Tensor, Tensor]:
    _, _, dims, eps, kind = call
    return rows(x, *call), row_statistics(x, dims, eps, kind)


def rows_out(x: Tensor, *call: Any) -> None:
    *settings, out = call
    out.copy_(rows_norm(x, *settings))


def rows_add(x: Tensor, residual: Tensor, *call: Any) -> tuple[Tensor, Tensor]:
    total = (x + residual).contiguous()
    weight, bias, dims, eps, kind = call
    return rows_norm(total, weight, bias, dims, eps, kind, x.dtype).contiguous(), total


def rows_add_train(x: Tensor, residual: Tensor, *call: Any) -> tuple[Tensor, Tensor, Tensor]:
    _, _, dims, eps, kind = call
    y, total = rows_add(x, residual, *call)
    return y, total, row_statistics(total, dims, eps, kind)


def rows_add_out(x: Tensor, residual: Tensor, *call: Any) -> None:
    *settings, out, total = call
    y, added = rows_add(x, residual, *settings)
    out.copy_(y)
    total.copy_(added)


def rows_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    stats: Tensor,
    dtotal: Tensor | None,
    dims: int,
    eps: float,
    kind: int,
    *needed: bool,
) -> tuple[Tensor, ...]:
    def forward(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return rows_norm(x, weight, bias, dims, eps, kind, dy.dtype)

    dx, *rest = _gradients(forward, (x, weight, bias), needed, dy)
    if needed[0]:
        dx = (dx if dtotal is None else dx + dtotal).contiguous()
    return dx, *rest


# ---- groups: dense memory as (k0, r1, k2, r3, i), one mean for each (k0, k2) -------------------------------


def groups_norm(
    x: Tensor,
    sizes: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    weight_on_rows: bool,
    mask: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    eps: float,
    center: bool,
) -> Tensor:
    """Parameters lie along (k2, r3), or along r1; given statistics along k2; a mask along (k0, r1, i)."""
    order = memory_order(x.shape, x.stride())
    assert order is not None, "groups are of dense memory"
    k0, r1, k2, r3, i = sizes
    along = (1, r1, 1, 1, 1) if weight_on_rows else (1, 1, k2, r3, 1)
    weight, bias = (None if t is None else t.reshape(along) for t in (weight, bias))
    mask = None if mask is None else mask.reshape(k0, r1, 1, 1, i)
    five = x.permute(order).reshape(k0, r1, k2, r3, i)
    if mean is None or var is None:
        y = reference.normalize(
            five, axes=(1, 3, 4), weight=weight, bias=bias, eps=eps, center=center, mask=mask
        )
    else:
        mean, var = (t.reshape(1, 1, k2, 1, 1) for t in (mean, var))
        y = reference.affine(reference.known(five, mean, var, mask).x_hat(eps), weight, bias, mask).to(
            x.dtype
        )
    return y.reshape([x.shape[a] for a in order]).permute([order.index(a) for a in range(x.ndim)])


def group_statistics(
    x: Tensor,
    sizes: Sequence[int],
    mask: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    center: bool,
) -> Tensor:
    """Mean (0 if it is not centred), variance and number of values of every group, in float64."""
    k0, r1, k2, r3, i = sizes
    if mean is not None and var is not None:
        given = torch.stack((mean.double(), var.double(), torch.ones_like(var, dtype=torch.float64)))
        return given[:, None].expand(3, k0, k2).reshape(3, k0 * k2)
    five = x.permute(memory_order(x.shape, x.stride()) or ()).reshape(k0, r1, k2, r3, i)
    mask = None if mask is None else mask.reshape(k0, r1, 1, 1, i)
    stats = moments(five.double(), (1, 3, 4), center=center, mask=mask)
    found = (stats.batch_mean(), stats.var / stats.scale / stats.scale, torch.as_tensor(stats.n))
    return torch.stack([t.to(x.device, torch.float64).expand(k0, 1, k2, 1, 1).reshape(-1) for t in found])


def groups(x: Tensor, *call: Any) -> tuple[Tensor, Tensor]:
    sizes, (weight, bias, on_rows, mask, mean, var, eps, center) = call[:5], call[5:]
    y = groups_norm(x, sizes, weight, bias, on_rows, mask, mean, var, eps, center)
    stats = group_statistics(x, sizes, mask, mean, var, center)
    return _laid_out_as(x, y), stats if x.is_cpu else pack_statistics(stats, eps)


def pack_statistics(stats: Tensor, eps: float) -> Tensor:
    """(mean, var, count), as the kernels of other devices than the CPU keep them."""
    mean, var, count = stats.float()
    one, zero = torch.ones_like(mean), torch.zeros_like(mean)
    return torch.stack((mean, var, count, mean, zero, 1 / torch.sqrt(var + eps), one))


def groups_out(x: Tensor, *call: Any) -> Tensor:
    *settings, out = call
    y, stats = groups(x, *settings)
    out.copy_(y)
    return stats


def groups_backward(dy: Tensor, x: Tensor, *call: Any) -> tuple[Tensor, ...]:
    sizes, (weight, bias, on_rows, mask, stats, given, eps, center, *needed) = call[:5], call[5:]
    mean, var = stats[:2].reshape(2, sizes[0], sizes[2])[:, 0] if given else (None, None)

    def forward(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return groups_norm(x, sizes, weight, bias, on_rows, mask, mean, var, eps, center)

    dx, *rest = _gradients(forward, (x, weight, bias), (True, *needed), dy)
    return _laid_out_as(x, dx), *rest


def update_running(mean: Tensor, var: Tensor, stats: Tensor, momentum: float) -> None:
    reference.move_running(mean, var, stats[:3], momentum)


def _gradients(
    forward: Callable[..., Tensor], inputs: Sequence[Tensor | None], needed: Sequence[bool], dy: Tensor
) -> list[Tensor]:
    """As an operator returns them: empty where not needed."""
    with torch.enable_grad():
        leaves = [
            None if t is None else t.detach().requires_grad_(n) for t, n in zip(inputs, needed, strict=True)
        ]
    with torch.no_grad():
        found = recompute_with_reference(forward, leaves, needed, dy)
    x = inputs[0]
    assert x is not None
    of = (x if t is None else t for t in inputs)
    return [
        x.new_empty(0, dtype=t.dtype if t is not x or k == 0 else widen(x[:0]).dtype) if g is None else g
        for k, (g, t) in enumerate(zip(found, of, strict=True))
    ]


def _laid_out_as(x: Tensor, y: Tensor) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=y.dtype, device=y.device).copy_(y)

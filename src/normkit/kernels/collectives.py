"""Sums over processes that autograd sees through, on any device and backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:  # a torch built without distributed has no such class
    from torch.distributed import ProcessGroup

__all__ = ["all_reduce_sum"]


def all_reduce_sum(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of ``x`` over the processes of ``group``, on each of them.

    Every process's loss depends on every process's ``x``: the gradient is the sum of all gradients.
    """
    total: Tensor = _AllReduceSum.apply(x, group)
    return total


class _AllReduceSum(torch.autograd.Function):
    """torch's functional all_reduce has a gradient of its own only in recent releases."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        from torch.distributed import _functional_collectives as collectives

        ctx.group = group
        return collectives.wait_tensor(collectives.all_reduce(x, "sum", group))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return all_reduce_sum(grads[0].contiguous(), ctx.group), None

"""Other batches like a given one: an edit that holds for one batch alone is no edit of the model.

A model may do something else with other numbers, or with another number of rows or tokens: an axis sorted by
its data, a division by the length, padding to a multiple. Nobody sees that in one run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from normkit.inspect.trace import tensors_of

__all__ = ["others"]


def others(batch: Any) -> Iterator[tuple[str, Any]]:
    """In a few words what is different, and the batch. Not every model takes each of them."""
    tensors = list(tensors_of(batch))
    if not tensors:
        return
    generator = torch.Generator().manual_seed(3)
    yield "other values", _mapped(batch, lambda t: _shuffled(t, generator))
    if any(t.is_floating_point() for t in tensors):
        yield "large values", _mapped(batch, lambda t: t * 30 if t.is_floating_point() else t)
        yield "small values", _mapped(batch, lambda t: t * 0.01 if t.is_floating_point() else t)
    rows = {t.shape[0] for t in tensors if t.ndim}
    if len(rows) == 1 and (n := rows.pop()) > 1:
        yield "fewer rows", _mapped(batch, lambda t: t[: (n + 1) // 2] if t.ndim else t)
    tokens = {t.shape[1] for t in tensors if t.ndim in (2, 3)}
    if len(tokens) == 1 and (n := tokens.pop()) > 2:
        less, more = n - max(1, n // 3), (n + 2) // 3
        yield "fewer tokens", _mapped(batch, lambda t: t[:, :less] if t.ndim in (2, 3) else t)
        yield (
            "more tokens",
            _mapped(batch, lambda t: torch.cat([t, t[:, :more]], 1) if t.ndim in (2, 3) else t),
        )
    if any(t.ndim == 4 for t in tensors):
        yield (
            "smaller images",
            _mapped(batch, lambda t: t[..., : _part(t, -2), : _part(t, -1)] if t.ndim == 4 else t),
        )


def _part(tensor: Tensor, axis: int) -> int:
    return max(1, 3 * tensor.shape[axis] // 4)


def _shuffled(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """The same numbers in another order; a mask stays as it is."""
    if tensor.dtype == torch.bool or (
        not tensor.is_floating_point() and tensor.numel() and tensor.max() <= 1
    ):
        return tensor
    order = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
    return tensor.flatten()[order].view(tensor.shape)


def _mapped(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(batch, Tensor):
        return change(batch.detach())
    if isinstance(batch, Mapping):
        return {name: _mapped(value, change) for name, value in batch.items()}
    if type(batch) in (list, tuple):
        return type(batch)(_mapped(value, change) for value in batch)
    return batch

"""Answers where a tensor on the meta device has none: a model's forward then goes on.

A router that asks which experts were chosen hears of the first; a test of a mask, that nothing is masked.
What was assumed is kept with the trace.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from normkit.inspect.operations import name_of

__all__ = ["answer"]


def answer(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Something of the right kind; NotImplemented if it is no question of numbers on the meta device."""
    x = args[0] if args else None
    if not isinstance(x, Tensor) or not x.is_meta:
        return NotImplemented
    name = name_of(func)
    if name in ("item", "__int__", "__index__"):
        return 0 if not x.is_floating_point() else 0.0
    if name == "__float__":
        return 0.0
    if name == "__bool__":
        return True
    if name == "tolist":
        return _zeros(x.shape)
    if name == "nonzero":
        if kwargs.get("as_tuple") or (len(args) > 1 and args[1]):
            return tuple(_index() for _ in x.shape)
        return torch.zeros((1, x.ndim), dtype=torch.long, device="meta")
    if name == "where" and len(args) == 1:
        return tuple(_index() for _ in x.shape)
    if name == "equal":
        return True
    if name == "allclose":
        return True
    if name in ("unique", "unique_consecutive"):
        return x.new_empty((1,))
    if name == "bincount":
        size = max(int(kwargs.get("minlength", 0)), 1)
        return torch.zeros(size, dtype=torch.long, device="meta")
    if name == "masked_select":
        return x.new_empty((1,))
    if name in ("_grouped_mm", "grouped_mm") and len(args) > 1:
        return x.new_empty((*x.shape[:-1], args[1].shape[-1]))
    if name == "__getitem__":  # by a mask
        return _by_mask(x, args[1])
    return NotImplemented


def _index() -> Tensor:
    return torch.zeros(1, dtype=torch.long, device="meta")


def _zeros(shape: torch.Size) -> Any:
    return 0 if not shape else [_zeros(shape[1:]) for _ in range(shape[0])]


def _by_mask(x: Tensor, key: Any) -> Any:
    keys = key if isinstance(key, tuple) else (key,)
    if len(keys) == 1 and isinstance(keys[0], Tensor) and keys[0].dtype == torch.bool:
        return x.new_empty((1, *x.shape[keys[0].ndim :]))
    return NotImplemented

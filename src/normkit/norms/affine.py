"""Weight and bias: how every layer makes them, and what they start at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

__all__ = ["make_affine", "reset_affine"]


def make_affine(
    module: nn.Module, shape: Sequence[int], *, weight: bool, bias: bool, device: Any, dtype: Any
) -> None:
    """Register ``weight`` and ``bias``, or None in their place."""
    for name, wanted in (("weight", weight), ("bias", bias)):
        parameter = nn.Parameter(torch.empty(tuple(shape), device=device, dtype=dtype)) if wanted else None
        module.register_parameter(name, parameter)


def reset_affine(module: nn.Module) -> None:
    """Start at 1 and 0, whichever of them there are."""
    if module.weight is not None:
        nn.init.ones_(module.weight)  # type: ignore[arg-type]  # a parameter
    if module.bias is not None:
        nn.init.zeros_(module.bias)  # type: ignore[arg-type]  # a parameter

"""The C++ library: loading it registers the operators ``torch.ops.normkit``; why it may be missing."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.compiler import is_compiling

__all__ = ["MISSING", "isa", "operator", "warn_once"]

# Why there are no kernels, or None.
MISSING: str | None = None
try:
    from normkit.kernels.cpu import _C  # type: ignore[attr-defined]  # compiled
except ImportError as error:
    note = Path(__file__).with_name("build_error.txt")
    said = note.read_text().strip() if note.exists() else str(error)
    MISSING = f"the C++ kernels were not built: {said}"


@functools.cache
def _raw(name: str) -> Callable[..., Any]:
    return getattr(torch.ops.normkit, name).default._op


def operator(name: str) -> Callable[..., Any]:
    """An operator of the library: as torch.compile must see it, else without the Python around it."""
    return getattr(torch.ops.normkit, name) if is_compiling() else _raw(name)


def isa() -> str | None:
    """The instruction set that the kernels use here."""
    return None if MISSING else _C.isa()


def warn_once() -> None:
    """Say once that there are no kernels; a second warning would say nothing new."""
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"normkit computes in plain torch operations, which is slower. {MISSING} "
            "`python -m normkit info` says more.",
            RuntimeWarning,
            stacklevel=5,
        )


_warned = False

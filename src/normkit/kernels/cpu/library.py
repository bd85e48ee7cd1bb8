"""The C++ library: loading it registers the operators ``torch.ops.normkit``; why it may be missing."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _get_tracing_state
from torch.autograd import forward_ad
from torch.compiler import is_compiling

__all__ = ["MISSING", "is_plain", "isa", "operator", "raw", "warn_once"]

# Why there are no kernels, or None.
MISSING: str | None = None
try:
    _C: Any = importlib.import_module("normkit.kernels.cpu._C")
except ImportError as error:
    note = Path(__file__).with_name("build_error.txt")  # setup.py leaves it where a build fails
    if note.exists():
        MISSING = f"the C++ kernels were not built: {note.read_text().strip()}"
    else:
        MISSING = f"the C++ kernels do not load: {error}"


@functools.cache
def raw(name: str) -> Callable[..., Any]:
    """An operator without the Python around it, which torch.compile cannot look into."""
    if MISSING is None:
        return getattr(torch.ops.normkit, name).default._op

    def missing(*call: Any) -> Any:
        raise RuntimeError(MISSING)

    return missing


def operator(name: str) -> Callable[..., Any]:
    """An operator, as its caller needs it."""
    return getattr(torch.ops.normkit, name) if is_compiling() else raw(name)


def is_plain(x: Tensor) -> bool:
    """A tensor on the CPU that nothing watches: no tracing, no transform, no subclass."""
    return (
        type(x) is Tensor
        and not is_compiling()
        and x.is_cpu
        and forward_ad._current_level < 0
        and not _are_functorch_transforms_active()
        and _get_tracing_state() is None
    )


def isa() -> str | None:
    """The instruction set that the kernels use here."""
    return None if MISSING else _C.isa()


def warn_once() -> None:
    """Say once that there are no kernels; not while torch.compile traces, which fuses without them."""
    global _warned
    if not _warned and not is_compiling():
        _warned = True
        warnings.warn(
            f"normkit computes in plain torch operations, which is slower: {MISSING}. "
            "`normkit info` says what to do.",
            RuntimeWarning,
            stacklevel=5,
        )


_warned = False

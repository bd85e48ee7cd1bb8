"""How a norm is computed: interchangeable backends behind one table.

A backend is a module with functions of the same names and arguments as ``reference``, and ``refuses``,
which says why it cannot take a call. Nothing is patched, nothing is chosen at import.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torch import Tensor

from normkit.kernels import reference, torch_ops

__all__ = ["BACKENDS", "backend_for", "run"]

# Read from the top: the first backend that does not refuse a call computes it.
BACKENDS: dict[str, ModuleType] = {
    "torch_ops": torch_ops,
    "reference": reference,
}


def backend_for(op: str, x: Tensor, **call: Any) -> str:
    """The name of the backend that would compute ``op`` for this input and these arguments."""
    return next(name for name, backend in BACKENDS.items() if backend.refuses(op, x, **call) is None)


def run(op: str, x: Tensor, **call: Any) -> Any:
    """Compute ``op`` on the first backend that takes the call."""
    return getattr(BACKENDS[backend_for(op, x, **call)], op)(x, **call)

"""How a norm is computed: interchangeable backends behind one table.

A backend is a module with functions of the same names and arguments as ``reference``, and ``refuses``,
which says why it cannot take a call. Nothing is patched, nothing is chosen at import.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch  # noqa: F401  # for the example
from torch import Tensor

from normkit.kernels import cpu, reference, torch_ops

__all__ = ["BACKENDS", "backend_for", "choices", "explain", "run"]

# Read from the top: the first backend that does not refuse a call computes it.
BACKENDS: dict[str, ModuleType] = {
    "torch_ops": torch_ops,
    "cpu": cpu,
    "reference": reference,
}


def backend_for(op: str, x: Tensor, **call: Any) -> str:
    """The name of the backend that would compute ``op`` for this input and these arguments."""
    for name, backend in BACKENDS.items():
        if backend.refuses(op, x, **call) is None:
            return name
    raise AssertionError("the reference refuses nothing")


def run(op: str, x: Tensor, out: Any = None, **call: Any) -> Any:
    """Compute ``op`` on the first backend that takes the call.

    ``out`` is an offer: a backend that can write there does so, and returns it.
    """
    name = backend_for(op, x, **call)
    if name == "reference" and cpu.library.MISSING is not None and x.device.type == "cpu":
        cpu.library.warn_once()
    offered = {"out": out} if out is not None and name == "cpu" and cpu.can_write(op, x, out, **call) else {}
    return getattr(BACKENDS[name], op)(x, **call, **offered)


def explain(x: Tensor, **call: Any) -> str:
    """What would run for ``x``, and why: one line an operator.

    Row norms are asked about the last axis, the others about channels at axis 1; any argument of an operator
    can be given by name.

    Example:
        >>> print(explain(torch.ones(2, 4, dtype=torch.complex64)))  # doctest: +ELLIPSIS
        complex64 of shape (2, 4) on cpu
          add_layer_norm  reference  ... it has no kernels for torch.complex64
          ...
    """
    lines = [f"{str(x.dtype).removeprefix('torch.')} of shape {tuple(x.shape)} on {x.device}"]
    for op, (name, why) in choices(x, **call).items():
        lines.append(f"  {op:<15} {name:<10} {why}".rstrip())
    return "\n".join(lines)


def choices(x: Tensor, **call: Any) -> dict[str, tuple[str, str]]:
    """What ``explain`` says, as data: operator -> (backend, why the kernels refused, if they did)."""
    chosen = {}
    for op in sorted(n for n in reference.__all__ if n in cpu.__all__ and n != "refuses"):
        arguments = {**_typical(op, x), **call}
        name, why = "", ""
        for name, backend in BACKENDS.items():
            reason = "too few axes" if x.ndim < 1 + ("axis" in arguments) else None
            reason = reason or backend.refuses(op, x, **arguments)
            if reason is None:
                break
            if name == "cpu":
                why = f"cpu: {reason}"
        chosen[op] = name, why
    return chosen


def _typical(op: str, x: Tensor) -> dict[str, Any]:
    """The arguments that an operator is mostly called with."""
    affine: dict[str, Any] = {"weight": None, "bias": None, "eps": 1e-5}
    of_rows: dict[str, Any] = {"axes": (x.ndim - 1,), **affine}
    running: dict[str, Any] = {
        "running_mean": None,
        "running_var": None,
        "momentum": 0.1,
        "axis": 1,
        "mask": None,
    }
    calls: dict[str, dict[str, Any]] = {
        "add_layer_norm": {"residual": x, **of_rows},
        "add_rms_norm": {"residual": x, **of_rows},
        "batch_norm": {"training": True, **running, **affine},
        "group_norm": {"num_groups": 1, "axis": 1, "mask": None, **affine},
        "instance_norm": {"use_input_stats": True, **running, **affine},
    }
    return calls.get(op, of_rows)

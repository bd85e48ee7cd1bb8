"""How a norm is computed: operators defined once, backends that implement them, and one place that chooses.

A call goes ``run`` -> ``admit`` -> one backend. Nothing is patched, nothing is chosen at import, and no
other part of normkit knows a backend by name.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from normkit.kernels import fast, reference
from normkit.kernels.admission import BACKENDS, FORCED, admit, asked_for, backend, exact
from normkit.kernels.cpu import eager, library
from normkit.kernels.operators import DIRECT
from normkit.kernels.triton import DEVICES, quick, readiness

__all__ = [
    "BACKENDS",
    "FORCED",
    "admit",
    "backend",
    "choice",
    "choices",
    "exact",
    "explain",
    "extension_missing",
    "fast",
    "gpus",
    "isa",
    "linear",
    "missing",
    "run",
]


def run(op: str, x: Tensor, call: dict[str, Any], out: Any = None) -> Any:
    """Compute ``op`` on the backend that admits the call.

    ``out`` is an offer: a backend that can write there does so, and returns it.
    """
    name, plan, _ = admit(op, x, call)
    if name in ("aten", "reference") and x.device.type not in _SAID:
        _say_once(x)
    return BACKENDS[name].run(op, x, call, plan, out)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x weightᵀ + bias``; a few rows of float32 without a gradient by a kernel of ours.

    That is how a model writes one token after the other, bound by reading the weight, which torch does with
    one thread.
    """
    y: Tensor | None = None if torch.compiler.is_compiling() else fast.linear(x, weight, bias)
    return torch.nn.functional.linear(x, weight, bias) if y is None else y


def isa() -> str | None:
    """The instruction set that the CPU kernels use here; None without them."""
    return library.isa()


def missing() -> str | None:
    """Why there are no CPU kernels here; None if there are."""
    return library.MISSING


def extension_missing() -> str | None:
    """Why small calls take the long way here; None if the extension for this torch is there."""
    return eager.MISSING


def gpus() -> dict[str, str | None]:
    """The GPUs of this machine, and why the Triton kernels do not run there; None where they do."""
    found = {}
    for device in DEVICES:
        module = torch.get_device_module(device)
        for index in range(module.device_count() if module.is_available() else 0):
            found[f"{device}:{index}"] = readiness.unready(device, index)
    return found


def explain(x: Tensor, **call: Any) -> str:
    """What would run for ``x``, what it promises, and why: one line an operator.

    Row norms are asked about the last axis, the others about channels at axis 1; any argument of an operator
    can be given by name.

    Example:
        >>> print(explain(torch.ones(2, 4)))
        float32 of shape (2, 4) on cpu
          add_layer_norm  cpu        exact
          add_rms_norm    cpu        exact
          batch_norm      cpu        exact
          group_norm      cpu        exact
          instance_norm   cpu        exact
          layer_norm      cpu        exact
          normalize       cpu        exact
          rms_norm        cpu        exact
    """
    lines = [f"{str(x.dtype).removeprefix('torch.')} of shape {tuple(x.shape)} on {x.device}"]
    for op, (name, why) in choices(x, **call).items():
        promise = BACKENDS[name].promise if name in BACKENDS else "an error"
        lines.append(f"  {op:<15} {name:<10} {promise}{f'; {why}' if why else ''}")
    return "\n".join(lines)


def choices(x: Tensor, **call: Any) -> dict[str, tuple[str, str]]:
    """What ``explain`` says, as data: operator -> (backend, what kept those before it from the call)."""
    return {op: choice(op, x, **call) for op in reference.__all__}


def choice(op: str, x: Tensor, **call: Any) -> tuple[str, str]:
    """The same for one operator: (backend, what kept those before it from the call)."""
    arguments = _typical(op, x)
    arguments.update({name: value for name, value in call.items() if name in arguments})
    if x.ndim < 1 + ("axis" in arguments):
        return "reference", "too few axes"
    asked = asked_for()
    if asked in BACKENDS and isinstance(reason := BACKENDS[asked].consider(op, x, arguments), str):
        return "none", f"{asked} is asked for: {reason}"
    name, _, why = admit(op, x, arguments)
    return name, why


def _typical(op: str, x: Tensor) -> dict[str, Any]:
    """The arguments that an operator is mostly called with."""
    rows: dict[str, Any] = {"axes": (x.ndim - 1,), "weight": None, "eps": 1e-5}
    rms = {**rows, "zero_centered_weight": False, "multiply": "before_cast"}
    channels: dict[str, Any] = {"weight": None, "bias": None, "eps": 1e-5, "axis": 1, "mask": None}
    running = {**channels, "running_mean": None, "running_var": None, "momentum": 0.1}
    return {
        "add_layer_norm": {"residual": x, "bias": None, **rows},
        "add_rms_norm": {"residual": x, **rms},
        "batch_norm": {"training": True, "process_group": None, "num_batches_tracked": None, **running},
        "group_norm": {"num_groups": 1, **channels},
        "instance_norm": {"use_input_stats": True, **running},
        "layer_norm": {"bias": None, **rows},
        "normalize": {"bias": None, "center": True, "mask": None, **rows},
        "rms_norm": rms,
    }[op]


_SAID = {
    "meta"
}  # device types of which one line has been said; meta tensors hold no numbers to be exact about


def _say_once(x: Tensor) -> None:
    """What computes on a device without kernels; not while torch.compile traces, which fuses without them."""
    device = x.device.type
    if torch.compiler.is_compiling() or (device == "cpu" and library.MISSING is None):
        return
    if device in DIRECT and readiness.unready(device, x.device.index or 0) is None:
        return
    _SAID.add(device)
    reason = library.MISSING if device == "cpu" else f"there are none for {device}"
    if device in DIRECT:
        reason = str(readiness.unready(device, x.device.index or 0))
    more = (
        "`normkit info` says what to do" if device == "cpu" else "`normkit.kernels.explain(x)` says what runs"
    )
    warnings.warn(
        f"normkit runs without kernels of its own: {reason}. torch's operators compute what they can, and "
        "round as torch does; masks, patterns and mixed dtypes take plain torch operations, which is slower. "
        f"`normkit.exact()` asks for exactness; {more}.",
        RuntimeWarning,
        stacklevel=5,
    )


quick.serve_gpus()

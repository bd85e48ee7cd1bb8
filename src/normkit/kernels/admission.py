"""Which backend computes a call, and why: the one place that decides.

    cpu         our kernels in C++
    triton      our kernels for GPUs, on a machine where they have been checked
    aten        torch's own operators, elsewhere and in graphs that leave Python
    reference   the definition in plain torch, which takes every call

A call is offered to them in this order, the cheapest tests first. Nothing else chooses: ``run`` obeys,
``explain`` reads it out. (The fast path of ``fast`` takes ordinary calls that would be admitted to the CPU
kernels; a test compares the two.)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _get_tracing_state
from torch.autograd import forward_ad

from normkit import checks
from normkit.errors import user_error
from normkit.kernels import aten, fused, reference
from normkit.kernels.cpu import library
from normkit.kernels.operators import DIRECT, PLAIN
from normkit.kernels.plans import Plan
from normkit.kernels.triton import readiness
from normkit.kernels.triton.versions import DTYPES as TRITON_DTYPES

__all__ = ["BACKENDS", "FORCED", "Admission", "Backend", "admit", "asked_for", "backend", "exact"]

_EXACT: ContextVar[bool] = ContextVar("normkit.exact", default=False)
_EXACT_ANYWHERE = [0]  # how often it is asked for in any thread: torch.compile cannot read a ContextVar

# Backends that are asked for by name in any thread, the environment's first; and by this one.
FORCED: list[str] = [name for name in [os.environ.get("NORMKIT_BACKEND")] if name]
_FORCED: ContextVar[str | None] = ContextVar("normkit.backend", default=FORCED[0] if FORCED else None)


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Compute on one backend, "cpu", "triton", "aten" or "reference"; what it does not take is an error.

    The environment variable ``NORMKIT_BACKEND`` does the same for a whole process.

    Example:
        >>> call = {"axes": (1,), "weight": None, "bias": None, "eps": 1e-5}
        >>> with backend("reference"):
        ...     admit("layer_norm", torch.ones(2, 4), call).backend
        'reference'
    """
    checks.one_of(name, BACKENDS, what="backend()")
    token = _FORCED.set(name)
    FORCED.append(name)
    try:
        yield
    finally:
        FORCED.remove(name)
        _FORCED.reset(token)


@contextmanager
def exact() -> Iterator[None]:
    """Compute exactly on every device: the reference takes the place of torch's own operators.

    On the CPU it changes nothing, since the kernels are exact. Elsewhere torch's operators are faster, and
    lose digits where the mean is large against the spread.

    Example:
        >>> x = torch.ones(2, 4, device="meta")
        >>> admit("layer_norm", x, {"axes": (1,), "weight": None, "bias": None, "eps": 1e-5}).backend
        'aten'
        >>> with exact():
        ...     admit("layer_norm", x, {"axes": (1,), "weight": None, "bias": None, "eps": 1e-5}).backend
        'reference'
    """
    token = _EXACT.set(True)
    _EXACT_ANYWHERE[0] += 1
    try:
        yield
    finally:
        _EXACT_ANYWHERE[0] -= 1
        _EXACT.reset(token)


class Admission(NamedTuple):
    backend: str
    plan: Plan | None  # how the kernels do it
    why: str  # what kept the backends before it from taking the call


class Backend(NamedTuple):
    promise: str
    consider: Callable[
        [str, Tensor, dict[str, Any]], Plan | str | None
    ]  # a reason: it does not take the call
    run: Callable[..., Any]  # (op, x, call, plan, out)


def admit(op: str, x: Tensor, call: dict[str, Any]) -> Admission:
    """The first backend that takes a call, or the one that is asked for by name."""
    asked = asked_for()
    if asked is not None:
        return _forced(asked, op, x, call)
    why = ""
    for name, backend in BACKENDS.items():
        plan = backend.consider(op, x, call)
        if not isinstance(plan, str):
            return Admission(name, plan, why)
        why = f"{why}; {name}: {plan}" if why else f"{name}: {plan}"
    raise AssertionError("the reference takes every call")


def asked_for() -> str | None:
    """The backend that this thread asks for by name."""
    if not FORCED:
        return None
    return FORCED[-1] if torch.compiler.is_compiling() else _FORCED.get()


def _forced(name: str, op: str, x: Tensor, call: dict[str, Any]) -> Admission:
    checks.one_of(name, BACKENDS, what="NORMKIT_BACKEND or normkit.backend()")
    plan = BACKENDS[name].consider(op, x, call)
    if isinstance(plan, str):
        raise user_error(
            f"The backend {name!r} was asked for, and does not take this {op}: {plan}.",
            expected="a call that it computes",
            fix="leave NORMKIT_BACKEND and normkit.backend() away.",
        )
    return Admission(name, plan, "")


def _consider_cpu(op: str, x: Tensor, call: dict[str, Any]) -> Plan | str:
    if not x.is_cpu:
        return f"it computes on the CPU; this tensor is on {x.device.type}"
    if library.MISSING is not None:
        return library.MISSING
    return _consider_kernels(op, x, call, fused.DTYPES)


def _consider_triton(op: str, x: Tensor, call: dict[str, Any]) -> Plan | str:
    device = x.device
    if device.type not in DIRECT:
        return f"it computes on GPUs; this tensor is on {device.type}"
    plan = _consider_kernels(op, x, call, TRITON_DTYPES)
    if isinstance(plan, str):
        return plan
    return readiness.unready(device.type, device.index or 0) or plan


def _consider_kernels(op: str, x: Tensor, call: dict[str, Any], dtypes: frozenset[torch.dtype]) -> Plan | str:
    if x.dtype not in dtypes:
        return f"it has no kernels for {x.dtype}"
    if type(x) not in PLAIN and not _is_fake(x):
        return f"a {type(x).__name__} is a tensor subclass"
    if _leaves_python():
        return "a graph that leaves Python holds torch's own operators"
    if _are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return "torch.func and forward-mode derivatives need plain torch operations"
    if call.get("process_group") is not None:
        return "statistics over several processes are put together by the reference"
    return fused.plan_call(op, x, call, dtypes)


def _is_fake(x: Tensor) -> bool:
    """A tensor without numbers, of a tracer that looks at operators: it sees ours."""
    from torch._subclasses.fake_tensor import FakeTensor  # not every program needs it

    return isinstance(x, FakeTensor)


def _consider_aten(op: str, x: Tensor, call: dict[str, Any]) -> str | None:
    if _EXACT_ANYWHERE[0] > 0 if torch.compiler.is_compiling() else _EXACT.get():
        return "normkit.exact() asks for the reference"
    leaves = _leaves_python()
    if not leaves and x.is_cpu and library.MISSING is None and asked_for() is None:
        return "what the kernels of a device do not take is computed by the reference"
    if leaves and not torch.compiler.is_exporting() and ("rms" in op or not call.get("center", True)):
        return "the TorchScript exporter does not know rms_norm"
    if leaves and op == "group_norm" and not x.is_contiguous():
        return "torch's loses digits in channels_last"
    return aten.refuses(op, x, call)


def _leaves_python() -> bool:
    return torch.compiler.is_exporting() or _get_tracing_state() is not None


def _run_aten(op: str, x: Tensor, call: dict[str, Any], plan: None, out: Any) -> Any:
    return getattr(aten, op)(x, **call)


def _run_reference(op: str, x: Tensor, call: dict[str, Any], plan: None, out: Any) -> Any:
    return getattr(reference, op)(x, **call)


# Read from the top: the first that takes a call computes it.
BACKENDS = {
    "cpu": Backend("exact", _consider_cpu, fused.run),
    "triton": Backend("exact", _consider_triton, fused.run),
    "aten": Backend("rounds as torch does", _consider_aten, _run_aten),
    "reference": Backend("exact", lambda op, x, call: None, _run_reference),
}

"""The operators ``torch.ops.normkit``, defined once: schema, result without data, meaning.

A backend implements them for its device: ``cpu`` in C++, ``triton`` for GPUs. Elsewhere, and without the
compiled library, they are computed by the reference, so that a graph that holds one runs anywhere. Their
derivatives are the Functions of ``rows`` and ``groups``, which call them below autograd.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import _len_torch_dispatch_stack
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling

from normkit.kernels import by_reference
from normkit.kernels.by_reference import STATISTICS

__all__ = ["DIRECT", "LIBRARY", "OPERATORS", "PLAIN", "bumping", "operator", "raw"]

# Implementations in Python, by type of device: an ordinary call goes there without the dispatcher, which
# would take longer than to launch them.
DIRECT: dict[str, Mapping[str, Callable[..., Any]]] = {}
PLAIN = (Tensor, torch.nn.Parameter)  # no tensor subclass


class Operator(NamedTuple):
    schema: str
    fake: Callable[..., Any]
    plain: Callable[..., Any]


def operator(name: str, x: Tensor) -> Callable[..., Any]:
    """An operator, as its caller needs it: torch.compile cannot look into the raw one."""
    if is_compiling():
        return getattr(torch.ops.normkit, name)
    if DIRECT and type(x) in PLAIN and _len_torch_dispatch_stack() == 0:
        direct = DIRECT.get(x.device.type)
        if direct is not None:
            return direct[name]
    return raw(name)


@functools.cache
def raw(name: str) -> Callable[..., Any]:
    """An operator without the Python around it."""
    return getattr(torch.ops.normkit, name).default._op


def _rows(x: Tensor, *call: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _rows_train(x: Tensor, weight: Any, bias: Any, dims: int, *call: Any) -> Any:
    return _rows(x), _row_stats(x, dims)


def _rows_add(x: Tensor, residual: Tensor, *call: Any) -> Any:
    return _rows(x), _total(x, residual)


def _rows_add_train(x: Tensor, residual: Tensor, weight: Any, bias: Any, dims: int, *call: Any) -> Any:
    total = _total(x, residual)
    return _rows(x), total, _row_stats(total, dims)


def _rows_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    stats: Any,
    dtotal: Any,
    dims: int,
    eps: float,
    kind: int,
    need_dx: bool,
    *need: bool,
) -> Any:
    shape = x.shape[x.ndim - dims :]
    return _rows(x) if need_dx else x.new_empty(0), *_parameters(x, shape, (weight, bias), need)


def _groups(x: Tensor, k0: int, r1: int, k2: int, r3: int, i: int, *call: Any) -> Any:
    return _alike(x), _group_stats(x, k0, r1, k2)


def _group_stats(x: Tensor, k0: int, r1: int, k2: int, *call: Any) -> Tensor:
    """Of which the first three are mean, variance and count, for every backend."""
    rows, dtype = (3, torch.float64) if x.is_cpu else (STATISTICS, torch.float32)
    return x.new_empty((rows, k0 * k2), dtype=dtype)


def _groups_backward(
    dy: Any,
    x: Tensor,
    k0: int,
    r1: int,
    k2: int,
    r3: int,
    i: int,
    weight: Tensor | None,
    bias: Tensor | None,
    on_rows: bool,
    *call: Any,
) -> Any:
    size = r1 if on_rows else k2 * r3
    return _alike(x), *_parameters(x, (size,), (weight, bias), call[-2:])


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _nothing(*call: Any) -> None:
    return None


def _parameters(x: Tensor, shape: Any, of: Any, needed: Any) -> list[Tensor]:
    """Their gradients: empty where not needed."""
    return [
        x.new_empty(shape if need else (0,), dtype=_wide(x) if p is None else p.dtype)
        for p, need in zip(of, needed, strict=True)
    ]


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _row_stats(x: Tensor, dims: int) -> Tensor:
    return x.new_empty((2, math.prod(x.shape[: x.ndim - dims])), dtype=_wide(x))


def _total(x: Tensor, residual: Tensor) -> Tensor:
    return _rows(x).to(torch.promote_types(x.dtype, residual.dtype))


def _alike(x: Tensor) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


_ROW = "Tensor? weight, Tensor? bias, int dims, float eps, int kind"
_GROUP = (
    "SymInt k0, SymInt r1, SymInt k2, SymInt r3, SymInt i, "
    "Tensor? weight, Tensor? bias, bool weight_on_rows, Tensor? mask"
)
_GIVEN = "Tensor? mean, Tensor? var, float eps, bool center"
_NEEDED = "bool need_dweight, bool need_dbias"

_TABLE: dict[str, tuple[str, Callable[..., Any]]] = {
    "rows": (f"(Tensor x, {_ROW}) -> Tensor", _rows),
    "rows_train": (f"(Tensor x, {_ROW}) -> (Tensor, Tensor)", _rows_train),
    "rows_out": (f"(Tensor x, {_ROW}, Tensor(a!) out) -> ()", _nothing),
    "rows_add": (f"(Tensor x, Tensor residual, {_ROW}) -> (Tensor, Tensor)", _rows_add),
    "rows_add_train": (
        f"(Tensor x, Tensor residual, {_ROW}) -> (Tensor, Tensor, Tensor)",
        _rows_add_train,
    ),
    "rows_add_out": (
        f"(Tensor x, Tensor residual, {_ROW}, Tensor(a!) out, Tensor(b!) total) -> ()",
        _nothing,
    ),
    "rows_backward": (
        "(Tensor dy, Tensor x, Tensor? weight, Tensor? bias, Tensor stats, Tensor? dtotal, int dims, "
        f"float eps, int kind, bool need_dx, {_NEEDED}) -> (Tensor, Tensor, Tensor)",
        _rows_backward,
    ),
    "groups": (f"(Tensor x, {_GROUP}, {_GIVEN}) -> (Tensor, Tensor)", _groups),
    "groups_out": (f"(Tensor x, {_GROUP}, {_GIVEN}, Tensor(a!) out) -> Tensor", _group_stats),
    "groups_backward": (
        f"(Tensor dy, Tensor x, {_GROUP}, Tensor stats, bool given, float eps, bool center, {_NEEDED}) "
        "-> (Tensor, Tensor, Tensor)",
        _groups_backward,
    ),
    "update_running": ("(Tensor(a!) mean, Tensor(b!) var, Tensor stats, float momentum) -> ()", _nothing),
    "linear": ("(Tensor x, Tensor weight, Tensor? bias) -> Tensor", _linear),
}
OPERATORS = {name: Operator(*row, getattr(by_reference, name)) for name, row in _TABLE.items()}
# They are called without a gradient to record: that autograd does not look at them saves a tenth of a call.
SKIP_AUTOGRAD_KEY = ("rows", "rows_train", "linear")


def _on_one_device(fake: Callable[..., Any]) -> Callable[..., Any]:
    """One argument on meta is enough for torch to call a fake, whose result holds nothing."""

    def checked(*call: Any) -> Any:
        devices = {t.device for t in call if isinstance(t, Tensor)}
        if len(devices) > 1:
            raise RuntimeError(f"tensors on {' and '.join(sorted(map(str, devices)))}; expected one device")
        return fake(*call)

    return checked


def bumping(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """What is written to gets a new version, so that autograd refuses a gradient that needs the old one."""
    schema = getattr(torch.ops.normkit, name).default._schema
    written = [
        k for k, a in enumerate(schema.arguments, start=-len(schema.arguments)) if a.alias_info is not None
    ]
    if not written:
        return function

    def call(*arguments: Any) -> Any:
        result = function(*arguments)
        for k in written:  # after the write, as torch does: who keeps the old version has copied it by then
            if not arguments[k].is_inference():  # it has none
                increment_version(arguments[k])
        return result

    return call


def _redispatching(name: str) -> Callable[..., Any]:
    overload = getattr(torch.ops.normkit, name).default

    def below(keyset: Any, *call: Any) -> Any:
        return overload.redispatch(keyset & torch._C._after_ADInplaceOrView_keyset, *call)

    return bumping(name, below)


LIBRARY = torch.library.Library("normkit", "DEF")
for _name, (_schema, _fake, _plain) in OPERATORS.items():
    LIBRARY.define(_name + _schema)
    LIBRARY.impl(_name, _plain, "CompositeExplicitAutograd")
    torch.library.register_fake(f"normkit::{_name}", _on_one_device(_fake), lib=LIBRARY)
    if "!" in _schema:
        LIBRARY.impl(_name, _redispatching(_name), "ADInplaceOrView", with_keyset=True)
    if _name in SKIP_AUTOGRAD_KEY:
        LIBRARY.impl(_name, torch.library.fallthrough_kernel, "AutogradCPU")

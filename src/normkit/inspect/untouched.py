"""A run that leaves nothing behind: what a forward moves is put back, also after an exception or Ctrl-C."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["untouched"]

_TABLES = ("_parameters", "_buffers", "_modules")


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Buffers, attributes and modes of the model, and all random states, are as before in the end.

    Parameters that a forward writes to are the tracer's business, which sees it coming.
    """
    modules = list(model.modules())
    kept = [_state(module) for module in modules]
    held: dict[int, tuple[Any, Any]] = {}
    for value in (*model.buffers(), *(own for state, _ in kept for own in state.values())):
        _hold(value, held)
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    try:
        with torch.random.fork_rng(devices=_devices(model)):
            yield
    finally:
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        for module, state in zip(modules, kept, strict=True):
            _restore(module, state)
        for value, before in held.values():
            _write(value, before)


def _devices(model: nn.Module) -> list[int]:
    used = {t.device for t in (*model.parameters(), *model.buffers())}
    return sorted({d.index or 0 for d in used if d.type == "cuda"})


def _state(module: nn.Module) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    own = {name: value for name, value in vars(module).items() if name not in _TABLES}
    return own, {table: dict(vars(module)[table]) for table in _TABLES}


def _restore(module: nn.Module, state: tuple[dict[str, Any], dict[str, dict[str, Any]]]) -> None:
    own, tables = state
    reshard: Any = getattr(module, "reshard", None)
    if reshard is not None:  # FSDP2 keeps its own books
        reshard()
    else:
        for name, before in tables.items():
            table = vars(module)[name]
            _write(table, before)
    for name in [n for n in vars(module) if n not in own and n not in _TABLES]:
        del vars(module)[name]
    vars(module).update(own)


def _hold(value: Any, held: dict[int, tuple[Any, Any]], depth: int = 3) -> None:
    """What is in tensors, lists, dicts and sets, which a forward may write into."""
    if id(value) in held or depth == 0:
        return
    if isinstance(value, Tensor):
        if not isinstance(value, nn.Parameter) and not value.is_meta and value.layout == torch.strided:
            held[id(value)] = value, value.detach().clone()
    elif isinstance(value, (list, dict, set)):
        copied = next(kind(value) for kind in (list, dict, set) if isinstance(value, kind))
        held[id(value)] = value, copied
        for part in value.values() if isinstance(value, dict) else value:
            _hold(part, held, depth - 1)


def _write(value: Any, before: Any) -> None:
    if isinstance(value, Tensor):
        with torch.inference_mode(value.is_inference()), torch.no_grad():
            if not torch.equal(value, before):
                value.data.copy_(before)
    elif isinstance(value, list):
        if [id(v) for v in value] != [id(v) for v in before]:
            value[:] = before
    elif isinstance(value, dict):
        if [(k, id(v)) for k, v in value.items()] != [(k, id(v)) for k, v in before.items()]:
            value.clear()
            value.update(before)
    elif value != before:
        value.clear()
        value.update(before)

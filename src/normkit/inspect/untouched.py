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
    buffers = [(b, b.detach().clone()) for b in model.buffers() if not b.is_meta]
    kept = [_state(module) for module in modules]
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
        for buffer, value in buffers:
            _write(buffer, value)


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
            if list(table.items()) != list(before.items()):
                table.clear()
                table.update(before)
    for name in [n for n in vars(module) if n not in own and n not in _TABLES]:
        del vars(module)[name]
    vars(module).update(own)


def _write(tensor: Tensor, value: Tensor) -> None:
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        if not torch.equal(tensor, value):
            tensor.data.copy_(value)

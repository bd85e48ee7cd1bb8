"""Modules that go on as they are but for one thing: the same object, of a class derived from its own.

Such classes are made here, by a name of this module, so that models can be copied, pickled and loaded again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from normkit import functional
from normkit.inspect.edit import Edit
from normkit.norms.sync_batch_norm import SyncBatchNorm

__all__ = ["become", "frozen", "local", "normed", "synced"]


def become(
    model: nn.Module, path: str, what: str, kind: Callable[[type[nn.Module]], type[nn.Module]], **more: Any
) -> Edit:
    """The module's class becomes ``kind(its class)``, and attributes are set."""

    def make() -> Callable[[], None]:
        module = model.get_submodule(path)
        before, state = type(module), {name: vars(module).get(name, _MISSING) for name in more}
        training = module.training
        module.__class__ = kind(before)
        for name, value in more.items():
            setattr(module, name, value)

        def undo() -> None:
            module.__class__ = before
            module.training = training
            for name, value in state.items():
                vars(module).pop(name, None)
                if value is not _MISSING:
                    vars(module)[name] = value

        return undo

    return Edit(path, what, make)


_MISSING = object()
Kind = type[nn.Module]


def _once(make: Callable[[Kind], Kind]) -> Callable[[Kind], Kind]:
    """One class for each class."""
    found: dict[Kind, Kind] = {}

    @functools.wraps(make)
    def get(kind: Kind) -> Kind:
        if kind not in found:
            found[kind] = make(kind)
        return found[kind]

    return get


def _made(
    name: str, kind: type[nn.Module], bases: tuple[type, ...], members: dict[str, Any]
) -> type[nn.Module]:
    """A class that can be pickled: by the function that makes it."""

    def reduce(self: nn.Module, protocol: Any) -> Any:
        return _rebuild, (name, kind), self.__dict__

    members = {"__reduce_ex__": reduce, "__module__": kind.__module__, "of": kind, **members}
    return type(f"{name.capitalize()}{kind.__name__}", bases, members)


def _rebuild(name: str, kind: type[nn.Module]) -> nn.Module:
    makers = {"frozen": frozen, "synced": synced, "local": local, "normed": normed}
    made: type[nn.Module] = makers[name](kind)
    return made.__new__(made)


@_once
def frozen(kind: type[nn.Module]) -> type[nn.Module]:
    """It stays in evaluation mode, whatever ``model.train()`` says."""

    def train(self: nn.Module, mode: bool = True) -> nn.Module:
        return kind.train(self, False)

    return _made("frozen", kind, (kind,), {"train": train})


class _Synchronised(TorchFunctionMode):
    """torch's batch_norm, over the batches of all processes."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.batch_norm:
            return functional.batch_norm(*args, **(kwargs or {}), process_group=self.group)
        return func(*args, **(kwargs or {}))


@_once
def synced(kind: type[nn.Module]) -> type[nn.Module]:
    """It does all that it did, with the statistics of all processes."""

    def forward(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        group = SyncBatchNorm._sync_group(self)
        if group is None:
            return kind.forward(self, x, *args, **kwargs)
        with _Synchronised(group):
            return kind.forward(self, x, *args, **kwargs)

    return _made("synced", kind, (kind,), {"forward": forward, "process_group": None})


class _OwnStatistics(nn.SyncBatchNorm):
    """torch's SyncBatchNorm, with the statistics of its own process."""

    def forward(self, input: Tensor) -> Tensor:
        self._check_non_zero_input_channels(input)
        return nn.BatchNorm2d.forward(self, input)

    def _check_input_dim(self, input: Tensor) -> None:
        pass


@_once
def local(kind: type[nn.Module]) -> type[nn.Module]:
    """A class derived from torch's SyncBatchNorm, with the statistics of its own process."""
    return _made("local", kind, (kind, _OwnStatistics), {})


@_once
def normed(kind: type[nn.Module]) -> type[nn.Module]:
    """Its output goes through ``self.qk_norm``."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.qk_norm(kind.forward(self, *args, **kwargs))

    return _made("normed", kind, (kind,), {"forward": forward})

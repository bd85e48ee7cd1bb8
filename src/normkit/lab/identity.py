"""What an object is known by: texts that change whenever what it does may have changed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["texts_of"]

KEPT = ("_divided", "_constant")  # what the lab keeps with a task
# Code of others is known by the versions that are recorded anyway; what it does is not followed.
_KNOWN = {"torch", "normkit", "numpy"} | sys.stdlib_module_names - {"__main__"}
# What was met, by its id, and as which: kept, as the id of what is freed may be that of the next thing.
Seen = dict[int, tuple[int, Any]]


def texts_of(thing: Any, seen: Seen) -> Iterator[str]:
    """Texts that change whenever the thing does. What was met before is named by its number alone."""
    if thing is None or isinstance(thing, str | bytes | int | float | complex):
        yield repr(thing) if type(thing) is not bytes else _digest(thing)
        return
    if id(thing) in seen:
        yield f"again {seen[id(thing)][0]}"
        return
    seen[id(thing)] = len(seen), thing
    if isinstance(thing, functools.partial):
        yield from texts_of((thing.func, thing.args, thing.keywords), seen)
    elif isinstance(thing, types.MethodType):
        yield from texts_of((thing.__func__, thing.__self__), seen)
    elif isinstance(thing, types.ModuleType):
        yield thing.__name__
        if not _is_known_module(thing.__name__):
            yield from _of_module(thing, seen)
    elif isinstance(thing, type | types.FunctionType):
        yield f"{thing.__module__}.{thing.__qualname__}"
        if not _is_known_module(thing.__module__):
            if thing.__module__ in sys.modules and thing.__module__ != "__main__":
                yield from _of_module(sys.modules[thing.__module__], seen)
            yield from _of_class(thing, seen) if isinstance(thing, type) else _of_function(thing, seen)
    elif isinstance(thing, types.BuiltinFunctionType):
        yield f"{thing.__module__}.{thing.__qualname__}"
    elif isinstance(thing, Tensor) and thing.layout == torch.strided and not thing.is_meta:
        held = thing.detach().cpu().contiguous().flatten()
        yield f"{thing.dtype} {tuple(thing.shape)} {_digest(held.view(torch.uint8).numpy().tobytes())}"
    elif isinstance(thing, Mapping):
        yield from texts_of([*thing.items()], seen)
    elif isinstance(thing, set | frozenset):  # their order is another one in every process
        yield type(thing).__name__
        yield from texts_of(sorted(thing, key=repr), seen)
    elif isinstance(thing, list | tuple):
        yield f"{type(thing).__name__} of {len(thing)}"
        for value in thing:
            yield from texts_of(value, seen)
    elif dataclasses.is_dataclass(thing):
        yield from texts_of((type(thing), _state_of_dataclass(thing)), seen)
    else:
        yield from _of_object(thing, seen)


def _state_of_dataclass(thing: Any) -> dict[str, Any]:
    """Its fields, and what a class below it that is no dataclass has added. What it has computed and kept is
    no part of it."""
    cls = type(thing)
    state = {f.name: getattr(thing, f.name) for f in dataclasses.fields(thing)}
    if "__dataclass_fields__" not in vars(cls):
        kept = {
            name for name in vars(thing) if isinstance(getattr(cls, name, None), functools.cached_property)
        }
        state |= {name: value for name, value in vars(thing).items() if name not in {*kept, *KEPT}}
    return state


def _of_object(thing: Any, seen: Seen) -> Iterator[str]:
    """Its class, and its state as pickle has it, slots and arrays included."""
    yield from texts_of(type(thing), seen)
    try:
        state = thing.__reduce_ex__(2)
    except Exception:  # a lock, a file, a generator: what cannot be pickled has no state to compare
        state = getattr(thing, "__dict__", None)
    if isinstance(state, tuple):
        state = [[*part] if isinstance(part, Iterator) else part for part in state]
    yield from texts_of(state, seen)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _is_known_module(name: str) -> bool:
    return name.partition(".")[0] in _KNOWN


def _is_installed(name: str) -> bool:
    """Somebody's package? Then the text of the module stands for what it looks up."""
    if name == "__main__":  # a notebook's is that of its kernel
        return False
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def _of_module(module: types.ModuleType, seen: Seen) -> Iterator[str]:
    if id(module) not in seen:
        seen[id(module)] = len(seen), module
        with contextlib.suppress(OSError, TypeError):  # compiled
            yield inspect.getsource(module)


def _of_class(cls: type, seen: Seen) -> Iterator[str]:
    yield from texts_of(cls.__bases__, seen)
    for name, value in vars(cls).items():
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        elif isinstance(value, property):
            value = (value.fget, value.fset)
        elif isinstance(value, functools.cached_property):
            value = value.func
        if isinstance(value, types.FunctionType) or not name.startswith("__"):
            yield name
            yield from texts_of(value, seen)


def _of_function(function: types.FunctionType, seen: Seen) -> Iterator[str]:
    """Its source where there is one, its code in any case: two functions may stand in one line. What it looks
    up belongs to it, by value: a file may have changed since it was imported."""
    with contextlib.suppress(OSError, TypeError):  # typed at a prompt
        yield inspect.getsource(function)
    yield from _of_code(function.__code__)
    yield from texts_of((function.__defaults__, function.__kwdefaults__, vars(function)), seen)
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not filled yet
            yield from texts_of(cell.cell_contents, seen)
    if not _is_installed(function.__module__):
        for name in _names(function.__code__):
            if name in function.__globals__:
                yield name
                yield from texts_of(function.__globals__[name], seen)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _of_code(code: types.CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _of_code(constant)
        else:
            yield repr(constant)

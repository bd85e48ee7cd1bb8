"""Norms, placements and tasks that are given as objects, from a notebook for example.

A run is stored, hashed and sent to workers, so it holds names alone. An object gets one: its own, and a hash
of what it is known by, its source. Workers get the object itself, by value.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import io
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from torch import nn

from normkit.errors import user_error
from normkit.lab.extras import needs
from normkit.lab.identity import texts_of
from normkit.placement.rule import Learned, Placement

__all__ = [
    "HASH",
    "get",
    "identity",
    "is_known",
    "is_object",
    "module_name",
    "name_of",
    "pack",
    "short_name",
    "unpack",
]

HASH = "#"  # between the name and the hash
LENGTH, SHOWN = 8, 20  # characters of a hash, and of a value in a name

_objects: dict[str, Any] = {}
_identities: dict[str, str] = {}


def is_object(name: str) -> bool:
    return HASH in name


def short_name(name: str) -> str:
    """Without the hash."""
    return name.partition(HASH)[0]


def is_known(name: str) -> bool:
    """Is it an object of this process?"""
    return name in _objects


def module_name(name: str) -> str:
    """Where the code of an object is from."""
    thing = _objects.get(name)
    return str(getattr(thing, "__module__", None) or type(thing).__module__)


def name_of(thing: Any, what: str) -> str:
    """The name under which a run knows a thing: a string is one, an object gets one.

    Example:
        >>> name_of("rms", "norm")
        'rms'
        >>> name = name_of(functools.partial(nn.LayerNorm, eps=1e-3), "norm")
        >>> short_name(name), get(name).keywords
        ('LayerNorm(eps=0.001)', {'eps': 0.001})
    """
    if isinstance(thing, str):
        return thing
    _check(thing, what)
    known = identity(thing)
    named = f"{_called(thing)}{HASH}{hashlib.sha256(known.encode()).hexdigest()[:LENGTH]}"
    _objects[named], _identities[named] = thing, known
    return named


def get(name: str) -> Any:
    """The object that has a name."""
    if name not in _objects:
        raise user_error(
            f"{name} is an object of another process.",
            expected="a name, or package.module:name",
            fix="start the comparison again from where the object is defined.",
        )
    return _objects[name]


def pack(names: Iterable[str]) -> bytes:
    """Objects for another process; empty if all are names that it can look up."""
    wanted = {name: (_objects[name], _identities[name]) for name in names if is_object(name)}
    if not wanted:
        return b""
    file = io.BytesIO()
    try:
        _pickler(file).dump(wanted)
    except Exception as error:  # whatever the object's own code raises
        names = ", ".join(map(short_name, wanted))
        raise user_error(
            f"{names} cannot be sent to a worker: {type(error).__name__}: {error}.",
            expected="objects that can be pickled",
            fix="workers=0 trains in this process.",
        ) from error
    return file.getvalue()


def _pickler(file: io.BytesIO) -> Any:
    """cloudpickle's, which takes ``self.classes`` for ``torch.classes`` and cannot write that: a module of a
    class of its own. By its name it can."""

    class Pickler(needs("cloudpickle").Pickler):  # type: ignore[misc]
        def reducer_override(self, thing: Any) -> Any:
            if isinstance(thing, ModuleType) and type(thing) is not ModuleType:
                name = thing.__name__
                if sys.modules.get(name) is thing:
                    return importlib.import_module, (name,)
            return super().reducer_override(thing)

    return Pickler(file)


def unpack(packed: bytes) -> None:
    """What another process has packed; its names can be looked up from now on."""
    for name, (thing, known) in needs("cloudpickle").loads(packed).items():
        _objects[name], _identities[name] = thing, known


def identity(thing: Any) -> str:
    """What an object is known by: its source, that of what it uses, and the values in it.

    Arrays and weights count by their bytes.
    """
    if isinstance(thing, str) and thing in _identities:
        return _identities[thing]
    try:
        return "\n".join(texts_of(thing, {}))
    except RecursionError as error:
        raise user_error(
            f"{_called(thing)} holds what is nested too deeply to be told from others.",
            expected="values whose parts can be looked at",
            fix="put it into a module of its own, mine.py, and name it mine:Name.",
        ) from error


def _check(thing: Any, what: str) -> None:
    from normkit.lab.task import Task

    is_task = isinstance(thing, Task) or (isinstance(thing, type) and issubclass(thing, Task))
    is_module = isinstance(thing, nn.Module)
    fits, expected = {
        "task": (is_task, 'a name, "package.module:Class", or a subclass of normkit.lab.Task or one of them'),
        "norm": (
            callable(thing) and not is_module and not is_task,
            "a name, or a function of dim that makes a module",
        ),
        "placement": (
            isinstance(thing, Placement) or (callable(thing) and not is_module and not is_task),
            "a name, a Placement, or a function of (layer, depth, kind) that gives one",
        ),
    }[what]
    if not fits:
        shown = f"a module, {type(thing).__name__}(…)" if is_module else repr(thing)[:80]
        raise user_error(
            f"{what}= got {shown}.",
            expected=expected,
            fix="pass the class, not a layer: every place needs a new one." if is_module else None,
        )


def _called(thing: Any) -> str:
    if isinstance(thing, functools.partial):
        given = [_shown(value) for value in thing.args]
        given += [f"{name}={_shown(value)}" for name, value in thing.keywords.items()]
        return f"{_called(thing.func)}({' '.join(given)})" if given else _called(thing.func)
    if isinstance(thing, Placement):
        return f"Placement({' '.join(_changed(thing))})"
    name: str = getattr(thing, "__name__", type(thing).__name__)
    return name.strip("<>")


def _changed(placement: Placement) -> Iterator[str]:
    """What differs from the defaults."""
    for field in dataclasses.fields(placement):
        value = getattr(placement, field.name)
        if value != field.default:
            yield field.name if value is True else f"{field.name}={_shown(value)}"


def _shown(value: Any) -> str:
    """In a name: short, always the same, and without commas, which stand between names."""
    plain = value is None or isinstance(value, str | int | float | tuple | Learned)
    text = getattr(value, "text", None) or getattr(value, "__name__", None)
    text = str(text or (repr(value) if plain else type(value).__name__))
    text = type(value).__name__ if " at 0x" in text else text
    text = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
    return text.replace(", ", "+").replace(",", "").replace(HASH, "")

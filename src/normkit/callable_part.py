"""Parts of the package that are named after what they do, and do it when called: ``nk.inspect(model)``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["make_callable"]


def make_callable(part: ModuleType, main: Callable[..., Any]) -> None:
    """``part(...)`` calls ``main``. ``help`` and ``signature`` show what it takes."""

    class Part(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return main(*args, **kwargs)

    part.__class__ = Part
    part.__signature__ = inspect.signature(main)  # type: ignore[attr-defined]  # of a module that can be called

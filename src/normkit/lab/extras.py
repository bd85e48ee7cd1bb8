"""Packages that the lab needs and the library does not."""

from __future__ import annotations

import importlib
from typing import Any

from normkit.errors import user_error

__all__ = ["needs"]

# Of which extra a package is a part.
_LAB = ("cloudpickle", "jinja2", "pandas", "plotly", "scipy", "sklearn")
_EXTRAS = {**dict.fromkeys(_LAB, "lab"), "ray": "ray"}


def needs(name: str) -> Any:
    """An optional package, or the word how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        extra = _EXTRAS.get(name.partition(".")[0])
        raise user_error(
            f"This needs {name}, which is not installed.",
            fix=f"pip install {name}" if extra is None else f"pip install 'normkit[{extra}]'",
        ) from error

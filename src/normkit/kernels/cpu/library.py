"""The C++ library: loading it implements the operators on the CPU; why it may be missing."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

__all__ = ["MISSING", "isa"]

# Why there are no kernels, or None.
MISSING: str | None = None
try:
    _C: Any = importlib.import_module("normkit.kernels.cpu._C")
except ImportError as error:
    note = Path(__file__).with_name("build_error.txt")  # setup.py leaves it where a build fails
    if note.exists():
        MISSING = f"the C++ kernels were not built: {note.read_text().strip()}"
    else:
        MISSING = f"the C++ kernels do not load: {error}"


def isa() -> str | None:
    """The instruction set that the kernels use here."""
    return None if MISSING else _C.isa()

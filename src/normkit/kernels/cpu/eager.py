"""The short way into the kernels: an extension for one version of torch and Python, which may be missing."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

__all__ = ["MISSING", "MODULE"]

# The extension, or None; and then why.
MODULE: Any = None
MISSING: str | None = None
if os.environ.get("NORMKIT_EAGER") == "0":
    MISSING = "NORMKIT_EAGER=0 switches it off"
else:
    try:
        MODULE = importlib.import_module("normkit.kernels.cpu._eager")
    except ImportError as error:
        note = Path(__file__).with_name("eager_build_error.txt")  # setup.py leaves it where a build fails
        built = "was not built" if note.exists() else "does not load"
        MISSING = (
            f"the short way into the kernels {built}: {note.read_text().strip() if note.exists() else error}"
        )

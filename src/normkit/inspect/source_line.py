"""Which line of a model's code is calling now."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["calling_line"]

CONTAINER = "torch/nn/modules/container.py"  # says nothing, unless there is nobody else
MACHINERY = ("torch/nn/modules/module.py", "torch/nn/functional.py", "torch/overrides.py", CONTAINER)
OWN = (
    "normkit/callable_part",
    "normkit/inspect/",
    "normkit/doctor/",
    "torch/utils/_contextlib.py",
    "torch/_dynamo/",
)


def calling_line() -> str:
    """ "file.py:12": where the model's code calls what is being called; a container's, if it has no code."""
    fallback = ""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename.replace("\\", "/")
        here = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if file.endswith("normkit/inspect/trace.py") and frame.f_code.co_name == "trace":
            return fallback  # whoever asked for the trace is no part of the model
        if not file.endswith(MACHINERY) and not any(part in file for part in OWN):
            return here
        if file.endswith(CONTAINER):
            fallback = fallback or here
        frame = frame.f_back
    return fallback

"""GPUs: the operators in Triton, for whatever device Triton compiles for.

Nothing here imports Triton before a tensor on such a device is to be normalised. ``ready`` says whether it
may: the first call on a device runs a short check of the numbers, whose result is kept.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

from normkit.kernels.operators import DIRECT, LIBRARY, bumping
from normkit.kernels.triton.versions import INTERPRETED

__all__ = ["DEVICES", "IMPLEMENTATIONS"]

DEVICES = {"cuda": "CUDA", "xpu": "XPU"}  # type of device -> torch's dispatch key; ROCm calls itself cuda
HOMES = {
    "rows": "rows",
    "rows_train": "rows",
    "rows_out": "rows",
    "rows_add": "rows",
    "rows_add_train": "rows",
    "rows_add_out": "rows",
    "rows_backward": "rows",
    "groups": "groups",
    "groups_out": "groups",
    "groups_backward": "groups",
    "update_running": "groups",
}


class _Implementations(dict[str, Callable[..., Any]]):
    """By the names of the operators, imported when one is first needed."""

    def __missing__(self, name: str) -> Callable[..., Any]:
        found = getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
        self[name] = found
        return found


class _Direct(dict[str, Callable[..., Any]]):
    """The same, called past torch's dispatcher, which counts the versions of what is written to."""

    def __missing__(self, name: str) -> Callable[..., Any]:
        found = self[name] = bumping(name, IMPLEMENTATIONS[name])
        return found


IMPLEMENTATIONS = _Implementations()


def _call(name: str, *call: Any) -> Any:
    return IMPLEMENTATIONS[name](*call)


if INTERPRETED and os.environ.get("NORMKIT_BACKEND") == "triton":
    DIRECT["cpu"] = _Direct()  # for whoever wants to look at the kernels without a GPU
for _device, _key in DEVICES.items():
    DIRECT[_device] = _Direct()
    for _name in HOMES:
        LIBRARY.impl(_name, functools.partial(_call, _name), _key)

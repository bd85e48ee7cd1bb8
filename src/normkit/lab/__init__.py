"""The lab: which norm, where, at which learning rate, for your data? Measured, not believed.

``compare`` trains and compares; a task of your own is a subclass of ``Task``.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from normkit.lab.claims import ledger
    from normkit.lab.comparison import Comparison
    from normkit.lab.run import Run
    from normkit.lab.single import train
    from normkit.lab.studying import study
    from normkit.lab.sweep import compare
    from normkit.lab.task import Task

__all__ = ["Comparison", "Run", "Task", "compare", "ledger", "study", "train"]

_HOMES = {
    "Comparison": "comparison",
    "Run": "run",
    "Task": "task",
    "compare": "sweep",
    "ledger": "claims",
    "study": "studying",
    "train": "single",
}

if not TYPE_CHECKING:  # looked up when first used: `normkit info` needs none of it

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module 'normkit.lab' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"normkit.lab.{_HOMES[name]}"), name)
        return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

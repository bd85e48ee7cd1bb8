"""All checks on one device, and what they were run on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from normkit.bench import devices, machine
from normkit.verify.cases import cases
from normkit.verify.checking import Result, check_case, check_memory
from normkit.verify.norms import NORMS

__all__ = ["Verified", "verify"]

MEMORY_DTYPES = ("fp32", "bf16")


@dataclass
class Verified:
    """The results, and the machine."""

    machine: dict[str, Any]
    results: list[Result] = field(default_factory=list)

    def count(self, status: str) -> int:
        return sum(result.status == status for result in self.results)


def verify(
    device: torch.device, quick: bool, show: Callable[[int, int, str], None] = lambda *_: None
) -> Verified:
    """Check every case; ``show(done, all, case)`` is told where it is."""
    found = Verified({**devices.describe(device), **machine.describe()})
    todo = list(cases(quick))
    memory = [(name, dtype) for name in NORMS for dtype in MEMORY_DTYPES]
    total = len(todo) + len(memory)
    with warnings.catch_warnings():
        # Each line says what computes it: torch's operators need not be warned of.
        warnings.filterwarnings("ignore", "normkit runs without kernels", RuntimeWarning)
        for done, case in enumerate(todo):
            show(done, total, f"{case.norm} {case.what} {case.dtype}")
            found.results += check_case(case, device)
        for done, (name, dtype) in enumerate(memory, start=len(todo)):
            show(done, total, f"{name} memory {dtype}")
            found.results.append(check_memory(name, dtype, device))
    show(total, total, "")
    return found

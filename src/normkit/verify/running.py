"""All checks on one device, and what they were run on."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
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
    """The results, the machine, and how many cases were left out by Ctrl-C."""

    machine: dict[str, Any]
    results: list[Result] = field(default_factory=list)
    left: int = 0

    def count(self, status: str) -> int:
        return sum(result.status == status for result in self.results)


def verify(
    device: torch.device, quick: bool, show: Callable[[int, int, str], None] = lambda *_: None
) -> Verified:
    """Check every case; ``show(done, all, case)`` is told where it is. Ctrl-C keeps what has been checked."""
    found = Verified({**devices.describe(device), **machine.describe()})
    todo: list[tuple[str, Callable[[], Iterable[Result]]]] = [
        (f"{case.norm} {case.what} {case.dtype}", functools.partial(check_case, case, device))
        for case in cases(quick)
    ]
    todo += [
        (f"{name} memory {dtype}", functools.partial(_memory, name, dtype, device))
        for name in NORMS
        for dtype in MEMORY_DTYPES
    ]
    done = 0
    with warnings.catch_warnings():
        # Each line says what computes it: torch's operators need not be warned of.
        warnings.filterwarnings("ignore", "normkit runs without kernels", RuntimeWarning)
        try:
            for name, check in todo:
                show(done, len(todo), name)
                found.results += check()
                done += 1
        except KeyboardInterrupt:
            found.left = len(todo) - done
            return found
    show(done, done, "")
    return found


def _memory(name: str, dtype: str, device: torch.device) -> list[Result]:
    return [check_memory(name, dtype, device)]

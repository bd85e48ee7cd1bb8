"""The process of a worker, and the machine under it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from normkit import kernels
from normkit._version import __version__
from normkit.lab.allocator import keep_memory

__all__ = ["Memory", "borrowed_process", "configure_worker", "cpu", "describe"]

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def configure_worker(threads: int | None = 1) -> None:
    """Set up a process that is ours alone: one torch thread, and memory that is kept instead of returned."""
    if threads is not None:
        torch.set_num_threads(threads)
    keep_memory()


@contextlib.contextmanager
def borrowed_process() -> Iterator[None]:
    """In a process that is not ours: one torch thread as in a worker, and everything as it was afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)


class Memory:
    """The most memory that this process takes from now on, above what it has; Linux counts it."""

    def __init__(self) -> None:
        self.before: float | None = None
        if not _RESET.exists():
            return
        libc = ctypes.CDLL(None)
        if hasattr(libc, "malloc_trim"):
            libc.malloc_trim(0)  # what malloc keeps would hide what is asked for
        with contextlib.suppress(OSError):
            before = _megabytes("VmRSS")
            _RESET.write_text("5")
            self.before = before

    def peak(self) -> float | None:
        """In megabytes; None where nobody counts."""
        return None if self.before is None else round(max(0.0, _megabytes("VmHWM") - self.before), 1)


def _megabytes(name: str) -> float:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024


def describe() -> dict[str, Any]:
    """For the foot of a page: what the numbers were measured on."""
    return {
        "normkit": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "kernels": kernels.isa() or f"none: {kernels.missing()}",
    }


def cpu() -> str:
    """The name of the processor; Python's own answer is empty on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (names or [platform.processor() or platform.machine()])[0]

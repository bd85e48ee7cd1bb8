"""What the numbers were measured on."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
from collections.abc import Callable
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import normkit
from normkit.kernels.cpu.library import isa

__all__ = ["BUSY", "Clock", "describe", "peak_memory"]

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
BUSY = 0.05  # a larger share of the processors in the hands of others spoils a measurement


def describe() -> dict[str, Any]:
    """The machine and the software, for the head of the results."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "caches": _caches(),
        "isa": isa(),
        "torch": torch.__version__,
        "torch threads by default": torch.get_num_threads(),
        "onnxruntime": version("onnxruntime"),
        "normkit": normkit.__version__,
        "python": platform.python_version(),
        "os": f"{platform.system()} {platform.machine()}",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def peak_memory(call: Callable[[], object]) -> float:
    """Megabytes that a call needs above what was there before; Linux counts them. Else not a number."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not reset.exists():
        return float("nan")

    def read(name: str) -> float:
        line = next(line for line in status.read_text().splitlines() if line.startswith(name))
        return int(line.split()[1]) / 1024

    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what malloc keeps would hide what is asked for
    before = read("VmRSS")
    reset.write_text("5")
    call()
    return round(read("VmHWM") - before, 1)


class Clock:
    """How much of the processors others have used since it was made."""

    def __init__(self) -> None:
        self.start = self._read()

    def others(self) -> float | None:
        """Their share of all processor time; None where the system does not say."""
        end = self._read()
        if self.start is None or end is None:
            return None
        busy, total = end[0] - self.start[0], end[1] - self.start[1]
        return round(max(0.0, busy / max(total, 1e-9)), 3)

    def remark(self) -> str:
        """What has to be said beside every number, or nothing."""
        share = self.others() or 0
        return f" (others used {share:.0%} of the processors: do not trust this)" if share > BUSY else ""

    @staticmethod
    def _read() -> tuple[float, float] | None:
        """Seconds that all processors worked, without our own, and seconds that passed on all of them."""
        try:
            ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        except OSError:
            return None
        second, idle = os.sysconf("SC_CLK_TCK"), ticks[3] + ticks[4]
        return (sum(ticks) - idle) / second - sum(os.times()[:4]), sum(ticks) / second


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    found = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(found, platform.processor())


def _caches() -> dict[str, str]:
    """The caches that the first core sees; empty where the system does not say."""

    def read(index: Path, what: str) -> str:
        return (index / what).read_text().strip()

    try:
        data = [i for i in sorted(CACHES.glob("index*")) if read(i, "type") != "Instruction"]
        return {f"L{read(i, 'level')}": read(i, "size") for i in data}
    except OSError:
        return {}

"""What the numbers were measured on."""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from normkit._version import __version__
from normkit.kernels import isa
from normkit.lab.machine import Memory, cpu

__all__ = ["BUSY", "Clock", "describe", "peak_memory"]

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
BUSY = 0.05  # a larger share of the processors in the hands of others spoils a measurement


def describe() -> dict[str, Any]:
    """The machine and the software, for the head of the results."""
    return {
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "caches": _caches(),
        "isa": isa(),
        "torch": str(torch.__version__),
        "torch threads by default": torch.get_num_threads(),
        "normkit": __version__,
        "python": platform.python_version(),
        "os": f"{platform.system()} {platform.machine()}",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def peak_memory(call: Callable[[], object]) -> float:
    """Megabytes that a call needs above what was there before. Not a number where nobody counts."""
    gc.collect()
    memory = Memory()
    call()
    peak = memory.peak()
    return float("nan") if peak is None else peak


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


def _caches() -> dict[str, str]:
    """The caches that the first core sees; empty where the system does not say."""

    def read(index: Path, what: str) -> str:
        return (index / what).read_text().strip()

    try:
        data = [i for i in sorted(CACHES.glob("index*")) if read(i, "type") != "Instruction"]
        return {f"L{read(i, 'level')}": read(i, "size") for i in data}
    except OSError:
        return {}

"""Memory that is kept instead of returned, in the processes that are normkit's own.

By default glibc asks the system for every block above 32 MB and gives it back at once, so that each time all
its pages are mapped anew: 16,385 faults for a tensor of 64 MB, and none once memory is kept. A LayerNorm of
4096 × 4096 numbers then takes 3.9 ms instead of 27, torch's own 5.4 instead of 33 (fp32, torch 2.13).

A library must not change that for its host; a command may. So nothing here runs on import: ``normkit`` on the
command line and the workers of a sweep call ``keep_memory``. For others docs/lab.md has glibc's variables.
"""

from __future__ import annotations

import ctypes
import os
import sys

__all__ = ["SWITCH", "keep_memory"]

SWITCH = "NORMKIT_KEEP_MEMORY"  # 0 leaves the allocator alone
# glibc's names for its settings, from malloc.h, and what they are set to. A trim threshold of -1 is its word
# for "never"; mallopt takes an int, in which 8e9, as in the variables, does not fit.
_SETTINGS = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, -1), "M_TOP_PAD": (-2, 64 << 20)}


def keep_memory() -> bool:
    """Tell glibc to keep what is freed, for the next tensor; whether that was done.

    Not where the user has said something about it, and not where there is no glibc.
    """
    if sys.platform != "linux" or os.environ.get(SWITCH) == "0" or _has_wishes():
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version") or not hasattr(libc, "mallopt"):
        return False
    return all(libc.mallopt(name, value) == 1 for name, value in _SETTINGS.values())


def _has_wishes() -> bool:
    own = any(name.startswith("MALLOC_") for name in os.environ)
    return own or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")

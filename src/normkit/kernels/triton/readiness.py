"""May the Triton kernels run on this device? Asked once a process, and checked once a machine.

On a device, driver and versions that have not been seen, the first call compares a few norms and gradients
with float64 and with torch's own operators. What passes is kept in a file; what fails is not, so that it is
tried again in the next process. Until then torch's operators compute, and one line says so.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import os
import tempfile
from pathlib import Path

import torch

from normkit._version import __version__
from normkit.kernels.triton.versions import INTERPRETED, OLDEST

__all__ = ["cache_file", "unready"]

_STATE: dict[tuple[str, int], str] = {}  # "" where the kernels may run, else why not


def unready(device: str, index: int) -> str | None:
    """Why the kernels do not run on a device; None if they do."""
    state = _STATE.get((device, index))
    if state is None:
        state = _STATE[device, index] = _look(device, index)
    return state or None


# torch.compile asks while it traces, and takes the answer as it is. That is what assume_constant_result of
# torch.compiler does, which imports the compiler and Triton first: no program should wait for that.
unready._dynamo_marked_constant = True  # type: ignore[attr-defined]


def cache_file() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "normkit" / "checked.json"


def _look(device: str, index: int) -> str:
    try:
        triton = importlib.import_module("triton")
    except ImportError as error:
        return f"Triton is missing: {error}"
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if version < OLDEST:
        return f"Triton {triton.__version__} is too old: {'.'.join(map(str, OLDEST))} is needed"
    if device == "cpu":
        return "" if INTERPRETED else "Triton compiles for GPUs; TRITON_INTERPRET=1 interprets on a CPU"
    if (
        not torch.get_device_module(device).is_available()
        or index >= torch.get_device_module(device).device_count()
    ):
        return f"there is no {device}:{index} here"
    if device == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(index) < (8, 0):
        return "it is compiled for compute capability 8.0 and later"
    return _checked(torch.device(device, index), triton.__version__)


def _checked(device: torch.device, triton_version: str) -> str:
    key = _fingerprint(device, triton_version)
    known = _read()
    if key in known:
        return ""
    from normkit.kernels.triton import selfcheck  # imports Triton

    found = selfcheck.run(device)
    if not found:
        with contextlib.suppress(OSError):  # a machine that keeps nothing checks in each process
            _write([*known, key])
    return found


def _fingerprint(device: torch.device, triton_version: str) -> str:
    """What the numbers could depend on."""
    found = [str(_describe(device)), torch.__version__, triton_version, __version__, _source()]
    return " | ".join(found)


def _describe(device: torch.device) -> str:
    module = torch.get_device_module(device)
    properties = module.get_device_properties(device)
    driver = getattr(torch._C, "_cuda_getDriverVersion", lambda: "")() if device.type == "cuda" else ""
    return f"{properties} driver {driver}"


@functools.cache
def _source() -> str:
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:12]


def _read() -> list[str]:
    """Keys of what has passed. A file that is missing or damaged is none."""
    try:
        found = json.loads(cache_file().read_text())
    except (OSError, ValueError):
        return []
    return [key for key in found if isinstance(key, str)] if isinstance(found, list) else []


def _write(keys: list[str]) -> None:
    """Whole or not at all: another process may read it."""
    path = cache_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump(keys, file)
    os.replace(file.name, path)

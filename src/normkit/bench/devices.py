"""The devices of this machine: which there are, what they are called, what drives them."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import torch

from normkit import kernels
from normkit.errors import user_error

__all__ = ["available", "describe", "find", "version"]

KINDS = ("cuda", "xpu", "mps")  # ROCm calls itself cuda
DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version"))


def available() -> list[str]:
    """All that a tensor can be put on here, GPUs first."""
    found = []
    for kind in KINDS:
        count = _count(kind)
        found += [kind] if kind == "mps" and count else [f"{kind}:{index}" for index in range(count)]
    return [*found, "cpu"]


def find(name: str | None) -> torch.device:
    """The device of that name, or the first GPU, or the CPU where there is none."""
    if name is None:
        return torch.device(available()[0])
    try:
        device = torch.device(name)
        there = device.type == "cpu" or (device.index or 0) < _count(device.type)
    except (RuntimeError, ValueError):  # no device is called that
        there = False
    if not there:
        raise user_error(
            f"--device got {name!r}, which is not on this machine.",
            expected=f"one of {', '.join(available())}",
            fix=f"leave --device away, or install a torch for that device (this is {torch.__version__}).",
        )
    if device.type == "cpu":
        return torch.device("cpu")
    return torch.device(device.type, device.index or 0)


def describe(device: torch.device) -> dict[str, Any]:
    """The device, its driver and what computes there, as plain data."""
    found: dict[str, Any] = {"device": str(device)}
    if device.type != "cpu":
        module = torch.get_device_module(device)
        properties = getattr(module, "get_device_properties", lambda _: "")(device)
        found["name"] = getattr(properties, "name", device.type)
        found["properties"] = str(properties)
        found["driver"] = _driver(properties)
        reason = kernels.gpus().get(str(device), "Triton does not compile for it")
        found["kernels"] = f"none: {reason}" if reason else "triton"
    return {
        **found,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "triton": version("triton"),
    }


def version(package: str) -> str | None:
    """Of an installed package, without importing it; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _count(kind: str) -> int:
    """How many of a kind; 0 too where torch has never heard of it."""
    try:
        module = torch.get_device_module(kind)
        return module.device_count() if module.is_available() else 0
    except (RuntimeError, AttributeError):
        return 0


def _driver(properties: Any) -> str:
    """What the system says of the driver, or what torch knows of it."""
    for path in DRIVERS:
        try:
            return path.read_text().splitlines()[0].strip()
        except (OSError, IndexError):
            continue
    told = getattr(properties, "driver_version", None)  # Intel's
    if told is None and torch.version.cuda is not None:
        told = getattr(torch._C, "_cuda_getDriverVersion", lambda: None)()
    return str(told or "unknown")

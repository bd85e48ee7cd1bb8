"""Where a run is trained: the processor, or an accelerator; and what has to go there."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from normkit import checks
from normkit.errors import user_error
from normkit.transformer.description import short

__all__ = [
    "check_device",
    "check_name",
    "device_name",
    "device_of",
    "kept_random",
    "on_cpu",
    "peak_mb",
    "to_device",
]

KINDS = ("cpu", "cuda", "mps")


def check_name(name: Any) -> None:
    """Is it a device that runs are made for? Not whether this machine has it."""
    if not isinstance(name, str):
        raise user_error(f"device= got {short(name)}.", expected="cpu, cuda, cuda:1 or mps")
    kind, colon, index = name.partition(":")
    checks.one_of(kind, KINDS, what="device=")
    if colon and (kind != "cuda" or not re.fullmatch("[0-9]{1,3}", index)):
        raise user_error(f"device= got {name!r}.", expected="cpu, cuda, cuda:1 or mps")


def check_device(name: str) -> None:
    """Does this machine have it?"""
    check_name(name)
    kind, _, index = name.partition(":")
    if kind == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not count:
            built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
            raise _missing(name, f"torch {torch.__version__}, {built}, sees no GPU here")
        if index and int(index) >= count:
            raise _missing(name, f"there {'is' if count == 1 else 'are'} {count}, counted from cuda:0")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise _missing(name, f"torch {torch.__version__} sees no Apple GPU here")


def _missing(name: str, reason: str) -> Exception:
    return user_error(f"--device {name}: {reason}.", fix="--device cpu")


def device_name(device: torch.device) -> str:
    """For the records: which one it was."""
    if device.type == "cuda":
        return f"{device.type}:{device.index or 0}, {torch.cuda.get_device_name(device)}"
    return device.type


def device_of(model: nn.Module) -> torch.device:
    """That of its first weight."""
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch with all its tensors on a device; what is there already stays what it is.

    Example:
        >>> to_device({"x": torch.ones(2), "names": ["a", "b"]}, torch.device("meta"))["x"].device
        device(type='meta')
    """
    if isinstance(batch, Tensor):
        return batch if batch.device == device else batch.to(device)
    if device.type == "cpu":  # tasks make their batches there
        return batch
    if isinstance(batch, Mapping):
        return {name: to_device(part, device) for name, part in batch.items()}
    if isinstance(batch, list | tuple):
        parts = [to_device(part, device) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


@contextlib.contextmanager
def on_cpu(model: nn.Module) -> Iterator[nn.Module]:
    """The model where tasks have their data, for what they measure themselves."""
    device = device_of(model)
    try:
        yield model.to("cpu")
    finally:
        model.to(device)


@contextlib.contextmanager
def kept_random(device: torch.device) -> Iterator[None]:
    """Random numbers that are drawn here are not missing afterwards, on the device as in Python."""
    if device.type == "cpu":
        with torch.random.fork_rng(devices=[]):
            yield
    else:
        with torch.random.fork_rng(devices=[device.index or 0], device_type=device.type):
            yield


def peak_mb(device: torch.device) -> float | None:
    """The most memory that torch has had on a GPU since it was last asked; None where nobody counts."""
    if device.type != "cuda":
        return None
    found = torch.cuda.max_memory_allocated(device) / 1e6
    torch.cuda.reset_peak_memory_stats(device)
    return round(found, 1)

"""The host code of the Triton kernels, with the emulator in place of a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from benchmarks import gpu

from .emulator import Kernel
from .memory import Tensor

__all__ = ["Emulated"]


class Emulated:
    """A launch that compiles for ``arch`` and runs the PTX on the bytes of the tensors that it is given.

    ``traffic`` has a dictionary for each launch: the kernel's name, and what happened to each argument.
    ``change`` may alter the PTX: a test that could not fail would say nothing. ``gaps`` are of arguments.
    """

    def __init__(
        self, arch: str, change: Callable[[str], str] = str, gaps: dict[str, tuple[int, int]] | None = None
    ) -> None:
        self.arch, self.change, self.gaps = arch, change, gaps or {}
        self.traffic: list[tuple[str, dict[str, Tensor]]] = []

    def __call__(self, call: Any, tensors: Sequence[torch.Tensor | None], device: torch.device) -> None:
        values = (*tensors, *call.numbers)
        launch = gpu._describe("emulated", call.kernel, values, call.constants, call.warps)
        arguments: list[Any] = []
        for value, (name, kind) in zip(values, launch.signature, strict=False):
            if kind != "constexpr":
                is_tensor = isinstance(value, torch.Tensor)
                gap = self.gaps.get(name, (0, 0))
                arguments.append(Tensor(name, _bytes(value), gap) if is_tensor else value)
        text, shared = compiled(launch, self.arch)
        _kernel(self.change(text), shared).run(call.grid, arguments)
        self.traffic.append((launch.kernel, {a.name: a for a in arguments if isinstance(a, Tensor)}))


@functools.lru_cache(maxsize=256)
def compiled(launch: gpu.Launch, arch: str) -> tuple[str, int]:
    """The PTX, and the bytes of shared memory that it asks for."""
    found = gpu.compile_for(launch, arch)
    return found.asm["ptx"], found.metadata.shared


_kernel = functools.lru_cache(maxsize=256)(Kernel)


def _bytes(tensor: torch.Tensor) -> Any:
    """The memory of a tensor itself, first number to last: what is stored there is in the tensor."""
    memory = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    count = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    first = tensor.storage_offset() * tensor.element_size()
    return memory[first : first + count * tensor.element_size()].numpy()

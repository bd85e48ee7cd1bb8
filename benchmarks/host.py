"""The host's part of a norm on a GPU, measured without one: everything up to the driver, and no driver.

Tensors of the CPU stand for a GPU's, and the kernel that is launched does nothing. torch's side is its
operator on one row of 64 numbers, which takes next to no time: close to what its own host code costs. Writes
its table into docs/gpu.md.

    python -m benchmarks.host
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import triton

import normkit.functional as N
from benchmarks.gpu_results import write_table
from normkit.kernels import BACKENDS
from normkit.kernels.operators import DIRECT
from normkit.kernels.triton import launch, quick, readiness
from normkit.kernels.triton.device import group_backward, group_forward, row_backward, row_forward

ROUNDS, CALLS = 40, 300
WAYS = ("no grad", "with grad", "with backward")
Call = Callable[[], Any]


class NullLauncher:
    """What a compiled kernel of Triton is to us, and what its launcher does in Python before it calls C."""

    function, packed_metadata = 1, (4, 1, 0)
    global_scratch_size = profile_scratch_size = 0
    launches = 0

    @property
    def run(self) -> Callable[..., None]:
        return self.__call__

    def __call__(self, x: int, y: int, z: int, stream: int, function: int, *rest: Any) -> None:
        def scratch(size: int) -> None:
            return None

        scratch(self.global_scratch_size)
        scratch(self.profile_scratch_size)
        _to_c(x, y, z, stream, function, *rest[:4], rest[4:])


def _to_c(*args: Any) -> None:
    NullLauncher.launches += 1


class NullKernel:
    """In place of a Triton kernel: ``kernel[grid](...)`` gives the handle."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., NullLauncher]:
        return lambda *args, **options: NullLauncher()


def pretend() -> None:
    """CPU tensors are a GPU's from now on, in this process."""
    readiness._STATE["cpu", 0] = ""
    DIRECT["cpu"] = DIRECT["cuda"]
    torch.cpu.device = contextlib.nullcontext  # type: ignore[attr-defined]
    launch._is_current = lambda device: True
    launch.stream_of = quick.stream_of = lambda device: lambda index: 0
    for kernels in (row_forward, row_backward, group_forward, group_backward):
        for name, found in list(vars(kernels).items()):
            if isinstance(found, triton.JITFunction):
                setattr(kernels, name, NullKernel())
    first = {"triton": BACKENDS.pop("triton"), **BACKENDS}
    BACKENDS.clear()
    BACKENDS.update(first)
    quick.serve("cpu")


def candidates(grad: bool) -> dict[str, tuple[Call, Call]]:
    """Ours and torch's, by name."""
    dim = (64,)
    x, weight, bias = (torch.randn(s).requires_grad_(grad) for s in ((1, 64), dim, dim))
    image, gain, shift = (torch.randn(s).requires_grad_(grad) for s in ((2, 4, 2, 2), (4,), (4,)))
    mean, var = torch.zeros(4), torch.ones(4)
    return {
        "layer_norm": (
            lambda: N.layer_norm(x, dim, weight, bias),
            lambda: F.layer_norm(x, dim, weight, bias),
        ),
        "rms_norm": (lambda: N.rms_norm(x, dim, weight, 1e-5), lambda: F.rms_norm(x, dim, weight, 1e-5)),
        "add_layer_norm": (
            lambda: N.add_layer_norm(x, x, dim, weight, bias),
            lambda: F.layer_norm(x + x, dim, weight, bias),
        ),
        "group_norm": (
            lambda: N.group_norm(image, 2, gain, shift),
            lambda: F.group_norm(image, 2, gain, shift),
        ),
        "batch_norm": (
            lambda: N.batch_norm(image, mean, var, gain, shift, training=True),
            lambda: F.batch_norm(image, mean, var, gain, shift, training=True),
        ),
    }


def and_backward(call: Call) -> Call:
    def run() -> None:
        y = call()
        y = y[0] if isinstance(y, tuple) else y
        y.backward(y.detach())

    return run


def ratio(ours: Call, theirs: Call) -> tuple[float, float, float]:
    """Microseconds of ours, of theirs, and their ratio: medians of interleaved rounds."""
    times = []
    for _ in range(ROUNDS):
        pair = []
        for call in (ours, theirs):
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            pair.append((time.perf_counter() - start) / CALLS * 1e6)
        times.append((*pair, pair[0] / pair[1]))
    mine, other, share = (statistics.median(column) for column in zip(*times, strict=True))
    return mine, other, share


def main() -> None:
    torch.set_num_threads(1)
    pretend()
    found: dict[str, list[str]] = {}
    for way in WAYS:
        for name, both in candidates(way != "no grad").items():
            ours, theirs = (and_backward(call) for call in both) if way == "with backward" else both
            ours()  # compiles
            before = NullLauncher.launches
            ours()
            launches = NullLauncher.launches - before
            mine, other, share = ratio(ours, theirs)
            found.setdefault(name, []).append(f"{share:.2f} ({launches})")
            print(
                f"{name:15} {way:13} {mine:6.1f} µs  torch {other:6.1f} µs  {share:5.2f}  {launches} launches"
            )
    rows = [
        ["ours to torch's (launches)", *WAYS],
        ["---"] * 4,
        *([name, *cells] for name, cells in found.items()),
    ]
    write_table("host", "\n".join(f"| {' | '.join(row)} |" for row in rows))


if __name__ == "__main__":
    main()

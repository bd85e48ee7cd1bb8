"""The inputs: sizes, means, dtypes, memory layouts, and numbers that are hard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from normkit.verify.norms import NORMS, Norm

__all__ = ["DTYPES", "Case", "Inputs", "cases", "inputs"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MEANS = {"fp32": (0.0, 1e4, 1e6), "bf16": (0.0, 8.0), "fp16": (0.0, 8.0)}
# A row's length: one number, odd, of models, and longer than a program's registers hold.
DIMS, QUICK_DIMS = (1, 2, 7, 123, 768, 4096, 65539), (7, 768)
LONG = 16384  # where a few rows do
ROWS = 9
IMAGES, QUICK_IMAGES = ((2, 6, 1, 2), (5, 6, 7, 9), (3, 48, 33, 31), (2, 6, 130, 129)), ((5, 6, 7, 9),)
LAYOUTS = ("contiguous", "channels_last")
HARD = ("huge", "constant", "nan", "inf", "empty")


@dataclass(frozen=True)
class Case:
    """One input of one norm, as plain data: the numbers are drawn from it."""

    norm: str
    shape: tuple[int, ...]
    dtype: str
    mean: float = 0.0
    layout: str = "contiguous"
    mask: bool = False
    hard: str = ""  # one of HARD, or none

    @property
    def what(self) -> str:
        parts = ["x".join(map(str, self.shape))]
        parts += [f"mean {self.mean:g}"] if self.mean else []
        parts += ["channels_last"] if self.layout != "contiguous" else []
        parts += ["mask"] if self.mask else []
        return ", ".join([*parts, self.hard] if self.hard else parts)


@dataclass(frozen=True)
class Inputs:
    """On the CPU; ``grads`` are those of the outputs, and ``other`` is the residual of a sum."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    other: Tensor | None
    mask: Tensor | None
    grads: tuple[Tensor, ...]


def cases(quick: bool) -> Iterator[Case]:
    """All inputs of all norms."""
    for name, norm in NORMS.items():
        for dtype in DTYPES:
            means = MEANS[dtype][:2] if quick else MEANS[dtype]
            for shape in _shapes(norm, quick):
                for mean in means:
                    for layout in LAYOUTS if len(shape) == 4 else LAYOUTS[:1]:
                        yield Case(name, shape, dtype, mean, layout)
            if norm.masks:
                yield from (Case(name, (5, 6, 7, 9), dtype, mean, mask=True) for mean in means)
            usual = (ROWS, 123) if norm.rows else (5, 6, 7, 9)
            for hard in HARD if dtype == "fp32" or not quick else ():
                shape = (0, *usual[1:]) if hard == "empty" else usual
                yield Case(name, shape, dtype, hard=hard)


def inputs(case: Case) -> Inputs:
    """Drawn from the case's own seed, and rounded to its dtype."""
    norm, dtype = NORMS[case.norm], DTYPES[case.dtype]
    draw = torch.Generator().manual_seed(len(case.what) + case.shape[-1])

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw)

    x = normal(*case.shape) + case.mean
    other = normal(*case.shape) if norm.adds else None
    x = _harden(case, norm, x.to(dtype))
    size = case.shape[-1] if norm.rows else case.shape[1]
    weight, bias = (normal(size).to(dtype) for _ in range(2))
    mask = None
    if case.mask:
        mask = torch.rand((case.shape[0], *case.shape[2:]), generator=draw) > 0.3
    if case.layout == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    grads = tuple(normal(*case.shape).to(dtype) for _ in range(2 if norm.adds else 1))
    return Inputs(
        x, weight, bias if norm.biased else None, None if other is None else other.to(dtype), mask, grads
    )


def _shapes(norm: Norm, quick: bool) -> list[tuple[int, ...]]:
    if not norm.rows:
        return list(QUICK_IMAGES if quick else IMAGES)
    return [(ROWS if dim < LONG else 3, dim) for dim in (QUICK_DIMS if quick else DIMS)]


def _harden(case: Case, norm: Norm, x: Tensor) -> Tensor:
    """One row, sample or channel is hard; the others must not notice."""
    if case.hard in ("", "empty"):
        return x
    own = x[1] if norm.rows or norm.op in ("group_norm", "instance_norm") else x[:, 1]
    if case.hard == "huge":  # the largest numbers there are, of either sign
        # The sum of two stays finite; by given statistics, so do results and gradients.
        share = 1e-4 if norm.options.get("training") is False else 0.5 if norm.adds else 1.0
        own.copy_(own.sign() * (torch.finfo(x.dtype).max * share))
    elif case.hard == "constant":
        own.fill_(3.0)
    else:
        own[(0,) * own.ndim] = float(case.hard)
    return x

"""A cell is what is measured together: one norm, one way to call it, one input; a row is its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.machine import BUSY, Clock, peak_memory
from benchmarks.timer import Budget, measure

__all__ = ["DTYPES", "OUT", "PEERS", "Call", "Cell", "Row", "backward", "run", "tensors"]

Call = Callable[[], Any]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
OUT = "out="  # the name of our second candidate, which writes into a ready buffer
PEERS = ("copy_", "eager", "compile", "onnx", "clean", "hf", "x", "weights")
# Largest distance from eager, as a share of its length: a candidate that computes something else is no peer.
# torch sums bfloat16 gradients of a LayerNorm's weight in bfloat16, and is off by up to 8 % itself.
AGREE = {"fp32": 1e-4, "bf16": 0.12}


@dataclass(frozen=True)
class Cell:
    family: str
    op: str
    way: str
    shape: tuple[int, ...]
    dtype: str = "fp32"
    threads: int = 2
    layout: str = "contiguous"
    compiled: bool = True


@dataclass(frozen=True)
class Row:
    """One line of the results: microseconds and spread of ours and of every peer that took part."""

    family: str
    op: str
    way: str
    shape: tuple[int, ...]
    dtype: str
    threads: int
    layout: str
    rounds: int
    others: float | None  # their share of the processors meanwhile
    us: dict[str, float]
    spread: dict[str, float]
    peak: dict[str, float] | None = None  # megabytes above what was there before, of a training step

    def ratio(self, peer: str) -> float | None:
        """How many times as long as ours the peer takes, as it is printed; None if it took no part."""
        return round(self.us[peer] / self.us["ours"], 2) if peer in self.us else None

    @property
    def doubt(self) -> str:
        """A question mark where others disturbed the measurement."""
        return "?" if (self.others or 0) > BUSY else ""

    @property
    def place(self) -> str:
        """Shape and layout in a word."""
        return "x".join(map(str, self.shape)) + (" cl" if self.layout == "channels_last" else "")


def run(cell: Cell, candidates: dict[str, Call], budget: Budget) -> list[Row]:
    """Measure a cell: one row, and one more if ours can also write into a ready buffer."""
    _check(cell, candidates)
    clock = Clock()
    timings = measure(candidates, budget, foreign={"onnx"} if cell.threads > 1 else ())
    others = clock.others()
    peak = {n: peak_memory(c) for n, c in candidates.items()} if cell.way == "training step" else None
    rows = []
    for ours, way in (("ours", cell.way), (OUT, f"{cell.way} {OUT}")):
        if ours not in timings:
            continue
        shown = {"ours": timings[ours], **{p: timings[p] for p in PEERS if p in timings}}
        rows.append(
            Row(
                **{k: v for k, v in asdict(cell).items() if k not in ("way", "compiled")},
                way=way,
                rounds=shown["ours"].rounds,
                others=others,
                us={name: round(t.low * 1e6, 3) for name, t in shown.items()},
                spread={name: round(t.spread, 3) for name, t in shown.items()},
                peak=peak,
            )
        )
    return rows


def tensors(cell: Cell, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Random tensors, the same in every run, in the cell's dtype; images in its layout."""
    draw = torch.Generator().manual_seed(0)
    made = [torch.randn(shape, generator=draw).to(DTYPES[cell.dtype]) for shape in shapes]
    if cell.layout == "channels_last":
        made = [t.to(memory_format=torch.channels_last) if t.ndim == 4 else t for t in made]
    return made


def backward(function: Callable[..., Tensor], inputs: list[Tensor], grad: Tensor) -> Call:
    """The gradient of a graph that is kept, with respect to all inputs."""
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in inputs]
        y = function(*leaves)
    return lambda: torch.autograd.grad(y, leaves, grad, retain_graph=True)


def _check(cell: Cell, candidates: dict[str, Call]) -> None:
    if cell.family in ("models", "nan"):
        return  # weights of their own, or NaN: what they compute is compared in the tests
    expected = _tuple(candidates["eager"]())
    for name, call in candidates.items():
        if name == "copy_":
            continue
        for got, true in zip(_tuple(call()), expected, strict=True):
            off = (got - true).float().norm() / true.float().norm().clamp_min(1e-12)
            assert off < AGREE[cell.dtype], f"{name} computes something else in {cell}: off by {off:.1e}"


def _tuple(result: Any) -> tuple[Tensor, ...]:
    return tuple(t.detach() for t in ((result,) if isinstance(result, Tensor) else result))

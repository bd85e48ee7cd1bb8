"""A cell is what is measured together: one norm, one way to call it, one input; a row is its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from normkit.bench.machine import BUSY, Clock, peak_memory
from normkit.bench.stopwatch import Turn, host_turn
from normkit.bench.timer import Budget, measure

__all__ = ["DTYPES", "OUT", "PEERS", "Call", "Cell", "Row", "backward", "run", "tensors", "unfit"]

Call = Callable[[], Any]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
OUT = "out="  # the name of our second candidate, which writes into a ready buffer
PEERS = ("copy_", "eager", "compile", "onnx", "clean", "hf", "x", "weights", "liger", "quack")
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
    device: str = "cpu"


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
    device: str = "cpu"
    median: dict[str, float] | None = None  # microseconds, too
    backend: str = ""  # what computed ours

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


def run(
    cell: Cell, candidates: dict[str, Call], budget: Budget, turn: Turn = host_turn, backend: str = ""
) -> list[Row]:
    """Measure a cell: one row, and one more if ours can also write into a ready buffer."""
    clock = Clock()
    timings = measure(candidates, budget, foreign={"onnx"} if cell.threads > 1 else (), turn=turn)
    others = clock.others() if turn is host_turn else None  # a device has processors of its own
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
                median={name: round(t.median * 1e6, 3) for name, t in shown.items()},
                backend=backend,
            )
        )
    return rows


def tensors(cell: Cell, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Random tensors, the same in every run, in the cell's dtype; images in its layout."""
    draw = torch.Generator(cell.device).manual_seed(0)
    made = [torch.randn(shape, generator=draw, device=cell.device).to(DTYPES[cell.dtype]) for shape in shapes]
    if cell.layout == "channels_last":
        made = [t.to(memory_format=torch.channels_last) if t.ndim == 4 else t for t in made]
    return made


def backward(function: Callable[..., Tensor], inputs: list[Tensor], grad: Tensor) -> Call:
    """The gradient of a graph that is kept, with respect to all inputs.

    The graph is made by the first call: a peer that fails, fails then.
    """
    graph: list[tuple[Tensor, list[Tensor]]] = []

    def call() -> tuple[Tensor, ...]:
        if not graph:
            with torch.enable_grad():
                leaves = [t.detach().requires_grad_() for t in inputs]
                graph.append((function(*leaves), leaves))
        return torch.autograd.grad(*graph[0], grad, retain_graph=True)

    return call


def unfit(cell: Cell, candidates: dict[str, Call]) -> dict[str, str]:
    """The candidates that fail, or compute something else than torch does, each with the reason."""
    expected = _tuple(candidates["eager"]())
    found = {}
    for name, call in candidates.items():
        if name not in ("copy_", "eager"):
            try:
                off = _distance(_tuple(call()), expected)
            except Exception as error:  # of a peer or its compiler: whatever it is, it takes no part
                found[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                continue
            if not off < AGREE[cell.dtype]:
                found[name] = f"it computes something else: off by {off:.1e}"
    return found


def _distance(got: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> float:
    """The largest, as a share of the length of what is expected."""
    pairs = zip(got, expected, strict=True)
    return max(
        ((a - b).float().norm() / b.float().norm().clamp_min(1e-12)).nan_to_num(float("inf")).item()
        for a, b in pairs
    )


def _tuple(result: Any) -> tuple[Tensor, ...]:
    return tuple(t.detach() for t in ((result,) if isinstance(result, Tensor) else result))

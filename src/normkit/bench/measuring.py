"""``normkit bench``: measure the grid on one device; Ctrl-C keeps what was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from normkit.bench import devices, machine, peers
from normkit.bench.cells import Cell, Row, run, unfit
from normkit.bench.grid import FAMILIES, cells_of
from normkit.bench.stopwatch import Turn, turn_on
from normkit.bench.timer import Budget

__all__ = ["Measured", "measure_grid"]

FULL, SMOKE = Budget(0.25, fewest=5, most=40), Budget(0.05, fewest=3, most=10)
OPTIONAL = ("liger", "quack")


@dataclass
class Measured:
    """Rows, and why a peer is missing from all or some of them."""

    machine: dict[str, Any]
    cells: int
    quick: bool
    rows: list[Row] = field(default_factory=list)
    done: int = 0
    skipped: dict[str, str] = field(default_factory=dict)  # peer, or peer and cell -> reason
    noise: str = ""

    @property
    def label(self) -> str:
        return "whole" if self.done == self.cells else f"interrupted after {self.done} of {self.cells} cells"

    @property
    def remark(self) -> str:
        """What has to be said beside every number, or nothing."""
        smoke = ["a smoke run"] if self.quick else []
        said = ", ".join(smoke if self.label == "whole" else [*smoke, self.label])
        return f" ({said}){self.noise}" if said else self.noise


def measure_grid(
    device: torch.device, quick: bool, show: Callable[[int, int, str], None] = lambda *_: None
) -> Measured:
    """All cells, one after the other; ``show(done, all, cell)`` is told where it is."""
    todo = cells_of(str(device), quick)
    found = Measured({**devices.describe(device), **machine.describe()}, len(todo), quick)
    for peer in OPTIONAL:
        reason = peers.missing(peer, str(device))
        if reason is not None:
            found.skipped[peer] = reason
    if quick:
        found.skipped["torch.compile"] = "--quick leaves it out"
    elif device.type == "cpu":
        found.skipped["torch.compile"] = "on a CPU only the forward of rows in fp32: compiling takes long"
    clock, turn = machine.Clock(), turn_on(device)
    with torch.no_grad():
        for cell in todo:
            show(found.done, found.cells, _name(cell))
            try:
                found.rows += _measure(cell, SMOKE if quick else FULL, turn, found.skipped)
            except KeyboardInterrupt:
                break
            found.done += 1
    show(found.done, found.cells, "")
    if device.type == "cpu":
        found.machine["used by others"], found.noise = clock.others(), clock.remark()
    return found


def _measure(cell: Cell, budget: Budget, turn: Turn, skipped: dict[str, str]) -> list[Row]:
    """The rows of a cell; what cannot be measured is written down."""
    family: Any = FAMILIES[cell.family]
    try:
        candidates = family.candidates(cell)
        unable = unfit(cell, candidates)
        skipped.update({f"{name}, {_name(cell)}": reason for name, reason in unable.items()})
        fit = {name: call for name, call in candidates.items() if name not in unable}
        if "ours" not in fit:
            return []
        return run(cell, fit, budget, turn, family.backend(cell))
    except Exception as error:  # out of memory, a driver: the other cells are worth keeping
        skipped[_name(cell)] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return []


def _name(cell: Cell) -> str:
    layout = " channels_last" if cell.layout == "channels_last" else ""
    return f"{cell.op} {cell.way} {'x'.join(map(str, cell.shape))} {cell.dtype}{layout}"

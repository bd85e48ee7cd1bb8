"""What we want to reach, as data, and what was reached."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from normkit.bench.cells import DTYPES, Row

__all__ = ["GOALS", "Goal", "Verdict", "check", "show", "where"]

ROWS = ("LayerNorm", "RMSNorm")
CHANNELS = ("GroupNorm", "InstanceNorm", "BatchNorm train", "BatchNorm eval")
MODELS = ("LM, LayerNorm", "LM, RMSNorm")
LARGE = 4096 * 768  # values
FRESH = ("forward", "backward", "add")
READY = ("forward out=", "add out=")
INTO = ("forward out=", "in place")
NAN = ("forward, one NaN", "backward, one NaN")
PAD = (0, 1, 0, 0)


@dataclass(frozen=True)
class Goal:
    """The peer takes ``at least`` bound times as long as ours; or ours ``at most`` bound times as long as it.

    It holds for every dtype, number of threads and shape of these norms, called in these ways.
    """

    text: str
    ops: tuple[str, ...]
    ways: tuple[str, ...]
    peer: str
    rule: str
    bound: float
    values: int = 0  # the fewest that an input has
    axes: int | None = None  # how many it has
    layout: str | None = None
    middle: bool = False  # the median of all cells has to reach it, not each of them

    def covers(self, row: Row) -> bool:
        return (
            row.op in self.ops
            and row.way in self.ways
            and self.peer in row.us
            and math.prod(row.shape) >= self.values
            and (self.axes is None or len(row.shape) == self.axes)
            and (self.layout is None or row.layout == self.layout)
        )

    def number(self, row: Row) -> float:
        """The ratio that the bound is for, as it is printed."""
        ours, peer = row.us["ours"], row.us[self.peer]
        return round(peer / ours if self.rule == "at least" else ours / peer, 2)

    @property
    def shown(self) -> str:
        return f"{'>=' if self.rule == 'at least' else '<='} {self.bound:g}"

    def met(self, number: float) -> bool:
        return number >= self.bound if self.rule == "at least" else number <= self.bound


GOALS = [
    Goal("one call, no grad", ROWS[:1], ("no grad",), "eager", "at most", 0.5),
    Goal("one call, with grad", ROWS[:1], ("with grad",), "eager", "at most", 0.6),
    Goal("RMSNorm, one call with grad", ROWS[1:], ("with grad",), "eager", "at least", 3),
    Goal("RMSNorm backward over torch", ROWS[1:], ("backward",), "eager", "at least", 3),
    Goal("RMSNorm forward over torch", ROWS[1:], ("forward",), "eager", "at least", 3),
    Goal("RMSNorm of heads over torch", ROWS[1:], ("forward", "backward"), "eager", "at least", 3, axes=4),
    Goal("RMSNorm out= to copy_, large", ROWS[1:], INTO, "copy_", "at most", 0.95, values=LARGE),
    Goal("LayerNorm out= to copy_, large", ROWS[:1], INTO, "copy_", "at most", 1.0, values=LARGE),
    Goal("LayerNorm over torch", ROWS[:1], ("forward", "backward"), "eager", "at least", 1),
    Goal("add + LayerNorm over torch", ROWS[:1], ("add",), "eager", "at least", 1),
    Goal("add + RMSNorm over torch", ROWS[1:], ("add",), "eager", "at least", 2),
    Goal("channels over torch", CHANNELS, FRESH, "eager", "at least", 1, layout="contiguous"),
    Goal("channels over torch, cl", CHANNELS, FRESH, "eager", "at least", 1, layout="channels_last"),
    Goal("channels over torch, the middle", CHANNELS, FRESH, "eager", "at least", 1.4, middle=True),
    Goal("one NaN", (*ROWS, *CHANNELS), NAN, "clean", "at most", 1.5),
    Goal("rows over torch.compile", ROWS, FRESH, "compile", "at least", 1),
    Goal("channels over torch.compile", CHANNELS, FRESH, "compile", "at least", 1),
    Goal("rows out= over ONNX Runtime", ROWS, READY, "onnx", "at least", 1),
    Goal("rows, fresh, over ONNX Runtime", ROWS, FRESH, "onnx", "at least", 1),
    Goal("training step over torch", MODELS, ("training step",), "eager", "at least", 1),
    Goal("training step over Hugging Face", MODELS, ("training step",), "hf", "at least", 1),
    Goal("training step over x-transformers", MODELS, ("training step",), "x", "at least", 1),
    Goal("decoding over Hugging Face", MODELS, ("decoding",), "hf", "at least", 2),
]


@dataclass(frozen=True)
class Verdict:
    goal: Goal
    dtype: str
    met: int
    cells: int
    number: float
    worst: Row


def check(rows: list[Row]) -> list[Verdict]:
    """For each goal and dtype that was measured: in how many cells it is met, and the worst of them."""
    verdicts = []
    for goal in GOALS:
        for dtype in DTYPES:
            covered = [row for row in rows if row.dtype == dtype and goal.covers(row)]
            if not covered:
                continue
            pick = min if goal.rule == "at least" else max
            worst = pick(covered, key=goal.number)
            if goal.middle:
                shown = sorted(covered, key=goal.number)[len(covered) // 2]
                verdicts.append(
                    Verdict(goal, dtype, int(goal.met(goal.number(shown))), 1, goal.number(shown), shown)
                )
                continue
            met = sum(goal.met(goal.number(row)) for row in covered)
            verdicts.append(Verdict(goal, dtype, met, len(covered), goal.number(worst), worst))
    return verdicts


def show(rows: list[Row], console: Console, remark: str = "") -> None:
    """Print every verdict."""
    table = Table(title=f"Goals{remark}", title_justify="left", title_style="bold", box=None, padding=PAD)
    table.add_column("", width=6)
    table.add_column("goal", width=30, no_wrap=True)
    table.add_column("bound", width=6)
    table.add_column("dtype", width=5)
    table.add_column("met in", width=7, justify="right")
    table.add_column("worst", width=6, justify="right")
    table.add_column("where", width=33, no_wrap=True)
    for v in check(rows):
        word = "met" if v.met == v.cells else "[red]missed[/red]"
        met, worst = f"{v.met}/{v.cells}", f"{v.number:.2f}{v.worst.doubt}"
        table.add_row(word, v.goal.text, v.goal.shown, v.dtype, met, worst, where(v))
    console.print()
    console.print(table)


def where(verdict: Verdict) -> str:
    """The worst cell, in a few letters."""
    goal, row = verdict.goal, verdict.worst
    named = [row.op] if len(goal.ops) > 1 else []
    named += [row.way] if len(goal.ways) > 1 else []
    short = " ".join(named).replace("Norm", "").replace("forward", "fwd").replace("backward", "bwd")
    return f"{short} {row.place}, {row.threads}t".strip()

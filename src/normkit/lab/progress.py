"""What is seen of a sweep: bars in a terminal, a line for every finished run that took a while elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from normkit.lab.measuring import Outcome
from normkit.lab.run import Run
from normkit.lab.studies.base import Cell

__all__ = ["Board", "duration"]

STATUS = {
    "ok": "",
    "slow": " (has learnt nothing yet)",
    "stuck": ", diverged: it learns nothing",
    "nan": ", diverged: no longer a number",
}


class Board:
    """Use it as a context; ``quiet`` shows nothing."""

    def __init__(
        self, console: Console, runs: Mapping[str, Run | Cell], done: dict[str, Outcome], quiet: bool = False
    ):
        self.console, self.runs, self.quiet = console, runs, quiet
        self.finished, self.total = len(done), len(runs)
        self.best: tuple[float, Run | Cell] | None = None
        self.alike = len({getattr(run, "task", None) for run in runs.values()}) == 1
        for key, outcome in done.items():
            self._judge(runs[key], outcome)
        self.bars: dict[str, TaskID] = {}
        self.ended = 0  # steps of finished runs
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[state]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self.live = console.is_terminal and not quiet
        self.progress = Progress(*columns, console=console, disable=not self.live)
        remaining = sum(run.last for key, run in runs.items() if key not in done)
        self.overall = self.progress.add_task("all runs", total=remaining, state=self._state())

    def __enter__(self) -> Board:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self.bars):
            self.progress.remove_task(self.bars.pop(key))
        self.progress.stop()

    def report(self, key: str, step: int, loss: float) -> None:
        """Where a run is."""
        if not self.live or key not in self.runs:
            return
        run = self.runs[key]
        if key not in self.bars:
            self.bars[key] = self.progress.add_task(f"  {run.label}", total=run.last, state="")
        self.progress.update(self.bars[key], completed=step, state=f"loss {loss:.2f}")
        self._advance()

    def finish(self, key: str, outcome: Outcome) -> None:
        """A run has ended."""
        run = self.runs[key]
        self.finished += 1
        self._judge(run, outcome)
        if key in self.bars:
            self.progress.remove_task(self.bars.pop(key))
        self.ended += run.last
        self._advance()
        brief = isinstance(run, Cell) and outcome.status == "ok" and outcome.seconds < 1
        if not self.live and not self.quiet and not brief:
            self.console.print(f"[{self.finished}/{self.total}] {run}: {_said(outcome)}")

    def _advance(self) -> None:
        tasks: dict[TaskID, Any] = {task.id: task for task in self.progress.tasks}
        going = sum(tasks[bar].completed for bar in self.bars.values())
        self.progress.update(self.overall, completed=self.ended + going, state=self._state())

    def _judge(self, run: Run | Cell, outcome: Outcome) -> None:
        loss = outcome.final_loss
        if (
            self.alike
            and loss is not None
            and not outcome.diverged
            and (self.best is None or loss < self.best[0])
        ):
            self.best = loss, run

    def _state(self) -> str:
        best = f", best {self.best[0]:.2f}: {self.best[1].label}" if self.best else ""
        return f"{self.finished}/{self.total}{best}"


def _said(outcome: Outcome) -> str:
    if outcome.status == "failed":
        lines = (outcome.error or "").strip().splitlines()
        return f"failed: {lines[-1 if lines[0].startswith('Traceback') else 0]}"
    loss = "" if outcome.final_loss is None else f"loss {outcome.final_loss:.3f}"
    return f"{loss}{STATUS[outcome.status]}, ".removeprefix(", ") + f"{outcome.seconds:.1f} s"


def duration(seconds: float) -> str:
    """In words.

    Example:
        >>> duration(40), duration(170), duration(9000)
        ('40 seconds', '3 minutes', '2.5 hours')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} seconds"
    return f"{round(seconds / 60)} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"

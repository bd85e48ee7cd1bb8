"""What is seen of a sweep: bars in a terminal, a line for every finished run that took a while elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from normkit.lab.design import Cell
from normkit.lab.intervals import as_loss
from normkit.lab.measuring import Outcome
from normkit.lab.pace import Pace
from normkit.lab.run import Run

__all__ = ["Board", "duration", "written"]


class Board:
    """Use it as a context.

    Args:
        runs: all of them, by key; ``done`` are stored already.
        workers: how many go on at a time.
        costs: seconds that each is expected to take; by default all steps are alike.
        later: the same of what comes after these.
        most: seconds that are left at most, if something comes later.
        quiet: show nothing.
    """

    def __init__(
        self,
        console: Console,
        runs: Mapping[str, Run | Cell],
        done: dict[str, Outcome],
        *,
        workers: int = 1,
        costs: Mapping[str, float] | None = None,
        later: float = 0.0,
        most: Callable[[], float] = lambda: math.inf,
        quiet: bool = False,
    ):
        self.console, self.runs, self.quiet = console, runs, quiet
        self.most = most if later else lambda: math.inf
        self.is_timed = costs is not None
        waiting = [key for key in runs if key not in done]
        work = {key: (costs or {}).get(key, runs[key].last) for key in waiting}
        self.pace = Pace(work, {key: _like(runs[key]) for key in waiting}, workers=workers, later=later)
        self.finished, self.total = len(done), len(runs)
        self.best: tuple[float, Run | Cell] | None = None
        self.alike = len({getattr(run, "task", None) for run in runs.values()}) == 1
        self.bars: dict[str, TaskID] = {}
        self.ended = 0  # steps of finished runs
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[state]}", markup=False),
            TimeElapsedColumn(),
        )
        self.live = console.is_terminal and not quiet
        self.progress = _Bars(*columns, console=console, disable=not self.live)
        remaining = sum(run.last for key, run in runs.items() if key not in done)
        for key, outcome in done.items():
            self._judge(runs[key], outcome)
        short = all(getattr(run, "until", None) is not None for run in runs.values())
        name = "short runs" if short else "all runs"
        self.overall = self.progress.add_task(name, total=remaining, state=self._state())

    def __enter__(self) -> Board:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self.bars):
            self.progress.remove_task(self.bars.pop(key))
        if self.finished == self.total:
            self.progress.update(self.overall, state=f"{self.total}/{self.total}")
        self.progress.stop()

    def report(self, key: str, step: int, loss: float) -> None:
        """Where a run is."""
        if key in self.runs:
            self.pace.advance(key, step / self.runs[key].last)
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
        self.pace.finish(key, outcome.steps / run.last if isinstance(run, Run) and outcome.steps else 1.0)
        self._judge(run, outcome)
        if key in self.bars:
            self.progress.remove_task(self.bars.pop(key))
        self.ended += run.last
        self._advance()
        brief = isinstance(run, Cell) and outcome.status == "ok" and outcome.seconds < 1
        if not self.live and not self.quiet and not brief:
            left = self._left() if self._seconds() > 0 else ""
            self.console.print(
                f"[{self.finished}/{self.total}] {run}: {_said(outcome)}{left and '; ' + left}"
            )

    def _advance(self) -> None:
        tasks: dict[TaskID, Any] = {task.id: task for task in self.progress.tasks}
        going = sum(tasks[bar].completed for bar in self.bars.values())
        self.progress.update(self.overall, completed=self.ended + going, state=self._state())

    def _seconds(self) -> float:
        return max(0.0, min(self.pace.left(), self.most()))

    def _left(self) -> str:
        """How long it still takes; where later rounds may be without some arms, at most."""
        if not self.is_timed:
            return ""
        return f"{'at most ' if self.pace.later else ''}{duration(self._seconds())} left"

    def _judge(self, run: Run | Cell, outcome: Outcome) -> None:
        loss = outcome.final_loss
        if (
            self.alike
            and loss is not None
            and not outcome.diverged
            and (self.best is None or loss < self.best[0])
        ):
            self.best = loss, run
            self.progress.best = f"best so far {loss:.2f}: {run.label}"

    def _state(self) -> str:
        return ", ".join(filter(None, (f"{self.finished}/{self.total}", self._left())))


class _Bars(Progress):
    """With a line below that has the best run."""

    best = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.best:
            yield Text(self.best, no_wrap=True, overflow="ellipsis")


def _like(run: Run | Cell) -> Run | Cell:
    """Runs with other seeds end alike."""
    return replace(run, seed=0)


def _said(outcome: Outcome) -> str:
    if outcome.error is not None:
        lines = (outcome.error or "").strip().splitlines()
        return f"{outcome.status}: {lines[-1 if lines[0].startswith('Traceback') else 0]}"
    loss = "" if outcome.final_loss is None else f"loss {as_loss(outcome.final_loss)}"
    return (
        f"{loss}{'' if outcome.status == 'ok' else f', {outcome.status}'}, ".removeprefix(", ")
        + f"{outcome.seconds:.1f} s"
    )


def duration(seconds: float) -> str:
    """In words.

    Example:
        >>> duration(90), duration(170), duration(9000)
        ('90 seconds', '3 minutes', '2.5 hours')
    """
    if seconds < 120:
        return f"{round(seconds)} seconds" if seconds >= 1.5 else "a second"
    if seconds < 600:
        return f"{round(seconds / 30) / 2:g} minutes"
    return f"{round(seconds / 60)} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def written(seconds: float) -> str:
    """As one would type it, rounded upwards.

    Example:
        >>> written(12.3), written(95), written(601), written(5000)
        ('20s', '2m', '11m', '1h24m')
    """
    if seconds <= 50:
        return f"{math.ceil(seconds / 10) * 10}s"
    minutes = math.ceil(seconds / 60)
    hours, rest = divmod(minutes, 60)
    return f"{hours}h{f'{rest}m' if rest else ''}" if hours else f"{minutes}m"

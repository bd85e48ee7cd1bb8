"""A progress bar for the verbs that measure: drawn in a terminal, silent elsewhere, gone at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["bar"]


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """Yields a function of (done, all, what is going on)."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from normkit.lab.console import plain_console

    console = plain_console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}", markup=False),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(what, total=None, now="")

        def show(done: int, total: int, now: str) -> None:
            progress.update(task, completed=done, total=total, now=now[:40])

        yield show

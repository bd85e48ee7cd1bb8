"""What is going on, for verbs whose work has no steps to count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["spinner"]


@contextmanager
def spinner() -> Iterator[Callable[[str], None]]:
    """Yields a function of what is going on. Drawn after a second, in a terminal, and gone at the end."""
    import threading

    from rich.live import Live
    from rich.spinner import Spinner

    from normkit.lab.console import plain_console, visible

    console = plain_console(stderr=True)
    spinner = Spinner("dots", "")
    live = Live(spinner, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    timer = threading.Timer(1.0, live.start)
    timer.daemon = True
    if console.is_terminal:
        timer.start()
    try:
        yield lambda words: spinner.update(text=visible(words))
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()
        live.stop()

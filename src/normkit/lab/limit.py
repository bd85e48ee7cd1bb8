"""How long a run may take: nobody waits for ever for a task that hangs."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
from collections.abc import Iterator

from normkit.errors import user_error

__all__ = ["OutOfTime", "check_limit", "time_limit", "too_long"]


class OutOfTime(BaseException):
    """Not an Exception: a task that catches those must not catch this."""


def check_limit(seconds: float | None) -> float | None:
    """A number of seconds, or none."""
    fits = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is not None and not (fits and 0 < seconds < math.inf):
        raise user_error(f"limit= got {seconds!r}.", expected="a number of seconds above 0, for example 600")
    return seconds


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Stop what goes on in this process after a while, wherever Python gets to see the system's alarm.

    That is its main thread, on systems that have alarms, and not inside of an operator that never returns:
    a worker process can be killed, this one cannot be.
    """
    if (
        seconds is None
        or not hasattr(signal, "setitimer")
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return

    def ring(*_: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, min(seconds, 1e9))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def too_long(seconds: float | None) -> str:
    """What is said of a run that was stopped."""
    return f"It took longer than its limit of {seconds:g} seconds, and was stopped."

"""What a worker does with a run, whatever has started it."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

from normkit.errors import NormkitError, user_error
from normkit.lab import own
from normkit.lab.design import Cell
from normkit.lab.limit import OutOfTime, time_limit, too_long
from normkit.lab.measuring import Outcome, measure
from normkit.lab.run import Run
from normkit.lab.task import Task, find
from normkit.lab.training import Training

__all__ = ["Job", "execute", "execute_apart", "failed", "stopped"]

OFTEN = 0.2  # seconds between two reports of progress


@dataclass(frozen=True)
class Job:
    """A run to be done, and what its numbers stand for: a worker with other data or code must not do it."""

    key: str
    run: Run | Cell
    data: str
    code: str


Report = Callable[[str, int, float], None]


def execute(job: Job, report: Report | None = None, limit: float | None = None) -> Outcome:
    """Do a run. What goes wrong inside of it is its outcome, not an error of the sweep.

    ``limit`` is for this process alone; engines that have others stop them from outside.
    """
    last = 0.0

    def now_and_then(step: int, loss: float) -> None:
        nonlocal last
        if report is not None and monotonic() - last > OFTEN:
            last = monotonic()
            report(job.key, step, loss)

    try:
        if job.run.code != job.code:
            raise user_error(f"This worker has {job.run.code}.", expected=job.code)
        with time_limit(limit):
            if isinstance(job.run, Cell):
                return job.run.perform()
            task = _task(job.run.task, job.run.options, job.data)
            _warm_up(job.run, task)
            return measure(job.run, task, report=now_and_then)
    except NormkitError as error:
        return failed(str(error))
    except OutOfTime:
        return stopped(too_long(limit))
    except SystemExit as stop:
        return failed(f"sys.exit({stop.code!r}) was called inside of the run.\n{traceback.format_exc()}")
    except Exception:
        return failed(traceback.format_exc())


_unpacked = b""


def execute_apart(job: Job, report: Report, objects: bytes = b"") -> Outcome:
    """The same in a process of its own, which Ctrl-C does not reach: an interrupt is the task's own doing.
    ``objects`` are what its names stand for."""
    global _unpacked
    try:
        if objects != _unpacked:
            own.unpack(objects)
            _unpacked = objects
        return execute(job, report)
    except BaseException:
        return failed(traceback.format_exc())


_is_warm = False


def _warm_up(run: Run, task: Task) -> None:
    """Before the first run of a process: what is loaded on first use is not to be counted as its memory."""
    global _is_warm
    if not _is_warm:
        Training(run, task).advance()
        _is_warm = True


def failed(reason: str) -> Outcome:
    return Outcome(status="failed", error=reason)


def stopped(reason: str) -> Outcome:
    return Outcome(status="stopped", error=reason)


@functools.lru_cache(maxsize=8)
def _task(name: str, options: tuple[tuple[str, Any], ...], data: str) -> Task:
    """A task keeps its data from run to run; they must be those that the sweep was started with."""
    task = find(name, dict(options))
    if task.fingerprint != data:
        raise user_error(
            f"The data of the task {name} are others now, or here, than when the sweep was started.",
            expected="the same files on every machine, from beginning to end",
        )
    return task

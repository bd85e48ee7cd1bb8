"""Processes on this machine, one torch thread each."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

from normkit.errors import user_error
from normkit.lab.limit import too_long
from normkit.lab.machine import borrowed_process, configure_worker
from normkit.lab.measuring import Outcome
from normkit.lab.worker import Job, Report, execute, execute_apart, failed

__all__ = ["LocalEngine"]

ATTEMPTS = 3  # a run whose worker dies so often is given up
TICK = 0.1  # seconds between two looks at the workers


class LocalEngine:
    """``workers`` processes; 0 does the runs in this one, which helps to debug a task, and in notebooks."""

    def __init__(
        self, workers: int | None = None, address: str | None = None, limit: float | None = None
    ) -> None:
        if address is not None:
            raise user_error(f"address= got {address!r} for the local engine.", fix="add --engine ray")
        if workers is not None and (type(workers) is not int or workers < 0):
            raise user_error(f"workers= got {workers!r}.", expected="an integer; 0 for this process alone")
        self.workers = len(_cores()) if workers is None else workers
        self.limit = limit

    def __call__(self, jobs: Sequence[Job], report: Report) -> Generator[tuple[Job, Outcome], None, None]:
        if self.workers == 0:
            with borrowed_process():
                yield from ((job, execute(job, report, self.limit)) for job in jobs)
            return
        waiting, attempts = deque(jobs), Counter[str]()
        idle = [_Slot() for _ in range(min(self.workers, len(jobs)))]
        busy: dict[Future[Outcome], tuple[_Slot, Job]] = {}
        try:
            while waiting or busy:
                while idle and waiting:
                    slot, job = idle.pop(), waiting.popleft()
                    try:
                        busy[slot.submit(job)] = slot, job
                    except BrokenProcessPool:  # it died while it had nothing to do
                        slot.stop()
                        idle.append(_Slot())
                        waiting.appendleft(job)
                done, _ = wait(busy, timeout=TICK, return_when=FIRST_COMPLETED)
                for slot, _ in busy.values():
                    slot.tell(report)
                for future in done:
                    slot, job = busy.pop(future)
                    try:
                        outcome = future.result()
                    except BrokenProcessPool:  # the worker was killed, for example for want of memory
                        slot.tell(report)
                        slot.stop()
                        if not slot.ready:
                            raise user_error(_NEVER_STARTED, fix=_GUARD) from None
                        slot = _Slot()
                        attempts[job.key] += 1
                        if attempts[job.key] < ATTEMPTS:
                            waiting.appendleft(job)
                            idle.append(slot)
                            continue
                        outcome = failed(_DIED)
                    idle.append(slot)
                    yield job, outcome
                for future, (slot, job) in list(busy.items()):
                    if slot.busy_for() > (self.limit or math.inf) and not future.done():
                        del busy[future]
                        slot.stop()
                        idle.append(_Slot())
                        yield job, failed(too_long(self.limit))
        finally:
            for slot in (*idle, *(slot for slot, _ in busy.values())):
                slot.stop()


_DIED = f"Its worker died {ATTEMPTS} times, before it could say why; was there enough memory?"
_NEVER_STARTED = "A worker died before it could start."
_GUARD = """in a script of your own, start the comparison under
       if __name__ == "__main__":
       or train in the process itself, with workers=0."""


class _Slot:
    """One worker. Each has a pool of its own, so that one that dies takes no other run along."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.progress, theirs = context.Pipe(duplex=False)
        self.theirs, self.ready = theirs, False
        self.since: float | None = None
        self.pool = ProcessPoolExecutor(1, context, initializer=_begin, initargs=(theirs,))

    def submit(self, job: Job) -> Future[Outcome]:
        self.since = monotonic() if self.ready else None
        with _uninterrupted():
            return self.pool.submit(_work, job)

    def busy_for(self) -> float:
        """Seconds since its job began; a worker that is still loading torch has not begun."""
        return 0.0 if self.since is None else monotonic() - self.since

    def tell(self, report: Report) -> None:
        """Hand on what the worker has said since."""
        with contextlib.suppress(EOFError, OSError):
            while self.progress.poll():
                news = self.progress.recv()
                if news:
                    report(*news)
                if not self.ready:
                    self.ready, self.since = True, monotonic()

    def stop(self) -> None:
        """At once: what it was doing can be done again."""
        for process in list((self.pool._processes or {}).values()):
            process.kill()
        self.pool.shutdown(wait=True, cancel_futures=True)
        self.progress.close()
        self.theirs.close()


_line: Connection | None = None


def _begin(line: Connection) -> None:
    """A worker's first act. It does not outlive the process that has started it, however that ends."""
    global _line
    _line = line
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the sweep decides what Ctrl-C means
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    configure_worker()
    line.send(())


def _work(job: Job) -> Outcome:
    def report(*news: Any) -> None:
        assert _line is not None
        with contextlib.suppress(OSError):
            _line.send(news)

    return execute_apart(job, report)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """A process that starts in here never sees Ctrl-C; this one sees it a moment later."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _cores() -> Sequence[int]:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return range(os.cpu_count() or 1)

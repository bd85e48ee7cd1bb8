"""Processes on this machine, one torch thread each."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import threading
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

from normkit.errors import user_error
from normkit.lab.devices import check_device
from normkit.lab.limit import too_long
from normkit.lab.machine import borrowed_process, configure_worker
from normkit.lab.measuring import Outcome
from normkit.lab.worker import Job, Report, execute, execute_apart, failed, stopped

__all__ = ["LocalEngine"]

ATTEMPTS = 3  # a run whose worker dies so often is given up
TICK = 0.1  # seconds between two looks at the workers


class LocalEngine:
    """``workers`` processes; 0 does the runs in this one, which helps to debug a task, and in notebooks."""

    def __init__(
        self,
        workers: int | None = None,
        address: str | None = None,
        limit: float | None = None,
        device: str = "cpu",
        objects: bytes = b"",
    ) -> None:
        if address is not None:
            raise user_error(f"address= got {address!r} for the local engine.", fix="add --engine ray")
        if workers is not None and (type(workers) is not int or workers < 0):
            raise user_error(f"workers= got {workers!r}.", expected="an integer; 0 for this process alone")
        check_device(device)
        most = len(_cores()) if device == "cpu" else 1
        if device != "cpu" and workers is not None and workers > most:
            raise user_error(
                f"workers= got {workers} with --device {device}.",
                expected="one run a device",
                fix="--engine ray shares several GPUs.",
            )
        self.workers = most if workers is None else workers
        if self.workers:
            _check_script()
        self.limit, self.objects = limit, objects
        self._idle: list[_Slot] = []

    def __call__(self, jobs: Sequence[Job], report: Report) -> Generator[tuple[Job, Outcome], None, None]:
        if self.workers == 0:
            with borrowed_process():
                yield from ((job, execute(job, report, self.limit)) for job in jobs)
            return
        waiting, attempts = deque(jobs), Counter[str]()
        idle, self._idle = self._idle, []
        idle += [_Slot(self.objects) for _ in range(min(self.workers, len(jobs)) - len(idle))]
        finished = False
        busy: dict[Future[Outcome], tuple[_Slot, Job]] = {}
        try:
            while waiting or busy:
                while idle and waiting:
                    with _uninterrupted():
                        slot, job = idle.pop(), waiting.popleft()
                        try:
                            busy[slot.submit(job)] = slot, job
                        except BrokenProcessPool:  # it died while it had nothing to do
                            slot.stop()
                            idle.append(_Slot(self.objects))
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
                        slot = _Slot(self.objects)
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
                        idle.append(_Slot(self.objects))
                        yield job, stopped(too_long(self.limit))
            finished = True
        finally:
            self._idle = idle + [slot for slot, _ in busy.values()]
            if not finished:
                self.close()

    def close(self) -> None:
        """End the workers."""
        while self._idle:
            self._idle.pop().stop()


_DIED = f"Its worker died {ATTEMPTS} times, before it could say why; was there enough memory?"
_NEVER_STARTED = "A worker died before it could start."
_GUARD = """in a script of your own, start the comparison under
       if __name__ == "__main__":
       or train in the process itself, with workers=0, as a script on standard input has to."""


def _check_script() -> None:
    """A worker runs the script that has started it, up to here. One without a guard ends there, and says
    nothing: the first process does."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(1)
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    by_path = getattr(main, "__spec__", None) is None  # what a module's name leads to needs no file
    if by_path and file is not None and not os.path.exists(file):
        raise user_error(f"Workers cannot start from {file}.", expected="a script in a file", fix=_GUARD)


class _Slot:
    """One worker. Each has a pool of its own, so that one that dies takes no other run along."""

    def __init__(self, objects: bytes) -> None:
        context = multiprocessing.get_context("spawn")
        self.progress, theirs = context.Pipe(duplex=False)
        self.theirs, self.ready = theirs, False
        self.since: float | None = None
        self.pool = ProcessPoolExecutor(1, context, initializer=_begin, initargs=(theirs, objects))

    def submit(self, job: Job) -> Future[Outcome]:
        self.since = monotonic() if self.ready else None
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
_objects = b""


def _begin(line: Connection, objects: bytes) -> None:
    """A worker's first act. It does not outlive the process that has started it, however that ends."""
    global _line, _objects
    _line, _objects = line, objects
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

    return execute_apart(job, report, _objects)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until this is done: half a submission would never end. A process that starts in
    here never sees them.

    Blocking them is not enough for this process. Another thread may take a signal, and Python then runs its
    handler in the main thread, wherever that is.
    """
    came: list[int] = []
    handlers: dict[signal.Signals, Any] = {}
    is_main = threading.current_thread() is threading.main_thread()
    can_block = hasattr(signal, "pthread_sigmask")
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING) if can_block else set()
    try:
        for number in _ENDING if is_main else ():
            handlers[number] = signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        if can_block:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for again in dict.fromkeys(came):
            signal.raise_signal(again)


_ENDING = (signal.SIGINT, signal.SIGTERM)


def _cores() -> Sequence[int]:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return range(os.cpu_count() or 1)

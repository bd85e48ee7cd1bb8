"""``compare``: plan, train what is missing, and say what came out."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console

from normkit.errors import NormkitError, user_error
from normkit.lab import halving, machine
from normkit.lab.comparison import Comparison, needs
from normkit.lab.console import plain_console
from normkit.lab.engines import Engine
from normkit.lab.engines import engine as engine_named
from normkit.lab.limit import OutOfTime, time_limit, too_long
from normkit.lab.measuring import EVALUATIONS, Outcome, measure
from normkit.lab.plan import Plan, make_plan
from normkit.lab.progress import Board, duration
from normkit.lab.run import Run
from normkit.lab.store import Store
from normkit.lab.task import Task, explained
from normkit.lab.training import Training
from normkit.lab.worker import Job

__all__ = ["compare", "compare_settings", "perform"]

START = 5.0  # seconds until workers are there


def compare(
    task: str = "text",
    *,
    data: str | os.PathLike[str] | None = None,
    norm: Any = None,
    placement: Any = None,
    lr: Any = None,
    seeds: Any = 3,
    depth: Any = None,
    width: Any = None,
    batch_size: Any = None,
    warmup: Any = None,
    steps: int | None = None,
    schedule: str | None = None,
    out: str | os.PathLike[str] | None = None,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    limit: float | None = None,
    prune: bool = False,
    progress: bool = True,
    **fields: Any,
) -> Comparison:
    """Train every combination, and compare: which norm, where, at which learning rate?

    Args:
        task: "text", "digits", "lines", "stream", or ``package.module:Class`` of your own.
        data: a file, folder or glob, for tasks that read text.
        norm, placement: names, or ``package.module:name``; one, several, or a string with commas.
        lr, depth, width, batch_size, warmup: numbers, or ranges like "1e-3:1e-1:5".
        seeds: how many, or which.
        steps, schedule: of every run.
        out: the folder of the results; what is in it is not done again.
        engine, address, workers: "local" processes or "ray"; 0 workers stay in this process.
        limit: seconds that a run may take; one that takes longer is stopped, and counts as failed.
        prune: successive halving: short runs first, the better half goes on.
        progress: show it.
        fields: of the task, one value or several each.

    Returns:
        a :class:`Comparison`; its page is ``report.html`` in the folder.
    """
    settings = {
        **{"task": task, "data": None if data is None else os.fspath(data), "norm": norm},
        **{"placement": placement, "lr": lr, "seeds": seeds, "depth": depth, "width": width},
        **{"batch_size": batch_size, "warmup": warmup, "steps": steps, "schedule": schedule},
        "set": fields or None,
    }
    said = ", ".join(f"{n}={v!r}" for n, v in settings.items() if v is not None)
    return compare_settings(
        settings,
        f"normkit.lab.compare({said})",
        out=out,
        engine=engine,
        address=address,
        workers=workers,
        limit=limit,
        prune=prune,
        progress=progress,
    )


def compare_settings(
    settings: Mapping[str, Any],
    command: str,
    *,
    out: str | os.PathLike[str] | None = None,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    limit: float | None = None,
    prune: bool = False,
    progress: bool = True,
) -> Comparison:
    """The same with settings as a file has them, and the command that the page shows."""
    for name in ("scipy", "pandas", "plotly"):
        needs(name)  # better now than after the training
    if out is not None and not os.fspath(out):
        raise user_error("--out got an empty name.", expected="a folder")
    plan = make_plan(settings)
    chosen = engine_named(engine, workers=workers, address=address, limit=limit)
    folder = Path(out) if out is not None else _folder(plan)
    console = plain_console(soft_wrap=True, quiet=not progress)
    sweep = _Sweep(plan, folder, console, prune, limit)
    with Store(folder, write=True) as store:
        about = sweep.about(command, engine, chosen)
        sweep.run(store, chosen, about)
        about |= {"finished": _now(), "workers": chosen.workers}
        store.amend(about, sweep.keys)
        result = Comparison(about, [(r, o) for _, r, o in store.runs(sweep.keys)], folder)
        result.save()
    return result


@dataclass
class _Sweep:
    """The jobs of a comparison, and where they stand."""

    plan: Plan
    folder: Path
    console: Console
    prune: bool
    limit: float | None

    def __post_init__(self) -> None:
        self.keys: list[str] = []
        name = self.plan.runs[0].task
        self.tasks = {run.options: run.build_task() for run in self.plan.runs}
        with explained(f"The data of the task {name}", name), self.in_time():
            self.data = {options: task.fingerprint for options, task in self.tasks.items()}
        if self.prune and type(next(iter(self.tasks.values()))).advance is not Task.advance:
            raise user_error(
                f"--prune came with the task {name}, whose data change with time.",
                expected="a task whose short runs say something about long ones",
            )

    def job(self, run: Run) -> Job:
        data = self.data[run.options]
        return Job(run.key(data), run, data, run.code)

    def about(self, command: str, name: str, chosen: Engine) -> dict[str, Any]:
        """What the page says of the sweep, as plain data."""
        task = self.tasks[self.plan.runs[0].options]
        return {
            "command": command,
            "task": self.plan.runs[0].task,
            "title": task.title or type(task).__name__,
            "loss_name": task.loss_name,
            "unit": task.unit,
            "source": [t.source for t in self.tasks.values()],
            "data": sorted(set(self.data.values())),
            "problem": list(task.problem),
            "axes": {name: list(values) for name, values in self.plan.axes.items()},
            "common": _common(self.plan.runs),
            "runs": len(self.plan.runs),
            "code": self.plan.runs[0].code,
            "machine": machine.describe(),
            "engine": name,
            "workers": chosen.workers,
            "prune": list(halving.RUNGS) if self.prune else None,
            "full_steps": self.plan.steps,
            "started": _now(),
        }

    def run(self, store: Store, engine: Engine, about: dict[str, Any]) -> None:
        runs = halving.first_rung(self.plan.runs) if self.prune else list(self.plan.runs)
        self.announce(store, engine, runs)
        self.keys = [self.job(run).key for run in runs]
        store.begin(about, self.keys)
        started = time.monotonic()
        results = self.do(store, engine, runs)
        for rung in range(1, len(halving.RUNGS) if self.prune else 1):
            runs = halving.next_rung(self.plan.runs, results, rung)
            self.keys += [self.job(run).key for run in runs]
            store.amend(about, self.keys)
            results = self.do(store, engine, runs)
        about["seconds"] = time.monotonic() - started

    def announce(self, store: Store, engine: Engine, runs: Sequence[Run]) -> None:
        """The plan, before anything is done: how many runs, how long, and where to."""
        jobs = {self.job(run).key: run for run in runs}
        done = store.done(jobs)
        missing = [run for key, run in jobs.items() if key not in done]
        seconds = self.estimate(missing) / max(1, min(engine.workers, len(missing) or 1))
        if self.prune:  # later rungs cost as much a step; their runs are not known yet
            seconds *= halving.steps(self.plan.runs) / max(1, sum(run.last for run in runs))
        axes = ", ".join(f"{len(v)} {name}" for name, v in self.plan.axes.items())
        steps = self.plan.runs[0].steps
        say = self.console.print
        say(f"plan     {len(self.plan.runs)} runs{f' ({axes})' if axes else ''} of {steps} steps")
        if self.prune:
            say(f"         pruned: {len(runs)} of {runs[0].last} steps first; the better half goes on, twice")
        for task in self.tasks.values():
            say(f"data     {task.source}")
        if done:
            say(f"stored   {len(done)} of them are done already")
        if missing:
            workers = f"{engine.workers} workers" if engine.workers > 1 else "one worker"
            say(f"time     about {duration(seconds + START)} with {workers}")
        say(f"results  {self.folder}\n")

    def estimate(self, runs: Sequence[Run]) -> float:
        """Seconds of one core, from a few steps of one arm of each size.

        It also finds out before the start if an arm cannot be trained: one of each size is measured as a
        whole, if only for two steps, and all others make a step.
        """
        once: dict[Run, float] = {}
        tried: set[Run] = set()
        total = 0.0
        with machine.borrowed_process():
            for run in runs:
                arm = replace(run, seed=0, lr=1e-3, until=None)
                size = replace(arm, norm="layer", placement="pre")
                task = self.tasks[run.options]
                with explained(str(run), run.task), self.in_time():
                    if size not in once:
                        measure(replace(arm, until=2), task)
                        once[size] = _seconds_a_step(Training(arm, task))
                    elif arm not in tried:
                        Training(arm, task).advance()
                    tried.add(arm)
                total += once[size] * (run.last + EVALUATIONS + 4)
        return total

    @contextlib.contextmanager
    def in_time(self) -> Iterator[None]:
        """What is done before the start has the limit of a run, too."""
        try:
            with time_limit(self.limit):
                yield
        except OutOfTime:
            raise NormkitError(too_long(self.limit)) from None

    def do(self, store: Store, engine: Engine, runs: Sequence[Run]) -> list[tuple[Run, Outcome]]:
        return perform(store, engine, [self.job(run) for run in runs], self.console)


def perform(
    store: Store, engine: Engine, wanted: Sequence[Job], console: Console
) -> list[tuple[Any, Outcome]]:
    """Do what is missing, and keep it; all results of these jobs, in their order."""
    jobs = {job.key: job for job in wanted}
    done = store.done(jobs)
    waiting = [job for key, job in jobs.items() if key not in done]
    if waiting:
        board = Board(console, {k: j.run for k, j in jobs.items()}, done, console.quiet)
        try:
            with board, contextlib.closing(engine(waiting, board.report)) as work:
                for job, outcome in work:
                    store.put(job.key, job.run, job.data, job.code, outcome)
                    board.finish(job.key, outcome)
        except (KeyboardInterrupt, NormkitError):
            console.print(
                f"\nStopped. {len(store.done(jobs))} of {len(jobs)} runs are stored in {store.folder}; "
                "the same command does the rest."
            )
            raise
    return [(run, outcome) for _, run, outcome in store.runs(jobs)]


def _seconds_a_step(training: Training) -> float:
    times = []
    for _ in range(4):
        start = time.perf_counter()
        training.advance()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def _common(runs: Sequence[Run]) -> dict[str, Any]:
    """What all runs share."""
    configs = [{**run.config(), **dict(run.options)} for run in runs]
    names = [n for n in configs[0] if n not in ("options", "until", "seed", "data")]
    return {n: configs[0][n] for n in names if all(c[n] == configs[0][n] for c in configs)}


def _folder(plan: Plan) -> Path:
    """Named by task and data, so that a second comparison on the same data finds the first one's runs."""
    run = plan.runs[0]
    data = dict(run.options).get("data")
    name = run.task.replace(":", "-").replace(".", "-")
    if data:
        stem = Path(data).stem or "data"
        name += "-" + "".join(c if c.isalnum() or c in "-_" else "_" for c in stem)
    return Path("runs") / name


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")

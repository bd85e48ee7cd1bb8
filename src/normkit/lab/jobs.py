"""The runs of a comparison as jobs: what they are about, in which rounds they are done, and doing them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console

from normkit.errors import NormkitError, user_error
from normkit.lab import budget, halving, machine
from normkit.lab.analysis import Summary, summarise
from normkit.lab.costs import Costs
from normkit.lab.engines import Engine
from normkit.lab.halving import Results
from normkit.lab.judging import copied_rows
from normkit.lab.limit import OutOfTime, time_limit, too_long
from normkit.lab.measuring import Outcome
from normkit.lab.plan import Plan
from normkit.lab.progress import Board, duration
from normkit.lab.run import Run
from normkit.lab.store import Store
from normkit.lab.task import Task, explained
from normkit.lab.task_check import check_task
from normkit.lab.worker import Job

__all__ = ["START", "Sweep", "asked", "now", "perform"]

START = 5.0  # seconds until workers are there
OFTEN = 5.0  # seconds between two notes of the time that was spent


class Sweep:
    """The runs of a comparison, and where they stand.

    Args:
        prune: successive halving.
        seconds: the budget, if there is one.
        limit: of a run, in seconds.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        console: Console,
        *,
        prune: bool,
        seconds: float | None,
        limit: float | None,
    ) -> None:
        self.plan, self.folder, self.console = plan, folder, console
        self.prune, self.seconds, self.limit = prune or seconds is not None, seconds, limit
        self.keys: list[str] = []
        self.stored: set[str] = set()
        self.slowness = 1.0
        self.spent = 0.0  # in earlier sittings
        self.started = time.monotonic()
        name = plan.runs[0].task
        self.tasks = {run.options: run.build_task() for run in plan.runs}
        with explained(f"The data of the task {name}", name), self.in_time():
            for task in self.tasks.values():
                check_task(task, plan.runs[0].seed)
            self.data = {options: task.fingerprint for options, task in self.tasks.items()}
            self._try_divisions()
            is_own = not type(self.task).__module__.startswith("normkit.")  # ours look for copies themselves
            self.copied = max(map(copied_rows, self.tasks.values())) if is_own else 0.0
            self.sources = list(dict.fromkeys(task.source for task in self.tasks.values()))
        self.costs = Costs(self.tasks, self.in_time)
        if self.prune and type(self.task).advance is not Task.advance:
            flag = "--budget" if seconds else "--prune"
            raise user_error(
                f"{flag} came with the task {name}, whose data change with time.",
                expected="a task whose short runs say something about long ones",
                fix="--steps instead." if seconds else None,
            )

    def _try_divisions(self) -> None:
        """Whether each seed can divide the data, as far as that is quickly found out."""
        start = time.monotonic()
        for seed in dict.fromkeys(run.seed for run in self.plan.runs):
            for task in self.tasks.values():
                if type(task).split is not Task.split and time.monotonic() - start < START:
                    task.split(seed).held_out()

    @property
    def task(self) -> Task:
        return self.tasks[self.plan.runs[0].options]

    @functools.cached_property
    def problem(self) -> list[str]:
        """Axes that make it another problem: those that the task names, and those that change its data."""
        if isinstance(self.task.problem, str):
            raise user_error(
                f"problem of the task is {self.task.problem!r}.",
                expected="a tuple of names of fields",
                fix=f"problem = ({self.task.problem!r},)",
            )
        return [name for name in self.plan.axes if name in self.task.problem or self._changes_data(name)]

    def _changes_data(self, field: str) -> bool:
        """Do the data differ between tasks that differ in this field alone?"""
        found: dict[Any, set[str]] = defaultdict(set)
        for options, fingerprint in self.data.items():
            if field in dict(options):
                found[tuple((name, value) for name, value in options if name != field)].add(fingerprint)
        return any(len(fingerprints) > 1 for fingerprints in found.values())

    @property
    def elapsed(self) -> float:
        """Seconds, those of earlier sittings included."""
        return self.spent + time.monotonic() - self.started

    def job(self, run: Run) -> Job:
        data = self.data[run.options]
        return Job(run.key(data), run, data, run.code)

    def about(self, command: str, name: str, chosen: Engine) -> dict[str, Any]:
        """What the page says of the sweep, as plain data."""
        task = self.task
        return {
            "command": command,
            "task": self.plan.runs[0].task,
            "title": task.title or type(task).__name__,
            "loss_name": task.loss_name,
            "unit": task.unit,
            "source": self.sources,
            "data": sorted(set(self.data.values())),
            "problem": list(dict.fromkeys((*self.problem, *task.problem))),
            "axes": {name: list(values) for name, values in self.plan.axes.items()},
            "common": _common(self.plan.runs),
            "runs": len(self.plan.runs),
            "code": self.plan.runs[0].code,
            "machine": machine.describe(),
            "engine": name,
            "workers": chosen.workers,
            "prune": list(halving.rungs_of(self.plan.runs)) if self.prune else None,
            "budget": self.seconds,
            "full_steps": self.plan.steps,
            "copied": self.copied,
            "started": now(),
        }

    def run(self, store: Store, engine: Engine, about: dict[str, Any]) -> None:
        """All rounds. The time is kept all along: whoever goes on later adds to it."""
        self.announce(store, engine)
        rounds = self.rounds(engine)
        runs = next(rounds)
        store.begin({**about, "seconds": self.elapsed}, [])
        while True:
            self.keys += [key for run in runs if (key := self.job(run).key) not in self.keys]
            about["seconds"] = self.elapsed
            store.amend(about, self.keys)
            results = self.do(store, engine, runs, about)
            try:
                runs = rounds.send(results)
            except StopIteration:
                break
        about["seconds"] = self.elapsed

    def rounds(self, engine: Engine) -> Generator[list[Run], Results, None]:
        if self.seconds is not None:
            seconds = (1 - budget.LAST) * self.seconds
            return budget.rounds(
                self.plan.runs,
                self.problem,
                seconds=lambda: (seconds - self.elapsed) * max(1, engine.workers),
                cost=self.cost,
                judge=self.judge,
                say=self.console.print,
            )
        if self.prune:
            return halving.rounds(self.plan.runs, self.problem)
        return _at_once(self.plan.runs)

    def judge(self, results: Results) -> Summary | None:
        return summarise(results, list(self.plan.axes), self.task.loss_name, self.problem)

    def cost(self, run: Run) -> float:
        """Seconds of one worker, at the pace of this machine so far; nothing for what is stored."""
        return 0.0 if self.job(run).key in self.stored else self.costs.of(run) * self.slowness

    def announce(self, store: Store, engine: Engine) -> None:
        """The plan, before anything is done: how many runs, how long, and where to."""
        plan = self.plan
        jobs = {self.job(run).key: run for run in plan.runs}
        self.stored = set(store.done(store.keys()))
        done = self.stored & set(jobs)
        missing = [run for key, run in jobs.items() if key not in done]
        self.costs.try_all(missing)
        self.costs.share = self.costs.prepare * len({run.seed for run in plan.runs}) / len(plan.runs)
        self.costs.share *= max(1, engine.workers)
        axes = ", ".join(f"{len(v)} {name}" for name, v in plan.axes.items())
        say = self.console.print
        say(f"plan     {len(plan.runs)} runs{f' ({axes})' if axes else ''} of {plan.runs[0].steps} steps")
        if self.prune:
            rungs = ", ".join(f"{share:.0%}" for share in halving.rungs_of(plan.runs)[:-1])
            say(f"         short ones first ({rungs}, one seed): what cannot win goes no further")
        for source in self.sources:
            say(f"data     {source}")
        if done:
            say(f"stored   {len(done)} of them are done already")
        if missing:
            workers = f"{engine.workers} workers" if engine.workers > 1 else "one worker"
            say(f"time     {self.expected(missing, engine)} with {workers}")
        say(f"results  {self.folder}\n")

    def expected(self, missing: Sequence[Run], engine: Engine) -> str:
        if self.seconds is not None:
            left = self.seconds - self.spent
            return f"a budget of {duration(self.seconds)}" + (
                f", {duration(left)} left" if self.spent else ""
            )
        total = (
            budget.planned_cost(missing, self.costs.of, missing[0].steps)
            if self.prune
            else sum(map(self.costs.of, missing))
        )
        return f"about {duration(START + total / max(1, min(engine.workers, len(missing))))}"

    def later(self, runs: Sequence[Run]) -> float:
        """The planned work of the rounds after these, if no arm is dropped."""
        shortest = min(run.last for run in runs)
        if not self.prune or all(run.until is None for run in runs):
            return 0.0
        arms = {halving.arm_of(run) for run in runs}
        rest = [run for run in self.plan.runs if halving.arm_of(run) in arms]
        whole = budget.planned_cost(rest, self.costs.of, rest[0].steps)
        rungs = [share for share in halving.rungs_of(rest) if math.ceil(share * rest[0].steps) <= shortest]
        before = budget.planned_cost(rest, self.costs.of, rest[0].steps, rungs=len(rungs))
        return max(0.0, whole - before)

    @contextlib.contextmanager
    def in_time(self) -> Iterator[None]:
        """What is done before the start has the limit of a run, too."""
        try:
            with time_limit(self.limit):
                yield
        except OutOfTime:
            raise NormkitError(too_long(self.limit)) from None

    def do(self, store: Store, engine: Engine, runs: Sequence[Run], about: dict[str, Any]) -> Results:
        last = time.monotonic()

        def note() -> None:
            nonlocal last
            if time.monotonic() - last > OFTEN:
                last = time.monotonic()
                store.amend({**about, "seconds": self.elapsed}, self.keys)

        self.costs.try_all(runs)
        jobs = [self.job(run) for run in runs]
        costs = {job.key: self.costs.of(run) for job, run in zip(jobs, runs, strict=True)}
        try:
            results, slowness = perform(
                *(store, engine, jobs, self.console),
                costs=costs,
                later=self.later(runs),
                most=lambda: math.inf if self.seconds is None else self.seconds - self.elapsed,
                note=note,
            )
        except BaseException:
            with contextlib.suppress(NormkitError):  # a full disk is said once
                store.amend({**about, "seconds": self.elapsed}, self.keys)
            raise
        self.slowness = slowness
        self.stored |= set(costs)
        return results


def _at_once(runs: Sequence[Run]) -> Generator[list[Run], Results, None]:
    yield list(runs)


def perform(
    store: Store,
    engine: Engine,
    wanted: Sequence[Job],
    console: Console,
    *,
    costs: Mapping[str, float] | None = None,
    later: float = 0.0,
    most: Callable[[], float] = lambda: math.inf,
    note: Callable[[], None] = lambda: None,
) -> tuple[list[tuple[Any, Outcome]], float]:
    """Do what is missing, and keep it; all results of these jobs, in their order, and how much slower than
    their costs they were.

    Args:
        costs: seconds that each is expected to take, by key; ``later`` that of what comes after.
        most: seconds that are left at most, where later rounds fit into what is left.
        note: called after each run.
    """
    jobs = {job.key: job for job in wanted}
    done = store.done(jobs)
    waiting = [job for key, job in jobs.items() if key not in done]
    slowness = 1.0
    if waiting:
        board = Board(
            console,
            {k: j.run for k, j in jobs.items()},
            done,
            workers=engine.workers,
            costs=costs,
            later=later,
            most=most,
            quiet=console.quiet,
        )
        try:
            with board, contextlib.closing(engine(waiting, board.report)) as work:
                for job, outcome in work:
                    store.put(job.key, job.run, job.data, job.code, outcome)
                    board.finish(job.key, outcome)
                    note()
        except (KeyboardInterrupt, NormkitError):
            console.print(
                f"\nStopped. {len(store.done(jobs))} of {len(jobs)} runs are stored in {store.folder}; "
                "the same command does the rest."
            )
            raise
        slowness = board.pace.slowness
    return [(run, outcome) for _, run, outcome in store.runs(jobs)], slowness


def asked(settings: Mapping[str, Any], runs: Sequence[Run], data: Mapping[Any, str], prune: bool) -> str:
    """What is wanted, as a hash: the same again goes on with the same plan, and adds to its time."""
    configs = [run.config() for run in runs]
    is_budget = settings.get("budget") is not None  # how much of one does not matter
    code = sorted({run.code for run in runs})
    text = json.dumps([configs, is_budget, prune, code, sorted(data.values())])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _common(runs: Sequence[Run]) -> dict[str, Any]:
    """What all runs share."""
    configs = [{**run.config(), **dict(run.options)} for run in runs]
    names = [n for n in configs[0] if n not in ("options", "until", "seed", "data")]
    return {n: configs[0][n] for n in names if all(c[n] == configs[0][n] for c in configs)}


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")

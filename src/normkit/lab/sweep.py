"""``compare``: plan, train what is missing, and say what came out."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normkit.errors import NormkitError, user_error
from normkit.lab import budget as budgets
from normkit.lab import own
from normkit.lab.comparison import Comparison
from normkit.lab.console import plain_console
from normkit.lab.engines import Engine
from normkit.lab.engines import engine as engine_named
from normkit.lab.extras import needs
from normkit.lab.jobs import START, Sweep, asked, now
from normkit.lab.plan import Plan, check_warm_up, make_plan
from normkit.lab.progress import duration, written
from normkit.lab.run import Run
from normkit.lab.store import Store
from normkit.lab.task import task_class

__all__ = ["compare", "compare_settings"]


def compare(
    task: Any = "text",
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
    budget: str | float | None = None,
    device: str | None = None,
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
        task: "text", "digits", "lines", "stream", "series"; one of your own, a :class:`Task` or its class; or
            ``package.module:Class``.
        data: a file, folder or glob, for tasks that read text.
        norm: names, classes or functions of dim, or ``package.module:name``; one, several, or a string with
            commas.
        placement: names, :class:`normkit.Placement`, functions, or ``package.module:name``, likewise.
        lr, depth, width, batch_size, warmup: numbers, or ranges like "1e-3:1e-1:5".
        seeds: how many, or which.
        steps, schedule: of every run.
        budget: a time instead of steps, "10m" or seconds: steps and learning rates are planned for this
            machine, what cannot win is pruned, and what is left goes into seeds where arms are close.
        device: "cpu", "cuda", "cuda:1" or "mps"; one run a device, several GPUs with ``engine="ray"``.
        out: the folder of the results; what is in it is not done again.
        engine, address, workers: "local" processes or "ray"; 0 workers stay in this process.
        limit: seconds that a run may take; one that takes longer is stopped, and counts as stopped.
        prune: successive halving: short runs first, and what cannot win goes no further.
        progress: show it.
        fields: of the task, one value or several each.

    Returns:
        a :class:`Comparison`; its page is ``report.html`` in the folder.
    """
    settings = {
        **{"task": task, "data": None if data is None else os.fspath(data), "norm": norm},
        **{"placement": placement, "lr": lr, "seeds": seeds, "depth": depth, "width": width},
        **{"batch_size": batch_size, "warmup": warmup, "steps": steps, "schedule": schedule},
        **{"budget": budget, "device": device, "set": fields or None},
    }
    how: dict[str, Any] = {"out": None if out is None else os.fspath(out), "address": address, "limit": limit}
    how |= {"engine": engine if engine != "local" else None, "workers": workers, "prune": prune or None}
    given = {**settings, "set": None, **fields, **how}
    said = ", ".join(f"{n}={_typed(v)}" for n, v in given.items() if v is not None)
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
    seconds = _budget(settings, plan, prune)
    if seconds is None:
        check_warm_up(plan.runs)
    names = {name for run in plan.runs for name in (run.task, run.norm, run.placement)}
    objects = own.pack(names) if workers != 0 else b""
    device = plan.runs[0].device
    chosen = engine_named(
        engine, workers=workers, address=address, limit=limit, device=device, objects=objects
    )
    folder = Path(out) if out is not None else _folder(plan)
    console = plain_console(soft_wrap=True, quiet=not progress)
    with Store(folder, write=True) as store, contextlib.closing(chosen):
        sweep = Sweep(plan, folder, console, prune=prune, seconds=seconds, limit=limit)
        mark = asked(settings, plan.runs, sweep.data, prune)
        planned, sweep.spent, stored = _earlier(store, mark, seconds, folder)
        if stored is not None:
            console.print(f"stored   all of it is done already, in {folder}\n")
            stored.save()
            return stored
        if seconds is not None:
            planned = planned or _within(settings, sweep, chosen, seconds)
            sweep.plan = make_plan({**settings, **planned})
            check_warm_up(sweep.plan.runs)
        about = {**sweep.about(command, engine, chosen), "asked": mark, "planned": planned}
        sweep.run(store, chosen, about)
        about |= {"finished": now(), "workers": chosen.workers}
        store.amend(about, sweep.keys)
        result = Comparison(about, [(r, o) for _, r, o in store.runs(sweep.keys)], folder)
    result.save()
    return result


def _earlier(
    store: Store, mark: str, seconds: float | None, folder: Path
) -> tuple[dict[str, Any] | None, float, Comparison | None]:
    """Of the sweep before, if it was the same: its plan, the time that it took, and, where nothing is left to
    be done, all of it. A longer budget keeps the plan if seeds are all that was missing."""
    about, keys = store.newest() or ({}, [])
    if about.get("asked") != mark:
        return None, 0.0, None
    planned, spent = about["planned"], about.get("seconds", 0.0)
    if seconds is None or "finished" not in about:
        return planned, spent, None
    before = Comparison(about, [(r, o) for _, r, o in store.runs(keys)], folder)
    if seconds <= (about["budget"] or 0.0):
        return planned, spent, before if set(keys) <= set(store.done(keys)) else None
    with contextlib.suppress(NormkitError):  # all of it failed
        if any("seeds" in answer.change for answer in before.summary.answers):
            return planned, spent, None
    return None, 0.0, None


def _budget(settings: Mapping[str, Any], plan: Plan, prune: bool) -> float | None:
    """The seconds that were asked for, or that the task has by default."""
    given, steps = settings.get("budget"), settings.get("steps")
    if given is not None and steps is not None:
        raise user_error(
            f"--budget {given} came with --steps {steps}.",
            expected="one of them",
            fix="leave --steps out: a budget plans them.",
        )
    usual = task_class(plan.runs[0].task).defaults.get("budget")
    if given is None and (steps is not None or prune or usual is None):
        return None
    return budgets.budget_seconds(usual if given is None else given)


def _within(settings: Mapping[str, Any], sweep: Sweep, engine: Engine, seconds: float) -> dict[str, Any]:
    """Steps and learning rates that a budget is enough for, on this machine."""
    runs, workers = sweep.plan.runs, max(1, engine.workers)
    usual = task_class(runs[0].task).defaults.get("steps", Run.steps)
    sweep.costs.try_all(runs)
    left = (seconds - sweep.elapsed - START) * workers
    rates = sorted({run.lr for run in runs})
    most = budgets.most_steps(runs[0].task)
    steps = budgets.fitting_steps(runs, sweep.costs.of, left, most)
    if settings.get("lr") is None and steps < usual / 4 and len(rates) > 3:
        rates = budgets.fewer_rates(rates)
        runs = tuple(run for run in runs if run.lr in rates)
        steps = budgets.fitting_steps(runs, sweep.costs.of, left, most)
    if steps < budgets.FEWEST:
        least = written(budgets.least_seconds(runs, sweep.costs.of) / workers + sweep.elapsed - sweep.spent)
        seeds = len({run.seed for run in runs})
        arms = len(runs) // len(rates) // seeds
        raise user_error(
            f"--budget: {duration(seconds)} will not do for {_count(arms, 'arm')} at "
            f"{_count(len(rates), 'learning rate')}, with {_count(seeds, 'seed')}.",
            expected=f"about {least} on this machine, or fewer arms or seeds",
            fix=f"--budget {least}",
        )
    return {"steps": steps, "lr": rates}


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _typed(value: Any) -> str:
    """As one would type it: an object by its name, and as ... if it has none."""
    if isinstance(value, list | tuple | range):
        return f"[{', '.join(map(_typed, value))}]"
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a number of numpy's or torch's
        value = value.item()
    if isinstance(value, str | int | float | bool | None):
        return repr(value)
    name = getattr(value, "__name__", "")
    return name if name.isidentifier() else "..." if "<" in repr(value) else repr(value)


def _folder(plan: Plan) -> Path:
    """Named by task and data, so that a second comparison on the same data finds the first one's runs."""
    run = plan.runs[0]
    data = dict(run.options).get("data")
    name = own.short_name(run.task).replace(":", "-").replace(".", "-")
    if data:
        stem = Path(data).stem or "data"
        name += "-" + "".join(c if c.isalnum() or c in "-_" else "_" for c in stem)
    return Path("runs") / name

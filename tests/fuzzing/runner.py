"""Many cases in several processes. What is done is kept; a case that kills its process is found."""

from __future__ import annotations

import json
import multiprocessing
import warnings
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fuzzing.cases import draw
from fuzzing.judging import judge
from fuzzing.verdict import Failure
from normkit.kernels.triton.versions import INTERPRETED

CHUNK = 10 if INTERPRETED else 250
BUILD = Path(__file__).parents[2] / "build"
PRINTED = 3  # of a norm and a promise; further failures are counted, and are in the state file


def run(seed: int, start: int, stop: int) -> dict[str, Any]:
    """The failures of a range of cases, and the largest share of each bound that was used."""
    failures: list[tuple[str, str, str]] = []
    worst: dict[str, float] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for index in range(start, stop):
            verdict = judge(draw(seed, index))
            failures += [(f.case, f.what, f.detail) for f in verdict.failures]
            for what, share in verdict.worst.items():
                worst[what] = max(worst.get(what, 0.0), share)
    return {"failures": failures, "worst": worst}


def prepare(threads: int) -> None:
    torch.set_num_threads(threads)
    if INTERPRETED:
        from interpreting import triton_first  # imports Triton

        triton_first()


class State:
    """What has been done: chunks by their first case, and what they gave."""

    def __init__(self, seed: int, *, resume: bool) -> None:
        self.path = BUILD / f"fuzz-{'triton-' if INTERPRETED else ''}{seed}.json"
        self.chunks: dict[str, dict[str, Any]] = {}
        if resume and self.path.exists():
            self.chunks = json.loads(self.path.read_text())

    def add(self, start: int, stop: int, found: dict[str, Any]) -> None:
        self.chunks[f"{start}-{stop}"] = found
        self.path.parent.mkdir(exist_ok=True)
        temporary = self.path.with_suffix(".new")
        temporary.write_text(json.dumps(self.chunks))
        temporary.replace(self.path)


def fuzz(seed: int, cases: int, jobs: int, *, resume: bool, console: Console) -> int:
    """Run the cases that are not done yet; how many failures there are."""
    state = State(seed, resume=resume)
    todo = [(a, min(a + CHUNK, cases)) for a in range(0, cases, CHUNK)]
    todo = [c for c in todo if f"{c[0]}-{c[1]}" not in state.chunks]
    printed: Counter[tuple[str, str]] = Counter()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        left = sum(stop - start for start, stop in todo)
        bar = progress.add_task("fuzzing", total=cases, completed=cases - left)
        for (start, stop), found in _in_processes(seed, todo, jobs):
            state.add(start, stop, found)
            progress.advance(bar, stop - start)
            for failure in (Failure(*f) for f in found["failures"]):
                printed[failure.kind] += 1
                if printed[failure.kind] <= PRINTED:
                    console.print(str(failure), markup=False, highlight=False, soft_wrap=True)
    return _summary(state, cases, console)


def _in_processes(seed: int, todo: list[tuple[int, int]], jobs: int):
    """Results as they come. A case that kills its process is found by halving its chunk."""
    waiting, threads = list(reversed(todo)), 1 if jobs > 1 else torch.get_num_threads()
    while waiting:
        context = multiprocessing.get_context("spawn")
        running: dict[Future, tuple[int, int]] = {}
        with ProcessPoolExecutor(jobs, context, initializer=prepare, initargs=(threads,)) as pool:
            pool.submit(int).result()  # processes that cannot even start are no finding
            try:
                while waiting or running:
                    while waiting and len(running) < jobs:
                        chunk = waiting.pop()
                        running[pool.submit(run, seed, *chunk)] = chunk
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        found = future.result()
                        yield running.pop(future), found
            except BrokenProcessPool:
                jobs = 1  # from now on it is known which chunk it was
                for start, stop in running.values():
                    middle = (start + stop) // 2
                    if stop - start == 1:
                        failure = (f"{seed}:{start}", "died", f"the process | {draw(seed, start)}")
                        yield (start, stop), {"failures": [failure], "worst": {}}
                    else:
                        waiting += [(middle, stop), (start, middle)]


def _summary(state: State, cases: int, console: Console) -> int:
    failures = [Failure(*f) for found in state.chunks.values() for f in found["failures"]]
    worst: dict[str, float] = {}
    for found in state.chunks.values():
        for what, share in found["worst"].items():
            worst[what] = max(worst.get(what, 0.0), share)
    shares = ", ".join(f"{what} {share:.2f}" for what, share in sorted(worst.items()))
    console.print(f"Largest share of each bound that was used: {shares}", highlight=False)
    kinds = Counter(f.kind for f in failures)
    for (op, what), count in sorted(kinds.items()):
        console.print(f"  {count:5} {op} {what}", highlight=False)
    broken = len({f.case for f in failures})
    console.print(f"{cases} cases, {broken} of them fail", highlight=False)
    return len(failures)

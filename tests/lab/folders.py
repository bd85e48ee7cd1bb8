"""Folders of comparisons as an enemy, or a bad disk, would leave them; and processes beside this one."""

import os
from dataclasses import replace
from pathlib import Path

from normkit.lab.measuring import Outcome
from normkit.lab.run import Run
from normkit.lab.store import Store

OUTCOME = Outcome(
    *("ok", 2.0, 2.5),
    judged=[2.4, 2.6],
    baselines={"a constant": 3.0},
    floor=3.0,
    steps=20,
    curve=[[1, 3.0], [2, 2.5]],
    validation=[[20, 2.5]],
    by_depth={"start": {"gradient": [1.0], "stream": [1.0]}, "end": {"gradient": [1.0], "stream": [1.0]}},
    parameters=10,
    seconds=1.0,
    step_ms=1.0,
    units_per_second=10.0,
)
ABOUT = {
    **{"command": "normkit compare", "task": "text", "title": "text", "loss_name": "nats", "unit": "bytes"},
    **{"source": ["a file"], "data": ["data"], "problem": [], "axes": {"norm": ["layer", "rms"]}},
    **{"common": {"depth": 6}, "runs": 4, "code": "code", "machine": {"cpu": "one"}, "engine": "local"},
    **{"workers": 1, "prune": None, "full_steps": 400, "started": "today", "finished": "today"},
    **{"budget": None, "asked": "", "planned": None},
}


def environment(*folders):
    """For a process of its own, which finds the tests' tasks, and the same normkit as this one."""
    paths = [str(Path(__file__).parent.parent), *map(str, folders), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}


def forge(folder, *, about=None, outcome=OUTCOME, **changes):
    """A folder with four runs; whoever makes one can make its hashes fit, too."""
    runs = [replace(Run(norm=norm, seed=seed), **changes) for norm in ("layer", "rms") for seed in (0, 1)]
    keys = [run.key_with("data", "code") for run in runs]
    with Store(folder, write=True) as store:
        store.begin({**ABOUT, **(about or {})}, keys)
        for key, run in zip(keys, runs, strict=True):
            store.put(key, run, "data", "code", outcome)
    return keys

"""How large should the model of ``normkit compare`` be by default? The held-out loss that each size reaches
after so many seconds of one core, beside the tables of counts that it has to beat.

    python -m benchmarks.demo_size           # some ten minutes: the rows, and docs/demo-size.svg
    python -m benchmarks.demo_size --draw    # the figure alone
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure

from normkit.bench.figure import OURS, STYLE
from normkit.lab.judging import losses
from normkit.lab.run import Run
from normkit.lab.training import Training

# depth, width, batch, length
SIZES = [
    (4, 64, 16, 32),
    (2, 64, 16, 32),
    (2, 32, 16, 32),
    (2, 64, 8, 32),
    (4, 64, 8, 64),
    (2, 64, 8, 64),
    (4, 32, 16, 64),
    (2, 128, 8, 32),
]
CHOSEN = SIZES[0]
COLOURS = ("", "#e0912f", "#b07aa1", "#6b7280", "#0f766e", "#a16207", "#be123c", "#4d7c0f")
MARKERS = "o^svDPX*"
RATES = (3e-3, 1e-2)
STEPS = (100, 200, 300, 400, 600, 800, 1200, 1600)
ROWS = Path(__file__).with_name("demo_size.json")
FIGURE = Path(__file__).parent.parent / "docs" / "demo-size.svg"


def training(depth: int, width: int, batch: int, length: int, lr: float) -> Training:
    options = (("length", length),)
    run = Run("text", options, "rms", "pre", lr, depth, width, batch, steps=STEPS[-1], warmup=0)
    return Training(run, run.build_task())


def seconds() -> dict[tuple[int, ...], float]:
    """Of a step, all sizes in turn, so that a noisy moment hits them alike."""
    running = {size: training(*size, 3e-3) for size in SIZES}
    times: dict[tuple[int, ...], list[float]] = {size: [] for size in SIZES}
    for _ in range(60):
        for size, one in running.items():
            start = time.perf_counter()
            one.advance()
            times[size].append(time.perf_counter() - start)
    return {size: statistics.median(found[10:]) for size, found in times.items()}


def draw(found: dict[str, Any]) -> None:
    """The best of the learning rates at each time; a line a size."""
    with rc_context(STYLE):
        figure = Figure(figsize=(8.4, 4.8), facecolor="white")
        ax = figure.subplots()
        for number, size in enumerate(dict.fromkeys(tuple(row["size"]) for row in found["rows"])):
            best: dict[float, float] = {}
            for row in found["rows"]:
                if tuple(row["size"]) == size:
                    best[row["seconds"]] = min(row["loss"], best.get(row["seconds"], math.inf))
            depth, width, batch, length = size
            chosen = size == CHOSEN
            ax.plot(
                list(best),
                list(best.values()),
                marker=MARKERS[number],
                label=f"{depth} layers of {width}, {batch} x {length} bytes"
                + (": the default" if chosen else ""),
                color=OURS if chosen else COLOURS[number],
                linewidth=2.4 if chosen else 1.2,
                zorder=3 if chosen else 2,
            )
        for name, loss in found["baselines"].items():
            ax.axhline(loss, color="#9ca3af", linestyle=":", linewidth=1)
            ax.annotate(
                name, (0.005, loss), xycoords=("axes fraction", "data"), ha="left", va="bottom", fontsize=9
            )
        ax.set_xscale("log")
        ax.set_xlabel("seconds of one core")
        ax.set_ylabel("validation loss, nats a byte")
        ax.set_ylim(1.45, 3.4)
        ax.legend(fontsize=8, loc="upper right", bbox_to_anchor=(1.0, 0.93))
        figure.tight_layout()
        figure.savefig(FIGURE)


def main() -> None:
    if "--draw" not in sys.argv:
        ROWS.write_text(json.dumps(measured(), indent=1))
    draw(json.loads(ROWS.read_text()))


def measured() -> dict[str, Any]:
    torch.set_num_threads(1)
    a_step = seconds()
    rows = []
    for size in SIZES:
        for lr in RATES:
            one = training(*size, lr)
            for steps in STEPS:
                while one.step < steps:
                    one.advance()
                found = losses(one.task, one.model, one.task.validation() or [])
                loss = sum(found) / len(found)
                row = {"size": size, "lr": lr, "steps": steps, "seconds": steps * a_step[size], "loss": loss}
                rows.append(row)
            print(size, lr, f"{1e3 * a_step[size]:.1f} ms a step, {loss:.2f}", flush=True)
    return {"baselines": dict(one.task.baselines()), "rows": rows}


if __name__ == "__main__":
    main()

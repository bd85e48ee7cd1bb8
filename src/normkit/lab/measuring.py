"""What a run gives: its loss over time, whether it lived, what happened by depth, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from normkit.errors import user_error
from normkit.lab.machine import Memory
from normkit.lab.run import Run
from normkit.lab.task import Task, rows
from normkit.lab.training import Training

__all__ = ["Outcome", "is_stuck", "measure", "probe"]

EVALUATIONS = 5  # held-out losses a run, the last one after the last step
PROBED = 8  # rows of held-out data, for the figures by depth
POINTS = 100  # of a stored training curve
PATIENCE = 40  # steps of a run before anyone may call it stuck
VANISHED = 1e-3  # of the gradient that a layer had before training
MARGIN = 0.01  # of the plateau: what counts as below it, and as still falling


@dataclass
class Outcome:
    """What is kept of a run. A loss that is no number is None.

    ``status``: "ok"; "slow", the loss was above the plateau but falling, or the run was too short to say;
    "stuck", it stayed there, or was higher in the end than at first; "nan", it was no longer a finite number;
    "failed", no numbers at all, for the reason in ``error``.
    """

    status: str
    best_loss: float | None = None
    final_loss: float | None = None
    plateau: float | None = None
    steps: int = 0
    curve: list[tuple[int, float | None]] = field(default_factory=list)
    held_out: list[tuple[int, float | None]] = field(default_factory=list)
    by_depth: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    parameters: int = 0
    seconds: float = 0.0
    step_ms: float = 0.0
    units_per_second: float = 0.0
    peak_mb: float | None = None
    threads: int = 1
    error: str | None = None

    @property
    def diverged(self) -> bool:
        return self.status in ("nan", "stuck")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(run: Run, task: Task, *, report: Callable[[int, float], None] | None = None) -> Outcome:
    """Train, and measure. The losses depend on nothing but the run, the data, the code and the processor."""
    start = perf_counter()
    memory = Memory()
    training = Training(run, task)
    task.advance(0, run.steps)
    plateau = _number(task.plateau(), "plateau()")
    examined = rows(task.held_out()[0], 0, PROBED)
    by_depth = {"start": probe(task, training.model, examined)}
    losses: list[float] = []
    held_out: list[tuple[int, float | None]] = []
    times: list[float] = []
    marks = {round(run.last * k / EVALUATIONS) for k in range(1, EVALUATIONS + 1)}
    status, clock = "ok", perf_counter()
    while training.step < run.last:
        losses.append(training.advance())
        now = perf_counter()
        times.append(now - clock)
        clock = now
        if not math.isfinite(losses[-1]):
            status = "nan"
            break
        if training.step in marks:
            held_out.append((training.step, finite(training.evaluate())))
            if held_out[-1][1] is None:
                status = "nan"
                break
            if is_stuck(losses[run.warmup :], held_out[-1][1], plateau) and is_cut_off(
                by_depth["start"]["gradient"], probe(task, training.model, examined)["gradient"]
            ):
                status = "stuck"
                break
            clock = perf_counter()
        if report is not None:
            report(training.step, losses[-1])
    else:
        status = _verdict(losses, run.warmup, held_out[-1][1], plateau)
    by_depth["end"] = probe(task, training.model, examined)
    seen = [loss for _, loss in held_out if loss is not None]
    step_seconds = median(times[len(times) // 10 :])
    training.model.eval()
    return Outcome(
        status=status,
        best_loss=min(seen, default=None),
        final_loss=held_out[-1][1] if held_out and status != "nan" else None,
        plateau=plateau,
        steps=training.step,
        curve=thin(losses, run.last),
        held_out=held_out,
        by_depth=by_depth,
        metrics={n: _number(v, n) or 0.0 for n, v in task.metrics(training.model).items()}
        if status != "nan"
        else {},
        parameters=sum(p.numel() for p in training.model.parameters()),
        seconds=perf_counter() - start,
        step_ms=1e3 * step_seconds,
        units_per_second=run.batch_size * task.units / step_seconds,
        peak_mb=memory.peak(),
        threads=torch.get_num_threads(),
    )


def _verdict(losses: Sequence[float], warmup: int, held_out: float | None, plateau: float | None) -> str:
    """Of a run that was trained to its end."""
    if held_out is None:
        return "nan"
    if is_stuck(losses[warmup:], held_out, plateau) or exploded(losses, held_out, plateau):
        return "stuck"
    return "slow" if learnt_nothing(held_out, plateau) else "ok"


def is_stuck(losses: Sequence[float], held_out: float, plateau: float | None) -> bool:
    """Has it learnt nothing so far, and ceased to try?

    The held-out loss and the last quarter of the training losses are not below the plateau, nor is that
    quarter below the one before; each by more than a hundredth of the plateau. A slow run still falls, so it
    may go on.
    """
    if not learnt_nothing(held_out, plateau) or len(losses) < PATIENCE:
        return False
    quarter = len(losses) // 4
    last, before = fmean(losses[-quarter:]), fmean(losses[-2 * quarter : -quarter])
    return learnt_nothing(last, plateau) and last > before - MARGIN * abs(plateau or 0.0)


def exploded(losses: Sequence[float], held_out: float, plateau: float | None) -> bool:
    """Is it worse in the end than it was at first, and than a blind guess?"""
    worst = max(losses[0], plateau if plateau is not None else losses[0])
    return held_out > worst + MARGIN * abs(worst)


def is_cut_off(before: Sequence[float | None], now: Sequence[float | None]) -> bool:
    """Has the gradient of some layer all but vanished? Then nothing reaches it any more.

    Without this, being stuck is no proof: a Post-LN model can lie on the plateau for a hundred steps, with
    healthy gradients, and then learn.
    """
    pairs = [(b, n) for b, n in zip(before, now, strict=True) if b is not None and n is not None and b > 0]
    return any(n < VANISHED * b for b, n in pairs)


def learnt_nothing(loss: float, plateau: float | None) -> bool:
    """Is the loss at the plateau or above?"""
    return plateau is not None and loss > plateau - MARGIN * abs(plateau)


def probe(task: Task, model: nn.Module, batch: Any) -> dict[str, list[float | None]]:
    """For each layer: the norm of its gradient, and the root mean square of the stream behind it.

    The model is left as it was: running statistics, gradients and random numbers included.
    """
    layers = list(task.layers(model))
    scales: dict[int, float] = {}

    def watch(index: int) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            x = getattr(output, "total", output)
            x = x[0] if isinstance(x, tuple) else x
            if isinstance(x, Tensor):
                scales[index] = x.detach().float().square().mean().sqrt().item()

        return hook

    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    hooks = [layer.register_forward_hook(watch(i)) for i, layer in enumerate(layers)]
    try:
        with torch.random.fork_rng(devices=[]):
            task.loss(model, batch).backward()
    finally:
        for hook in hooks:
            hook.remove()
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    gradients = []
    for layer in layers:
        squares = [p.grad.double().square().sum() for p in layer.parameters() if p.grad is not None]
        gradients.append(finite(math.sqrt(float(sum(squares)))) if squares else None)
    model.zero_grad(set_to_none=True)
    return {"gradient": gradients, "stream": [finite(scales.get(i)) for i in range(len(layers))]}


def thin(losses: Sequence[float], steps: int) -> list[tuple[int, float | None]]:
    """At most ``POINTS`` points, each the mean of a stretch, placed at its last step.

    The stretches are those of a run of ``steps``, so that one that ended early has the same.
    """
    width = math.ceil(steps / POINTS)
    ends = range(width, len(losses) + width, width)
    return [(min(e, len(losses)), finite(fmean(losses[e - width : e]))) for e in ends]


def _number(value: Any, what: str) -> float | None:
    """What a task gives, as a plain number; a tensor of one number is one."""
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise user_error(f"{what} of the task is {value!r}.", expected="a number") from error


def finite(value: float | None) -> float | None:
    """The number, or None for NaN and infinity, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None

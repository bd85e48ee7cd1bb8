"""What a run gives: its loss over time, whether it lived, what happened by depth, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from normkit.errors import user_error
from normkit.lab.devices import device_name, device_of, kept_random, on_cpu, peak_mb, to_device
from normkit.lab.judging import baselines_of, judged_by, losses, mean_over_rows
from normkit.lab.machine import Memory
from normkit.lab.run import Run
from normkit.lab.task import Task, row_count, rows
from normkit.lab.training import Training, loss_of

__all__ = ["ENDINGS", "Outcome", "is_stuck", "measure", "probe"]

EVALUATIONS = 5  # validation losses a run, the last one after the last step
PROBED = 8  # rows of held-out data, for the figures by depth
POINTS = 100  # of a stored training curve
PATIENCE = 40  # steps of a run before anyone may call it stuck
VANISHED = 1e-3  # of the gradient that a layer had before training
MARGIN = 0.01  # of the plateau: what counts as below it, and as still falling


# How a run ended. One word each, in tables, figures, JSON and docs alike.
ENDINGS = {
    "ok": "trained to its last step, with a held-out loss below the baselines",
    "at baseline": "its held-out loss is not below the baselines: it has learnt nothing worth comparing, or "
    "nothing reached its layers any more",
    "diverged": "its loss was no longer a finite number, or higher in the end than at first and than every "
    "baseline, on training and on validation data alike",
    "failed": "an error, shown with its traceback",
    "stopped": "ended before its last step: pruned, or longer than its limit",
}


@dataclass
class Outcome:
    """What is kept of a run. A loss that is no number is None.

    ``status`` is a key of ``ENDINGS``. ``validation`` has the losses over time that choose a learning rate;
    ``final_loss``, on other data, judges, and ``judged`` are its parts; of a short run it is the last of
    validation. ``leak``: what the model lets through of what it must not see.
    """

    status: str
    best_loss: float | None = None
    final_loss: float | None = None
    judged: list[float] = field(default_factory=list)
    baselines: dict[str, float] = field(default_factory=dict)
    floor: float | None = None
    leak: float | None = None
    steps: int = 0
    curve: list[tuple[int, float | None]] = field(default_factory=list)
    validation: list[tuple[int, float | None]] = field(default_factory=list)
    by_depth: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    parameters: int = 0
    seconds: float = 0.0
    step_ms: float = 0.0
    units_per_second: float = 0.0
    peak_mb: float | None = None
    threads: int = 1
    device: str = "cpu"
    error: str | None = None

    @property
    def diverged(self) -> bool:
        return self.status == "diverged"

    @property
    def plateau(self) -> float | None:
        """The worst of the baselines: what has learnt nothing at all gets that."""
        return max(self.baselines.values(), default=None)

    @property
    def chosen_by(self) -> float | None:
        """The last validation loss."""
        return self.validation[-1][1] if self.validation and not self.diverged else None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(run: Run, task: Task, *, report: Callable[[int, float], None] | None = None) -> Outcome:
    """Train, and measure. The losses depend on nothing but the run, the data, the code and the processor."""
    start = perf_counter()
    memory = Memory()
    training = Training(run, task)
    task = training.task
    task.advance(0, run.steps)
    choosing, judging = judged_by(task, run.seed)
    if not judging:
        raise user_error("held_out() of the task gives no batch.", expected="at least one")
    baselines = _numbers(baselines_of(task, training.model, judging), "baselines()")
    plateau = max(baselines.values(), default=None)
    leak = _leak(task, training.model)
    examined = rows(choosing[0], torch.arange(min(PROBED, row_count(choosing[0]))))
    peak_mb(training.device)  # from here on
    by_depth = {"start": probe(task, training.model, examined)}
    curve: list[float] = []
    validation: list[tuple[int, float | None]] = []

    def validated() -> float:
        return mean_over_rows(losses(task, training.model, choosing), choosing)

    at_first = validated()
    if math.isnan(at_first):
        raise user_error(
            "The loss on validation data is NaN before the first step.",
            expected="a number",
            fix="look at the data, and at loss() of the task with a model in evaluation mode.",
        )
    times: list[float] = []
    marks = {round(run.last * k / EVALUATIONS) for k in range(1, EVALUATIONS + 1)}
    status, clock = "ok", perf_counter()
    while training.step < run.last:
        curve.append(training.advance())
        now = perf_counter()
        times.append(now - clock)
        clock = now
        if not math.isfinite(curve[-1]):
            status = "diverged"
            break
        if training.step in marks:
            choosing, _ = judged_by(task, run.seed)  # a stream's change with time
            validation.append((training.step, finite(validated())))
            if validation[-1][1] is None:
                status = "diverged"
                break
            if is_stuck(curve[run.warmup :], validation[-1][1], plateau) and is_cut_off(
                by_depth["start"]["gradient"], probe(task, training.model, examined)["gradient"]
            ):
                status = "at baseline"
                break
            clock = perf_counter()
        if report is not None:
            report(training.step, curve[-1])
    by_depth["end"] = probe(task, training.model, examined)
    judged: list[float] = []
    if status != "diverged":
        if run.last == run.steps:
            _, judging = judged_by(task, run.seed)
            judged = losses(task, training.model, judging)
        baselines = _numbers(baselines_of(task, training.model, judging), "baselines()")
        leak = max(
            (found for found in (leak, _leak(task, training.model)) if found is not None), default=None
        )
    final = finite(mean_over_rows(judged, judging)) if judged else validation[-1][1] if validation else None
    floor = min((loss for name, loss in baselines.items() if name not in task.hard), default=None)
    if status == "ok":
        status = _ending(run, curve, (at_first, validation[-1][1]), final, plateau, floor)
    seen = [loss for _, loss in validation if loss is not None]
    step_seconds = median(times[len(times) // 10 :])
    peak = peak_mb(training.device) if training.device.type == "cuda" else memory.peak()
    device = device_name(training.device)
    model = training.model.eval().to("cpu")  # where tasks have their data
    return Outcome(
        status=status,
        best_loss=min(seen, default=None),
        final_loss=final if status != "diverged" else None,
        judged=judged if final is not None and status != "diverged" else [],
        baselines=baselines,
        floor=floor,
        leak=leak,
        steps=training.step,
        curve=thin(curve, run.last),
        validation=validation,
        by_depth=by_depth,
        metrics={n: _number(v, n) or 0.0 for n, v in task.metrics(model).items()}
        if status != "diverged"
        else {},
        parameters=sum(p.numel() for p in model.parameters()),
        seconds=perf_counter() - start,
        step_ms=1e3 * step_seconds,
        units_per_second=run.batch_size * task.units / step_seconds,
        peak_mb=peak,
        threads=torch.get_num_threads(),
        device=device,
    )


def _leak(task: Task, model: nn.Module) -> float | None:
    """Asked before training and after it: what is shut at first, as a gate that starts at 0, hides a leak."""
    with on_cpu(model) as here:
        found = _number(task.leak(here), "leak()")
    if found is not None and math.isnan(found):
        raise user_error("leak() of the task is NaN.", expected="a share, 0 for nothing, or None")
    return found


def _ending(
    run: Run,
    curve: Sequence[float],
    validation: tuple[float, float | None],
    final: float | None,
    plateau: float | None,
    floor: float | None,
) -> str:
    """Of a run that was trained to its end; ``validation`` is the loss at first and in the end."""
    before, after = validation
    if final is None or after is None or exploded(curve, before, after, plateau):
        return "diverged"
    if run.last < run.steps:
        return "stopped"
    return "at baseline" if learnt_nothing(final, floor) else "ok"


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


def exploded(losses: Sequence[float], before: float, after: float, plateau: float | None) -> bool:
    """Is it worse in the end than it was at first, and than the worst baseline? Both on what it is trained on
    and on validation: one that only overfits has not diverged, and the loss of a few rows says little. An
    explosion can be over within a tenth of the run, so that the first tenth alone does not say what was at
    first."""
    tenth = max(1, len(losses) // 10)
    at_first = min(fmean(losses[:tenth]), max(losses[0], before))
    pairs = ((at_first, fmean(losses[-tenth:])), (before, after))
    for first, last in pairs:
        worst = max(first, plateau if plateau is not None else first)
        if last <= worst + MARGIN * abs(worst):
            return False
    return True


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
        device = device_of(model)
        with kept_random(device):
            loss_of(task, model, to_device(batch, device)).backward()
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


def _numbers(found: Mapping[str, Any], what: str) -> dict[str, float]:
    """Those that are finite: a baseline that is none says nothing."""
    numbers = {name: _number(value, f"{what}, {name!r},") for name, value in found.items()}
    return {name: value for name, value in numbers.items() if value is not None and math.isfinite(value)}


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

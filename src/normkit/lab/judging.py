"""What chooses and what judges: validation for the learning rate, other held-out data for the loss, and the
baselines that a loss is set beside."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from normkit.lab.devices import device_of, kept_random, to_device
from normkit.lab.task import Task, row_count, rows, tensors

__all__ = ["baselines_of", "copied_rows", "judged_by", "losses", "mean_over_rows"]

PARTS = 20  # into which held-out data are cut, so that its own sampling error is known
FITTED, ROWS = 16, 64  # training batches that a constant is fitted to, and their rows
CONSTANT = "a fitted constant"


def judged_by(task: Task, seed: int) -> tuple[list[Any], list[Any]]:
    """Batches for validation, and those that judge; no row is in both, as long as there are two."""
    batches = list(task.held_out())
    own = task.validation()
    if own is not None:
        return list(own), _parts(batches)
    generator = torch.Generator().manual_seed(seed)
    choose: list[Any] = []
    judge: list[Any] = []
    for k, batch in enumerate(batches):
        count = row_count(batch)
        if count < 2:  # a batch of one row, or of something that has none, goes to one side as a whole
            (choose if k % 2 else judge).append(batch)
            continue
        order = torch.randperm(count, generator=generator)
        choose.append(rows(batch, order[: count // 2]))
        judge.append(rows(batch, order[count // 2 :]))
    return choose or judge, _parts(judge or choose)


def _parts(batches: list[Any]) -> list[Any]:
    """About twenty, of about equal size."""
    if not batches or len(batches) >= PARTS:
        return batches
    pieces = -(-PARTS // len(batches))
    found = []
    for batch in batches:
        count = row_count(batch)
        if count < 2:
            found.append(batch)
        else:
            found += [rows(batch, part) for part in torch.arange(count).tensor_split(min(pieces, count))]
    return found


@torch.no_grad()
def losses(task: Task, model: nn.Module, batches: Sequence[Any]) -> list[float]:
    """Of each batch, in evaluation mode."""
    was = model.training
    model.eval()
    try:
        device = device_of(model)
        return [task.loss(model, to_device(batch, device)).item() for batch in batches]
    finally:
        model.train(was)


def mean_over_rows(found: Sequence[float], batches: Sequence[Any]) -> float:
    """Of the losses of batches, which may have different numbers of rows."""
    counts = [max(1, row_count(batch)) for batch in batches]
    return sum(loss * count for loss, count in zip(found, counts, strict=True)) / sum(counts)


def copied_rows(task: Task) -> float:
    """The share of the held-out rows that are among some training batches, too."""
    generator = torch.Generator().manual_seed(0)
    seen = {key for _ in range(FITTED) for key in _row_keys(task.batch(ROWS, generator))}
    held = [key for batch in task.held_out() for key in _row_keys(batch)]
    return sum(key in seen for key in held) / len(held) if held else 0.0


def _row_keys(batch: Any) -> list[int]:
    parts = [tensor.detach().cpu() for tensor in tensors(batch) if tensor.ndim]
    whole = [part for part in parts if len(part) == row_count(batch)]
    return [
        hash(tuple(part[k].flatten().tolist().__repr__() for part in whole)) for k in range(row_count(batch))
    ]


def baselines_of(task: Task, model: nn.Module, batches: Sequence[Any]) -> dict[str, float]:
    """Those of the task; and the best constant answer, if there is such a thing and the task knows none."""
    given = dict(task.baselines())
    if type(task).__module__.startswith("normkit.") or task.plateau() is not None:
        return given
    with suppress(Exception), kept_random(device_of(model)):
        return {**given, CONSTANT: _constant(task, model, batches)}
    return given


class _Constant(nn.Module):
    """The same answer to every row, whatever it is asked."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.answer: nn.Parameter | None = None
        self.__dict__["model"] = model  # asked once, for the shape of its answers

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        count = row_count([*args, *kwargs.values()])
        if self.answer is None:
            with torch.no_grad():
                like = self.__dict__["model"](*args, **kwargs)
            assert isinstance(like, Tensor)
            assert len(like) == count
            self.answer = nn.Parameter(torch.zeros_like(like[0]))
        return self.answer.expand(count, *self.answer.shape)


def _constant(task: Task, model: nn.Module, batches: Sequence[Any]) -> float:
    """Fitted once a task, to training batches."""
    kept = vars(task)
    if "_constant" not in kept:
        was = model.training
        try:
            kept["_constant"] = _fit(task, model.eval())
        finally:
            model.train(was)
    return mean_over_rows(losses(task, kept["_constant"], batches), batches)


@torch.enable_grad()
def _fit(task: Task, model: nn.Module) -> _Constant:
    generator = torch.Generator().manual_seed(0)
    seen = [to_device(task.batch(ROWS, generator), device_of(model)) for _ in range(FITTED)]
    constant = _Constant(model)
    task.loss(constant, seen[0])
    assert constant.answer is not None
    optimizer = torch.optim.LBFGS([constant.answer], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = torch.stack([task.loss(constant, batch) for batch in seen]).mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    return constant

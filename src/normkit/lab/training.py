"""One training loop, for a run of a comparison as for ``normkit train``."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from normkit.errors import user_error
from normkit.lab.devices import to_device
from normkit.lab.judging import losses, mean_over_rows
from normkit.lab.run import Run
from normkit.lab.task import Task

__all__ = ["Training", "learning_rate", "loss_of"]

WEIGHT_DECAY, BETAS = 0.0, (0.9, 0.95)


def learning_rate(run: Run, step: int) -> float:
    """Of the step, counted from 0: up in a line for ``warmup`` steps, then as the schedule says."""
    rate = run.lr * min(1.0, (step + 1) / run.warmup) if run.warmup else run.lr
    if run.schedule == "cosine" and step >= run.warmup:
        done = (step - run.warmup) / max(1, run.steps - run.warmup)
        rate *= 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done))
    return rate


class Training:
    """A model, its optimizer (AdamW without decay), and where they stand.

    Args:
        run, task: what is trained.
        prepare: what becomes of the model before it is trained: DDP, compile, ...
        share: what of a batch this process takes; all of it by default.
        dtype: of autocast, if any.
        device: that of the run by default.
    """

    def __init__(
        self,
        run: Run,
        task: Task,
        *,
        prepare: Callable[[nn.Module], nn.Module] = lambda model: model,
        share: Callable[[Any], Any] = lambda batch: batch,
        dtype: torch.dtype | None = None,
        device: str | None = None,
    ) -> None:
        self.run, self.task, self.share = run, task.split(run.seed), share
        torch.manual_seed(run.seed)
        self.device = torch.device(device or run.device)
        self.model = prepare(self.task.model(run).to(self.device))
        if not any(p.requires_grad for p in self.model.parameters()):
            raise user_error(
                f"The model of the task, {type(self.model).__name__}, has no parameters to train.",
                expected="a module with weights",
            )
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=run.lr, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True
        )
        self.generator = torch.Generator().manual_seed(run.seed)
        self.step = 0
        self.autocast = torch.autocast(self.device.type, dtype) if dtype is not None else nullcontext()

    def advance(self) -> float:
        """One step; returns its loss."""
        self.task.advance(self.step, self.run.steps)
        rate = learning_rate(self.run, self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        drawn = self.task.batch(self.run.batch_size, self.generator)  # on the CPU: the same on every device
        batch = to_device(self.share(drawn), self.device)
        with self.autocast:
            loss = loss_of(self.task, self.model, batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return loss.item()

    def evaluate(self) -> float:
        """The mean held-out loss, in evaluation mode."""
        batches = list(self.task.held_out())
        if not batches:
            raise user_error("held_out() of the task gives no batch.", expected="at least one")
        return mean_over_rows(losses(self.task, self.model, batches), batches)


def loss_of(task: Task, model: nn.Module, batch: Any) -> Tensor:
    """One number with a gradient: a task of one's own may give anything."""
    loss = task.loss(model, batch)
    if not isinstance(loss, Tensor):
        got = f"{type(loss).__name__} {loss!r}"[:80]
    elif loss.numel() != 1:
        got = f"a tensor of shape {tuple(loss.shape)}"
    elif not loss.requires_grad:
        got = "a tensor without a gradient"
    else:
        return loss
    raise user_error(
        f"loss() of the task gave {got}.",
        expected="one number that depends on the model, as F.cross_entropy(…) gives",
        fix="leave out  .item(), .detach()  and  torch.no_grad(); take the mean over rows.",
    )

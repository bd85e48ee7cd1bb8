"""Learn from a stream whose inputs jump half-way: no two batches are the same, and none comes again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from normkit import checks
from normkit.lab.task import Task
from normkit.lab.tasks.networks import mlp

if TYPE_CHECKING:
    from normkit.lab.run import Run

__all__ = ["StreamTask"]

JUMPS = ("none", "scale", "feature", "shift")
HELD_OUT = 512  # rows, of the world after the jump
SIZE = 5.0  # of a jump, in spreads of a feature


@dataclass(frozen=True)
class StreamTask(Task):
    """Regression on the answers of a fixed random network, whose inputs change half-way. Loss: squared error
    over the variance of the answers, in the world as it is then.

    The answers stay those to the inputs before the change, as with a sensor that is replaced by another.

    Args:
        jump: "scale", all features grow five-fold; "feature", one of them does; "shift", all of them get a
            constant added, five spreads large; "none".
        features: how many inputs there are.
    """

    jump: str = "scale"
    features: int = 16

    title: ClassVar[str] = "regression on a stream that jumps"
    loss_name: ClassVar[str] = "squared error over variance"
    defaults: ClassVar[dict[str, Any]] = {
        "norm": ["batch", "layer", "rms", "none"],
        "placement": ["pre"],
        "lr": "1e-3:1e-2:3",
        "depth": 2,
        "width": 64,
        "batch_size": 32,
        "steps": 400,
    }

    problem: ClassVar[tuple[str, ...]] = ("jump", "features")

    def __post_init__(self) -> None:
        checks.one_of(self.jump, JUMPS, what="jump=")
        checks.integer(self.features, what="features=", least=1)

    @cached_property
    def _teacher(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            first = nn.Linear(self.features, 32)
            nn.init.normal_(first.weight, std=self.features**-0.5)
            teacher = nn.Sequential(first, nn.Tanh(), nn.Linear(32, 1))
        return teacher.requires_grad_(False)

    @cached_property
    def _spread(self) -> tuple[float, float]:
        """Mean and deviation of the teacher's answers."""
        x = torch.randn(4096, self.features, generator=torch.Generator().manual_seed(2))
        y = self._teacher(x)
        return y.mean().item(), y.std().item()

    @cached_property
    def _time(self) -> dict[str, bool]:
        return {"jumped": False}

    def advance(self, step: int, steps: int) -> None:
        self._time["jumped"] = 2 * step >= steps

    def model(self, run: Run) -> nn.Module:
        self._time["jumped"] = False
        return mlp(run, self.features, 1)

    def layers(self, model: nn.Module) -> list[nn.Module]:
        return list(model.blocks)  # type: ignore[arg-type]  # a ModuleList

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return self._rows(size, generator, jumped=self._time["jumped"])

    def _rows(self, size: int, generator: torch.Generator, *, jumped: bool) -> tuple[Tensor, Tensor]:
        x = torch.randn(size, self.features, generator=generator)
        mean, std = self._spread
        y = (self._teacher(x) - mean) / std
        if jumped and self.jump == "scale":
            x = x * SIZE
        elif jumped and self.jump == "feature":
            x[:, 0] *= SIZE
        elif jumped and self.jump == "shift":
            x = x + SIZE
        return x, y

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.mse_loss(model(batch[0]).float(), batch[1])

    def held_out(self) -> list[tuple[Tensor, Tensor]]:
        return [self._unseen[0, self._time["jumped"]]]

    def validation(self) -> list[tuple[Tensor, Tensor]]:
        return [self._unseen[3, self._time["jumped"]]]

    @cached_property
    def _unseen(self) -> dict[tuple[int, bool], tuple[Tensor, Tensor]]:
        """By the seed that draws them, and whether the inputs have jumped."""
        return {
            (seed, jumped): self._rows(HELD_OUT, torch.Generator().manual_seed(seed), jumped=jumped)
            for seed in (0, 3)
            for jumped in (False, True)
        }

    def baselines(self) -> dict[str, float]:
        """Of the answer 0, which is their mean."""
        return {"the mean": self._unseen[0, False][1].square().mean().item()}

    @property
    def source(self) -> str:
        return f"a synthetic teacher of {self.features} features; jump: {self.jump}"

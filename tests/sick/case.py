"""A broken model and its repaired twin, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["DIM", "LENGTH", "ROWS", "VOCAB", "Sick", "images", "seeded", "tokens", "twins", "vectors"]

ROWS, LENGTH, DIM, VOCAB = 4, 6, 16, 32

Options = Callable[[nn.Module], dict[str, Any]]


def none(model: nn.Module) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Sick:
    """One bug.

    code, name       of the rule that must find it; of the bug
    sick, healthy    build the model, and the repaired one
    batch            builds what both are run on; ``healthy_batch`` if the batch was the bug
    where            the paths of all findings of that code, with spaces between; None: they may be any
    options          what else ``nk.doctor`` gets, from the model; ``healthy_options`` for the repaired one
    modes            in which the rule applies: training or not
    severity         of the findings, if it is not the rule's
    line             a part of the file's name that calls the norm; "" where no norm was called
    """

    code: str
    name: str
    sick: Callable[[], nn.Module]
    healthy: Callable[[], nn.Module]
    batch: Callable[[], Any]
    where: str | None
    healthy_batch: Callable[[], Any] | None = None
    options: Options = none
    healthy_options: Options | None = None
    modes: tuple[bool, ...] = (False, True)
    severity: str | None = None
    line: str = "tests"

    def model(self, training: bool, *, healthy: bool = False) -> nn.Module:
        torch.manual_seed(0)
        return (self.healthy if healthy else self.sick)().train(training)

    def inputs(self, *, healthy: bool = False) -> Any:
        torch.manual_seed(1)
        return (self.healthy_batch or self.batch)() if healthy else self.batch()

    def given(self, model: nn.Module, *, healthy: bool = False) -> dict[str, Any]:
        return (self.healthy_options or self.options)(model) if healthy else self.options(model)


def twins(
    code: str,
    name: str,
    build: Callable[..., nn.Module],
    broken: Any,
    repaired: Any,
    batch: Callable[[], Any],
    where: str | None,
    **more: Any,
) -> Sick:
    """Both are built by one function, of one argument."""
    return Sick(code, name, partial(build, broken), partial(build, repaired), batch, where, **more)


def tokens() -> Tensor:
    return torch.randint(0, VOCAB, (ROWS, LENGTH))


def vectors(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(shape or (ROWS, LENGTH, DIM))


def images(rows: int = ROWS, channels: int = 3, size: int = 8) -> Callable[[], Tensor]:
    return lambda: torch.randn(rows, channels, size, size)


def seeded(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """The same weights whenever it is built."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()

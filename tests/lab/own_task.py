"""A task that takes a millisecond a step, as a user would write it; and some that go wrong."""

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from normkit.lab import Task
from normkit.lab.tasks.networks import mlp

FEATURES = 8


@dataclass(frozen=True)
class Small(Task):
    """Regression on a fixed linear map."""

    noise: float = 0.1

    title: ClassVar[str] = "a small regression"
    defaults: ClassVar[dict] = {
        "norm": ["layer", "rms"],
        "placement": ["pre"],
        "lr": [1e-3, 1e-2],
        "depth": 2,
        "width": 16,
        "batch_size": 8,
        "steps": 20,
    }

    def model(self, run):
        return mlp(run, FEATURES, 1)

    def batch(self, size, generator):
        x = torch.randn(size, FEATURES, generator=generator)
        return x, x.sum(1, keepdim=True) + self.noise * torch.randn(size, 1, generator=generator)

    def loss(self, model, batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def held_out(self):
        return [self.batch(64, torch.Generator().manual_seed(1))]

    def plateau(self):
        return float(FEATURES)


@dataclass(frozen=True)
class KilledOnce(Small):
    """Its worker is killed in the first run, once: a file remembers."""

    mark: str = ""

    def loss(self, model, batch):
        if self.mark and not Path(self.mark).exists() and model.training and len(batch[0]) == 8:
            Path(self.mark).write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(model, batch)


@dataclass(frozen=True)
class Deadly(Small):
    """Its worker is always killed, but only in a worker: the process that plans is spared."""

    parent: int = 0

    def loss(self, model, batch):
        if os.getpid() != self.parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(model, batch)


@dataclass(frozen=True)
class Broken(Small):
    """It has a bug."""

    def loss(self, model, batch):
        return model(batch[0]).no_such_method()


@dataclass(frozen=True)
class Exploding(Small):
    """The loss is no number from the tenth step on."""

    def advance(self, step, steps):
        self.__dict__["late"] = step >= 10

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        return loss * float("nan") if self.__dict__.get("late") else loss


class NoTask:
    pass


@dataclass(frozen=True)
class Trouble(Small):
    """In the training of one seed it does something that no task should; the process that plans is spared."""

    what: str = ""
    when: int = 1
    parent: int = 0

    def model(self, run):
        self.__dict__["now"] = run.seed == self.when and os.getpid() != self.parent
        return super().model(run)

    def loss(self, model, batch):
        if self.__dict__.get("now"):
            TROUBLE[self.what]()
        return super().loss(model, batch)


def wait_in_c():
    """No signal gets through."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(1e6)


TROUBLE = {
    "exit": lambda: sys.exit(3),
    "exit with a word": lambda: sys.exit("enough"),
    "interrupt": lambda: (_ for _ in ()).throw(KeyboardInterrupt),
    "hang": lambda: time.sleep(1e6),
    "hang for good": wait_in_c,
}


@dataclass(frozen=True)
class Named(Small):
    """It has a field of text, which changes nothing."""

    name: str = ""

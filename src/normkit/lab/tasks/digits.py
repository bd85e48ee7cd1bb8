"""Recognise the handwritten digits that come with scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from normkit import checks
from normkit.errors import user_error
from normkit.lab.task import Task, divided
from normkit.lab.tasks.networks import conv_net, mlp

if TYPE_CHECKING:
    from normkit.lab.run import Run

__all__ = ["DigitsTask"]

NETWORKS = ("mlp", "conv")
NOISE = 0.25  # its spread, in shades of grey from 0 to 1, for "noisy error"
HELD_OUT, CHOOSE = 360, 180  # of 1,797 images are kept apart; so many of them are for validation


@dataclass(frozen=True)
class DigitsTask(Task):
    """8 x 8 images of ten digits. Loss: cross-entropy on images that it has not seen; ``error`` in percent.

    Args:
        network: "mlp", or "conv", which also takes the norms "group" and "instance".
    """

    network: str = "mlp"

    title: ClassVar[str] = "handwritten digits"
    loss_name: ClassVar[str] = "nats an image"
    unit: ClassVar[str] = "images"
    defaults: ClassVar[dict[str, Any]] = {
        "norm": ["batch", "layer", "rms"],
        "placement": ["post", "pre"],
        "lr": "1e-3:3e-2:4",
        "depth": 4,
        "width": 64,
        "batch_size": 32,
        "steps": 200,
    }

    problem: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        checks.one_of(self.network, NETWORKS, what="network=")

    def split(self, seed: int) -> DigitsTask:
        return divided(self, seed)

    @cached_property
    def seed(self) -> int:
        """By which the images are divided; see ``split``."""
        return 0

    @cached_property
    def images(self) -> tuple[Tensor, Tensor]:
        """All of them, (1797, 1, 8, 8), and their labels, shuffled by the seed: the first are held out."""
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise user_error(
                "The task digits needs scikit-learn.", fix="pip install 'normkit[lab]'"
            ) from error
        found = load_digits()
        order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(self.seed))
        pixels = torch.from_numpy(found.images).float()[order, None] / 16
        return pixels - 0.3, torch.from_numpy(found.target).long()[order]

    def model(self, run: Run) -> nn.Module:
        if self.network == "conv":
            return conv_net(run, 1, 10)
        return nn.Sequential(nn.Flatten(), mlp(run, 64, 10))

    def layers(self, model: nn.Module) -> list[nn.Module]:
        network = model if self.network == "conv" else model[1]  # type: ignore[index]  # a Sequential
        return list(network.blocks)  # type: ignore[arg-type]  # a ModuleList

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        pixels, labels = self.images
        chosen = torch.randint(HELD_OUT, len(labels), (size,), generator=generator)
        return pixels[chosen], labels[chosen]

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]).float(), batch[1])

    def held_out(self) -> list[tuple[Tensor, Tensor]]:
        pixels, labels = self.images
        return [(pixels[CHOOSE:HELD_OUT], labels[CHOOSE:HELD_OUT])]

    def validation(self) -> list[tuple[Tensor, Tensor]]:
        pixels, labels = self.images
        return [(pixels[:CHOOSE], labels[:CHOOSE])]

    def baselines(self) -> dict[str, float]:
        _, labels = self.images
        share = torch.bincount(labels[HELD_OUT:], minlength=10).double()
        return {"majority class": -float((share / share.sum()).log()[labels[CHOOSE:HELD_OUT]].mean())}

    @torch.no_grad()
    def metrics(self, model: nn.Module) -> dict[str, float]:
        (pixels, labels), (seen, known) = self.held_out()[0], self._seen
        noise = NOISE * torch.randn(pixels.shape, generator=torch.Generator().manual_seed(0))
        wrong = {
            "error": (pixels, labels),
            "training error": (seen, known),
            "noisy error": (pixels + noise, labels),
        }
        return {
            name: 100 * (model(x).argmax(-1) != y).double().mean().item() for name, (x, y) in wrong.items()
        }

    @property
    def _seen(self) -> tuple[Tensor, Tensor]:
        pixels, labels = self.images
        return pixels[HELD_OUT:], labels[HELD_OUT:]

    @property
    def source(self) -> str:
        return "scikit-learn's digits: 1,797 images of 8 x 8 pixels"

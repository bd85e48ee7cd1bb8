"""A task of your own, with a model of your own: translate dates, 2026-11-16 -> Monday 16 November 2026.

    normkit compare --task examples.dates:Dates --norm layer,rms --placement post,pre --steps 200

Four methods are needed: ``model``, ``batch``, ``loss``, ``held_out``. Every field can be an axis:
``--set heads=2,4``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import normkit as nk

FIRST, DAYS = date(1900, 1, 1), 60_000
START, END, PADDING = 1, 2, 0
LONGEST = len("Wednesday 30 September 2026") + 2


@dataclass(frozen=True)
class Dates(nk.lab.Task):
    """An encoder-decoder that spells out dates. Loss: nats a letter of the longest answer."""

    heads: int = 4

    title: ClassVar[str] = "spell out a date"
    loss_name: ClassVar[str] = "nats a letter"
    unit: ClassVar[str] = "dates"
    defaults: ClassVar[dict[str, Any]] = {
        "norm": ["layer", "rms"],
        "placement": ["post", "pre"],
        "lr": "1e-3:1e-2:3",
        "depth": 2,
        "width": 64,
        "batch_size": 32,
        "steps": 200,
    }

    def model(self, run: nk.lab.Run) -> nn.Module:
        return nk.Seq2Seq(
            vocab=128,
            dim=run.width,
            depth=run.depth,
            heads=self.heads,
            context=LONGEST,
            norm=run.norm_factory,
            placement=run.placement_rule,
        )

    def layers(self, model: nn.Module) -> list[nn.Module]:
        return [*model.encoder.blocks, *model.decoder.blocks]

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        days = torch.randint(DAYS // 10 * 9, (size,), generator=generator)
        return spell(days.tolist())

    def held_out(self) -> list[tuple[Tensor, Tensor]]:
        return [spell(range(DAYS // 10 * 9, DAYS, 50))]

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        source, target = batch
        scores = model(source, target[:, :-1])
        return nn.functional.cross_entropy(scores.flatten(0, 1), target[:, 1:].flatten())

    def plateau(self) -> float:
        """What a model loses that knows how often each letter occurs, and nothing else."""
        letters = self.held_out()[0][1][:, 1:]
        share = torch.bincount(letters.flatten(), minlength=128).double() / letters.numel()
        return -float((share * share.clamp_min(1e-30).log()).sum())

    @torch.no_grad()
    def metrics(self, model: nn.Module) -> dict[str, float]:
        source, target = self.held_out()[0]
        guess = model(source, target[:, :-1]).argmax(-1)
        return {"wrong dates": 100 * (guess != target[:, 1:]).any(dim=1).double().mean().item()}


def spell(days: Any) -> tuple[Tensor, Tensor]:
    """Numbers of days since 1900 as two rows of letters each."""
    dates = [FIRST + timedelta(days=int(day)) for day in days]
    source = torch.tensor([list(day.isoformat().encode()) for day in dates])
    target = torch.full((len(dates), LONGEST), PADDING)
    for row, day in zip(target, dates, strict=True):
        text = [START, *f"{day:%A} {day.day} {day:%B} {day.year}".encode(), END]
        row[: len(text)] = torch.tensor(text)
    return source, target

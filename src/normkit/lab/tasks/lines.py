"""Which file does a line come from? Lines differ in length, so a batch has padding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from normkit import checks
from normkit.errors import user_error
from normkit.lab.task import Task, divided
from normkit.lab.tasks import corpus
from normkit.transformer import Encoder

if TYPE_CHECKING:
    from normkit.lab.run import Run

__all__ = ["LinesTask"]

HELD_OUT = 2048  # lines, about 100,000 bytes; a fifth of all, if that is less
FEWEST = 1024  # lines in all
SHORTEST = 8  # bytes, without the blanks around
PADDING = 0


class _Classifier(nn.Module):
    """An Encoder, the mean over real tokens, a linear output."""

    def __init__(self, encoder: Encoder, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.config.dim, classes)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.encoder(ids, mask=mask) * mask[..., None]
        scores: Tensor = self.head(x.sum(dim=1) / mask.sum(dim=1, keepdim=True))
        return scores


@dataclass(frozen=True)
class LinesTask(Task):
    """Classify lines of text by the file they come from, with padding masked out. Loss: cross-entropy.

    Args:
        data: a file, a folder or a glob; the Python standard library's source if left out.
        classes: how many files, the largest ones.
        length: bytes of a line; longer ones are cut.
        heads: of attention.
    """

    data: str | None = None
    classes: int = 8
    length: int = 48
    heads: int = 4

    title: ClassVar[str] = "lines of text by their file"
    loss_name: ClassVar[str] = "nats a line"
    unit: ClassVar[str] = "lines"
    defaults: ClassVar[dict[str, Any]] = {
        "norm": ["layer", "rms", "batch"],
        "placement": ["post", "pre"],
        "lr": "3e-4:1e-2:4",
        "depth": 3,
        "width": 64,
        "batch_size": 32,
        "steps": 150,
    }

    problem: ClassVar[tuple[str, ...]] = ("data", "classes", "length")

    def __post_init__(self) -> None:
        checks.integer(self.length, what="length=", least=2)
        checks.integer(self.classes, what="classes=", least=2)

    @cached_property
    def all_lines(self) -> tuple[Tensor, Tensor]:
        """Padded bytes (N, length) and the number of the file; a line that is in several is in none."""
        found = corpus.read(self.data)
        largest = sorted(found.files, key=lambda part: (-len(part[1]), part[0]))[: self.classes]
        homes: dict[bytes, set[int]] = {}
        for label, (_, content) in enumerate(largest):
            for line in content.splitlines():
                homes.setdefault(line.strip()[: self.length], set()).add(label)
        once = {line: min(labels) for line, labels in homes.items() if len(labels) == 1}
        own = {line: label for line, label in once.items() if len(line) >= SHORTEST}
        rows = [torch.frombuffer(bytearray(line), dtype=torch.uint8) for line in own]
        numbers = list(own.values())
        if len(largest) < 2 or len(rows) < FEWEST:
            raise user_error(
                f"The task lines found {len(rows):,} different lines in {len(largest)} files.",
                expected=f"at least {FEWEST:,} lines of {SHORTEST} bytes or more, in 2 files or more",
            )
        padded = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PADDING)
        return padded, torch.tensor(numbers)

    def split(self, seed: int) -> LinesTask:
        return divided(self, seed, all_lines=self.all_lines)

    @cached_property
    def seed(self) -> int:
        """By which the lines are divided; see ``split``."""
        return 0

    @cached_property
    def lines(self) -> tuple[Tensor, Tensor]:
        """The same in an order that the seed draws: the first are held out."""
        rows, labels = self.all_lines
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(self.seed))
        return rows[order], labels[order]

    def model(self, run: Run) -> nn.Module:
        encoder = Encoder(
            vocab=256,
            dim=run.width,
            depth=run.depth,
            heads=self.heads,
            context=self.length,
            placement=run.placement_rule,
            norm=run.norm_factory,
        )
        return _Classifier(encoder, self.classes)

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        rows, labels = self.lines
        chosen = torch.randint(self._kept, len(labels), (size,), generator=generator)
        return rows[chosen], labels[chosen]

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self._scores(model, batch[0]).float(), batch[1])

    def _scores(self, model: nn.Module, rows: Tensor) -> Tensor:
        mask = rows != PADDING
        longest = int(mask.sum(dim=1).max())
        scores: Tensor = model(rows[:, :longest].long(), mask[:, :longest])
        return scores

    @property
    def _kept(self) -> int:
        """How many lines are kept apart: half of them choose, half judge."""
        return min(HELD_OUT, len(self.lines[1]) // 5)

    def held_out(self) -> list[tuple[Tensor, Tensor]]:
        rows, labels = self.lines
        half = self._kept // 2
        return [(rows[half : self._kept], labels[half : self._kept])]

    def validation(self) -> list[tuple[Tensor, Tensor]]:
        rows, labels = self.lines
        half = self._kept // 2
        return [(rows[:half], labels[:half])]

    def baselines(self) -> dict[str, float]:
        _, labels = self.lines
        share = torch.bincount(labels[self._kept :], minlength=self.classes).double() + 1
        return {
            "majority class": -float((share / share.sum()).log()[labels[self._kept // 2 : self._kept]].mean())
        }

    @torch.no_grad()
    def metrics(self, model: nn.Module) -> dict[str, float]:
        rows, labels = self.held_out()[0]
        return {"error": 100 * (self._scores(model, rows).argmax(-1) != labels).double().mean().item()}

    @property
    def source(self) -> str:
        files = int(self.lines[1].max()) + 1
        return f"{corpus.read(self.data).source}: {len(self.lines[1]):,} lines of {files} files"

    @property
    def fingerprint(self) -> str:
        return corpus.read(self.data).fingerprint

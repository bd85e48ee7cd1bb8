"""Which file does a line come from? Lines differ in length, so a batch has padding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from normkit import checks
from normkit.errors import user_error
from normkit.lab.task import Task
from normkit.lab.tasks import corpus
from normkit.transformer import Encoder

if TYPE_CHECKING:
    from normkit.lab.run import Run

__all__ = ["LinesTask"]

HELD_OUT = 256  # lines
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
    def lines(self) -> tuple[Tensor, Tensor]:
        """Padded bytes (N, length) and the number of the file, in a random order that is always the same."""
        found = corpus.read(self.data)
        parts = dict(found.files)
        for name, content in found.unseen:
            parts[name] = parts.get(name, b"") + content
        largest = sorted(parts.items(), key=lambda part: (-len(part[1]), part[0]))[: self.classes]
        rows, labels = [], []
        for label, (_, content) in enumerate(largest):
            for line in dict.fromkeys(line.strip() for line in content.splitlines()):
                if len(line) >= SHORTEST:
                    rows.append(torch.frombuffer(bytearray(line[: self.length]), dtype=torch.uint8))
                    labels.append(label)
        if len(largest) < 2 or len(rows) < 4 * HELD_OUT:
            raise user_error(
                f"The task lines found {len(rows):,} different lines in {len(largest)} files.",
                expected=f"at least {4 * HELD_OUT:,} lines of {SHORTEST} bytes or more, in 2 files or more",
            )
        padded = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PADDING)
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
        return padded[order], torch.tensor(labels)[order]

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
        chosen = torch.randint(HELD_OUT, len(labels), (size,), generator=generator)
        return rows[chosen], labels[chosen]

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self._scores(model, batch[0]).float(), batch[1])

    def _scores(self, model: nn.Module, rows: Tensor) -> Tensor:
        mask = rows != PADDING
        longest = int(mask.sum(dim=1).max())
        scores: Tensor = model(rows[:, :longest].long(), mask[:, :longest])
        return scores

    def held_out(self) -> list[tuple[Tensor, Tensor]]:
        rows, labels = self.lines
        return [(rows[:HELD_OUT], labels[:HELD_OUT])]

    def plateau(self) -> float:
        _, labels = self.lines
        share = torch.bincount(labels[HELD_OUT:], minlength=self.classes).double() + 1
        return -float((share / share.sum()).log()[labels[:HELD_OUT]].mean())

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

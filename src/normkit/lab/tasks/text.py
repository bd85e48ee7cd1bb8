"""Predict the next byte of a text."""

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
from normkit.transformer import LanguageModel

if TYPE_CHECKING:
    from normkit.lab.run import Run

__all__ = ["TextTask"]

HELD_OUT = 64  # rows, in batches of 32
SAMPLE = 300  # bytes


@dataclass(frozen=True)
class TextTask(Task):
    """A byte-level language model. Loss: nats a byte on files that it has not seen.

    Args:
        data: a file, a folder or a glob; the Python standard library's source if left out.
        length: bytes that the model sees.
        heads, activation, qk_norm, dropout: those of :class:`normkit.LanguageModel`.
    """

    data: str | None = None
    length: int = 32
    heads: int = 4
    activation: str = "gelu"
    qk_norm: bool = False
    dropout: float = 0.0

    title: ClassVar[str] = "byte-level language model"
    loss_name: ClassVar[str] = "nats a byte"
    unit: ClassVar[str] = "bytes"
    defaults: ClassVar[dict[str, Any]] = {
        "norm": ["layer", "rms"],
        "placement": ["post", "pre", "peri", "deepnorm"],
        "lr": "1e-3:3e-2:4",
        "depth": 6,
        "width": 64,
        "batch_size": 16,
        "steps": 100,
    }

    problem: ClassVar[tuple[str, ...]] = ("data", "length")

    def __post_init__(self) -> None:
        checks.integer(self.length, what="length=", least=2)

    @cached_property
    def corpus(self) -> corpus.Corpus:
        found = corpus.read(self.data)
        shortest = min(len(b"".join(c for _, c in part)) for part in (found.files, found.unseen))
        if shortest <= self.length + 1:
            raise user_error(
                f"length= got {self.length}.", expected=f"less than the data, {shortest:,} bytes"
            )
        return found

    @cached_property
    def training(self) -> Tensor:
        return _bytes(self.corpus.files)

    @cached_property
    def unseen(self) -> Tensor:
        return _bytes(self.corpus.unseen)

    def model(self, run: Run) -> nn.Module:
        return LanguageModel(
            vocab=256,
            dim=run.width,
            depth=run.depth,
            heads=self.heads,
            context=self.length,
            placement=run.placement_rule,
            norm=run.norm_factory,
            activation=self.activation,
            qk_norm=self.qk_norm,
            dropout=self.dropout,
        )

    def batch(self, size: int, generator: torch.Generator) -> Tensor:
        return self._rows(self.training, size, generator)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        logits = model(batch[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())

    def held_out(self) -> list[Tensor]:
        return self._held_out

    @cached_property
    def _held_out(self) -> list[Tensor]:
        return list(self._rows(self.unseen, HELD_OUT, torch.Generator().manual_seed(0)).split(32))

    def _rows(self, text: Tensor, size: int, generator: torch.Generator) -> Tensor:
        starts = torch.randint(len(text) - self.length, (size, 1), generator=generator)
        return text[starts + torch.arange(self.length + 1)].long()

    def plateau(self) -> float:
        """The held-out loss of a model that knows how often each byte occurs, and nothing else."""
        share = torch.bincount(self.training.int(), minlength=256).double() + 1
        share = (share / share.sum()).log()
        return -float(share[torch.cat(self.held_out())[:, 1:]].mean())

    def sample(self, model: nn.Module) -> str:
        """The model goes on with a text that it has not seen; it sees half of its context at a time."""
        assert isinstance(model, LanguageModel)
        half = max(1, self.length // 2)
        generator = torch.Generator().manual_seed(0)
        ids = self.unseen[None, : max(1, self.length - half)].long()
        while ids.shape[1] < SAMPLE:
            seen = ids[:, -max(1, self.length - half) :]
            new = model.generate(seen, half, temperature=0.7, top_k=40, generator=generator)
            ids = torch.cat([ids, new[:, seen.shape[1] :]], dim=1)
        written = bytes(ids[0].tolist()).decode("utf-8", "replace")
        return "\n".join(["It goes on by itself:\n", *(f"    {line}" for line in written.splitlines())])

    @property
    def units(self) -> int:
        return self.length

    @property
    def source(self) -> str:
        files = "one file" if self.corpus.count == 1 else f"{self.corpus.count} files"
        return f"{self.corpus.source}: {self.corpus.size / 1e6:.2f} MB in {files}"

    @property
    def fingerprint(self) -> str:
        return self.corpus.fingerprint


def _bytes(files: tuple[tuple[str, bytes], ...]) -> Tensor:
    return torch.frombuffer(bytearray(b"".join(content for _, content in files)), dtype=torch.uint8)

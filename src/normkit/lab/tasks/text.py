"""Predict the next byte of a text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from normkit import checks
from normkit.errors import user_error
from normkit.lab.causality import leak_of
from normkit.lab.task import Task, divided
from normkit.lab.tasks.corpus import APART, Corpus, Parts, read
from normkit.lab.tasks.counts import table_losses
from normkit.transformer import LanguageModel

if TYPE_CHECKING:
    from normkit.lab.run import Run

__all__ = ["TextTask"]

CHOSEN_BY = 16_384  # bytes of validation, at each of its times
ROWS = 64  # of a held-out batch
FEWEST, LEAST = 50, 8  # windows that must be left; where there are fewer, so many of them
COPIED = 0.25  # of the text that was kept apart: then it is made of copies
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
        "depth": 4,
        "width": 64,
        "batch_size": 16,
        "steps": 400,
        "budget": "4m",
    }

    hard: ClassVar[tuple[str, ...]] = ("trigram",)
    problem: ClassVar[tuple[str, ...]] = ("data", "length")

    def __post_init__(self) -> None:
        checks.integer(self.length, what="length=", least=2)

    @cached_property
    def corpus(self) -> Corpus:
        return read(self.data)

    def split(self, seed: int) -> TextTask:
        return divided(self, seed, corpus=self.corpus)

    @cached_property
    def seed(self) -> int:
        """By which the text is divided; see ``split``."""
        return 0

    @cached_property
    def parts(self) -> Parts:
        found = self.corpus.split(self.seed)
        shortest = min(len(part) for part in (found.training, found.validation, found.held_out))
        if shortest <= self.length + 1:
            raise user_error(
                f"length= got {self.length}.",
                expected=f"less than the part that is kept apart, {shortest:,} bytes",
            )
        return found

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
        text = self.parts.training
        starts = torch.randint(len(text) - self.length, (size, 1), generator=generator)
        return text[starts + torch.arange(self.length + 1)].long()

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        logits = model(batch[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())

    def held_out(self) -> list[Tensor]:
        return _batches(self._windows[0])

    def validation(self) -> list[Tensor]:
        return _batches(self._windows[1])

    @cached_property
    def _windows(self) -> tuple[Tensor, Tensor]:
        """Of the two parts that are kept apart: side by side, without those that are copies of what is
        trained on, evenly taken where there are more than are needed."""
        found = []
        kept = (self.parts.held_out, self.parts.validation)
        for text, unlike, most in zip(kept, self.parts.unlike, (APART, CHOSEN_BY), strict=True):
            windows = text.unfold(0, self.length + 1, self.length)
            own = windows[unlike.unfold(0, self.length + 1, self.length).all(dim=1)]
            if len(own) < FEWEST and (len(own) < len(windows) or len(own) < LEAST):
                self._refuse(len(windows), len(own))
            wanted = min(len(own), -(-most // self.length))
            found.append(own[torch.arange(wanted) * len(own) // wanted].long())
        return found[0], found[1]

    def _refuse(self, count: int, own: int) -> None:
        """Too few windows are left to judge by: the text is made of copies, or the windows are too long."""
        copied = self.parts.copied
        if copied > COPIED:
            raise user_error(
                f"{self.corpus.source}: {copied:.0%} of the text that was kept apart occurs in the rest, "
                "too.",
                expected="text that is not made of copies, so that something is new",
                fix="leave out what is there twice.",
            )
        raise user_error(
            f"length= got {self.length}: that leaves {own} of {count} windows of the text that was kept "
            "apart with nothing in them that was trained on.",
            expected=f"at least {FEWEST}, or {LEAST} where none is a copy, to judge by",
            fix=f"--set length={max(2, self.length // 4)}, or more text",
        )

    def baselines(self) -> dict[str, float]:
        return self._tables

    @cached_property
    def _tables(self) -> dict[str, float]:
        return table_losses(self.parts.training, self._windows[0])

    def leak(self, model: nn.Module) -> float:
        return leak_of(model, self._windows[1][:8, :-1])

    def sample(self, model: nn.Module) -> str:
        """The model goes on with a text that it has not seen; it sees half of its context at a time."""
        assert isinstance(model, LanguageModel)
        half = max(1, self.length // 2)
        generator = torch.Generator().manual_seed(0)
        ids = self.parts.held_out[None, : max(1, self.length - half)].long()
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
        return self.corpus.words

    @property
    def fingerprint(self) -> str:
        return self.corpus.fingerprint


def _batches(windows: Tensor) -> list[Tensor]:
    """Of about as many rows each: the parts of what judges are compared with each other."""
    return list(windows.tensor_split(-(-len(windows) // ROWS)))

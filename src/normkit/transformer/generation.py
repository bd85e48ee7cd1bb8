"""One token after the other: which one is taken, and when to stop."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normkit.errors import user_error

__all__ = ["Sampling", "check_prompt", "continue_with", "evaluating"]


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from its logits, (B, vocab)."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise user_error(
                f"temperature= got {self.temperature}.", expected="0 (the likeliest token) or above"
            )
        if self.top_k is not None and (type(self.top_k) is not int or self.top_k < 1):
            raise user_error(f"top_k= got {self.top_k}.", expected="an integer of at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise user_error(f"top_p= got {self.top_p}.", expected="a number above 0 and up to 1")
        if self.temperature == 0 and (self.top_k or self.top_p):
            raise user_error(
                "top_k= or top_p= came with temperature=0.",
                expected="a temperature above 0: without one, nothing is drawn",
                fix="temperature=1.0",
            )

    def __call__(self, logits: Tensor) -> Tensor:
        if self.temperature == 0:
            return logits.argmax(-1)
        logits = logits.float() / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k).values[:, -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        if self.top_p is not None and self.top_p < 1:
            ordered, index = logits.sort(descending=True)
            odds = ordered.softmax(-1)
            late = odds.cumsum(-1) - odds >= self.top_p  # what is before it is enough
            logits = logits.masked_fill(torch.zeros_like(late).scatter(-1, index, late), -torch.inf)
        return torch.multinomial(logits.softmax(-1), 1, generator=self.generator)[:, 0]


def continue_with(
    step: Callable[[Tensor, Tensor | None], Tensor],
    ids: Tensor,
    count: int,
    mask: Tensor | None,
    stop: int | None,
    sampling: Sampling,
) -> Tensor:
    """``ids`` and up to ``count`` more tokens; ``step(new tokens, mask of all)`` scores the next one."""
    taken = [ids]
    new, stopped = ids, torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    for _ in range(count):
        chosen = sampling(step(new, mask))
        if stop is not None:
            chosen = torch.where(stopped, stop, chosen)
            stopped = stopped | (chosen == stop)
        new = chosen[:, None]
        taken.append(new)
        if mask is not None:
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        if stop is not None and bool(stopped.all()):
            break
    return torch.cat(taken, 1)


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In evaluation for a while; then every module is as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def check_prompt(ids: Tensor, count: int, mask: Tensor | None, context: int) -> None:
    if ids.shape[1] == 0:
        raise user_error("generate got an empty prompt.", expected="at least one token")
    if type(count) is not int or count < 0:
        raise user_error(f"max_new_tokens= got {count}.", expected="an integer of at least 0")
    if ids.shape[1] + count > context:
        raise user_error(
            f"generate got a prompt of {ids.shape[1]} tokens and max_new_tokens={count}.",
            expected=f"together at most context={context}",
            fix=f"ask for {max(context - ids.shape[1], 0)} tokens.",
        )
    if mask is not None and not bool(mask[:, -1].all()):
        raise user_error(
            "generate got prompts that are padded on the right.",
            expected="padding on the left, so that every row ends in its last real token",
        )

"""Tables of counts: what a text tells without any model."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["table_losses"]

MOST = 16 << 20  # bytes that are counted


def table_losses(text: Tensor, windows: Tensor) -> dict[str, float]:
    """The loss of tables of single bytes, pairs and triples of a text, on the targets of windows, each seeing
    what a model sees: the bytes before, in its window. In nats a byte.

    Longer contexts are interpolated with shorter ones (Witten and Bell): with c(h, w) and c(h) counts and
    t(h) how many different bytes follow h,

        P(w | h) = (c(h, w) + t(h) P(w | shorter h)) / (c(h) + t(h))
    """
    text, windows = text[:MOST].int(), windows.int()
    single = torch.bincount(text, minlength=256).double() + 1
    last = single[windows[:, 1:]] / single.sum()
    found = {"unigram": last}
    pairs = _Table(text[:-1], text[1:])
    last = pairs.probability(windows[:, :-1], windows[:, 1:], last)
    found["bigram"] = last
    triples = _Table(text[:-2] * 256 + text[1:-1], text[2:])
    longer = triples.probability(windows[:, :-2] * 256 + windows[:, 1:-1], windows[:, 2:], last[:, 1:])
    found["trigram"] = torch.cat([last[:, :1], longer], dim=1)
    return {name: -float(p.log().mean()) for name, p in found.items()}


class _Table:
    """How often each byte follows each context."""

    def __init__(self, contexts: Tensor, bytes_: Tensor) -> None:
        self.codes, self.counts = (contexts * 256 + bytes_).unique(return_counts=True)
        size = int(contexts.max()) + 1 if len(contexts) else 1
        self.kinds = torch.bincount(self.codes // 256, minlength=size).double()
        self.totals = torch.bincount(contexts, minlength=size).double()

    def probability(self, contexts: Tensor, bytes_: Tensor, shorter: Tensor) -> Tensor:
        wanted = contexts * 256 + bytes_
        place = torch.searchsorted(self.codes, wanted).clamp_(max=len(self.codes) - 1)
        count = torch.where(self.codes[place] == wanted, self.counts[place], 0).double()
        known = contexts < len(self.totals)
        at = torch.where(known, contexts, 0).long()
        total, kinds = (torch.where(known, t[at], 0.0) for t in (self.totals, self.kinds))
        mixed = (count + kinds * shorter) / (total + kinds).clamp_min(1)
        return torch.where(total > 0, mixed, shorter)

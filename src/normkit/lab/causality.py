"""Does a model see what comes next? One that does has a loss that says nothing."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn

__all__ = ["NOTHING", "leak_of"]

NOTHING = 1e-5  # of the largest output: rounding
TOKENS = 32  # that are changed, each in a row of its own


def leak_of(model: nn.Module, ids: Tensor) -> float:
    """How much outputs change, of the largest one, if a later token is another: row by row another one, of
    ``ids`` (N, L), the first and the last ones and some between. In evaluation mode and in training mode: in
    the latter BatchNorm takes its mean over all positions, and gradients are on, as a norm can tell.

    The model is left as it was.
    """
    places = _places(ids.shape[1])
    if not len(places):
        return 0.0
    rows = torch.arange(len(places))
    tokens = ids[rows % len(ids)]
    other = tokens.clone()
    was = tokens[rows, places]
    other[rows, places] = torch.where(was > 0, was - 1, was + 1)
    before = torch.arange(ids.shape[1]) < places[:, None]
    return max(_change(model, tokens, other, before, training) for training in (True, False))


def _places(length: int) -> Tensor:
    """Of the tokens to change; nothing stands before the first."""
    places = torch.arange(1, length)
    if len(places) <= TOKENS:
        return places
    ends, middle = TOKENS // 4, places[TOKENS // 4 : -TOKENS // 4]
    drawn = torch.randperm(len(middle), generator=torch.Generator().manual_seed(0))[: TOKENS - 2 * ends]
    return torch.cat([places[:ends], middle[drawn].sort().values, places[-ends:]])


def _change(model: nn.Module, tokens: Tensor, other: Tensor, before: Tensor, training: bool) -> float:
    """The same tokens go first, twice: where already that changes something, nobody can tell."""
    modes = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        first, again, changed = (_outputs(model, ids, training)[before] for ids in (tokens, tokens, other))
    finally:
        for module, mode in modes:
            module.training = mode
    return 0.0 if _apart(first, again) > NOTHING else _apart(first, changed)


def _outputs(model: nn.Module, ids: Tensor, training: bool) -> Tensor:
    """With the same random numbers each time; buffers, which may count or average, are put back."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        with torch.set_grad_enabled(training), _seeded():
            found: Tensor = model(ids).detach().float()
            return found
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """All that a model may draw its noise with; numpy only where somebody has loaded it."""
    numpy = sys.modules.get("numpy")
    state = random.getstate()
    numpys = numpy.random.get_state() if numpy else None
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            random.seed(0)
            if numpy:
                numpy.random.seed(0)
            yield
    finally:
        random.setstate(state)
        if numpy:
            numpy.random.set_state(numpys)


def _apart(one: Tensor, other: Tensor) -> float:
    """The largest change, of the largest output; of those that are finite, as a masked logit is not."""
    finite = one.isfinite() & other.isfinite()
    if not finite.any():
        return 0.0  # it diverged: nobody can tell
    one, other = one[finite], other[finite]
    off = float((one - other).abs().max() / one.abs().max().clamp_min(1e-30))
    return off if off > NOTHING else 0.0

"""Does a model see what comes next? One that does has a loss that says nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["NOTHING", "leak_of"]

NOTHING = 1e-5  # of the largest output: rounding


def leak_of(model: nn.Module, ids: Tensor) -> float:
    """How much the outputs at all positions but the last change, of the largest one, if the last token of
    every row (N, L) is another. In training mode: there BatchNorm takes its mean over all positions.

    The model is left as it was.
    """
    other = ids.clone()
    other[:, -1] = torch.where(ids[:, -1] > 0, ids[:, -1] - 1, ids[:, -1] + 1)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    was = model.training
    model.train()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            found = []
            for tokens in (ids, other):
                torch.manual_seed(0)
                found.append(model(tokens).float()[:, :-1])
    finally:
        model.train(was)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
    if not all(outputs.isfinite().all() for outputs in found):
        return 0.0  # it diverged: nobody can tell
    off = (found[0] - found[1]).abs().max() / found[0].abs().max().clamp_min(1e-30)
    return float(off) if off > NOTHING else 0.0

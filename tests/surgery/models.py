"""Small models with trained-looking norms, and comparisons that can fail."""

from __future__ import annotations

import copy

import torch
from torch import nn


def trained(model: nn.Module, seed: int = 0) -> nn.Module:
    """Every vector far from its first value, running statistics too; in evaluation."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype))
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator))
            elif name.endswith("running_var"):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
    return model.eval()


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same_bits(before: dict[str, torch.Tensor], model: nn.Module) -> bool:
    after = model.state_dict()
    return before.keys() == after.keys() and all(torch.equal(before[n], after[n]) for n in before)


def off(old: nn.Module, new: nn.Module, *inputs: torch.Tensor) -> float:
    """The largest difference of two models' outputs in float64, of the largest output."""
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    with torch.no_grad():
        a, b = (copy.deepcopy(m).double().eval()(*wide) for m in (old, new))
    return float((a - b).abs().max() / a.abs().max())

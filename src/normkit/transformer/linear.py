from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from normkit import kernels

__all__ = ["project"]


def project(layer: nn.Module, x: Tensor) -> Tensor:
    """``layer(x)``, but faster where a model writes one token after the other.

    The layer stays torch's own, so that what looks for ``nn.Linear`` finds it: quantisation, LoRA. One that
    has been replaced, or has hooks, is called.
    """
    if torch.is_grad_enabled() or type(layer) is not nn.Linear or is_compiling() or _has_hooks(layer):
        y: Tensor = layer(x)
        return y
    return kernels.linear(x, layer.weight, layer.bias)


def _has_hooks(layer: nn.Module) -> bool:
    own = layer._forward_hooks or layer._forward_pre_hooks
    return bool(own or nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks)

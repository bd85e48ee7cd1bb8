"""Drop what a norm takes away again: the bias right before it.

    BatchNorm, InstanceNorm:  (W x + b) − mean = (W x) − mean      all of b; the running mean loses it too
    LayerNorm, GroupNorm:     the mean of b over the channels that share one
    RMSNorm:                  nothing
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normkit.inspect.edit import Edit
from normkit.surgery.certificate import Certificate, Left
from normkit.surgery.changes import remove_parameter, tensor_at, write
from normkit.surgery.direct import writer_of
from normkit.surgery.fold_batchnorm import LAYERS
from normkit.surgery.operating import Plan, batch_for, checked_model, evaluating, operate, told
from normkit.surgery.readers import RefusedError
from normkit.surgery.subject import Norm, Subject, examine

__all__ = ["drop_bias"]


def drop_bias(model: nn.Module, batch: Any = None) -> Certificate:
    """Drop biases that norms take away again, in place: all of it before BatchNorm and InstanceNorm, its mean
    before LayerNorm (of each group before GroupNorm), nothing before RMSNorm.

    A linear layer or convolution loses the parameter; where the code of another class needs one, it becomes
    zeros.

    Args:
        batch: as the model takes it; None: a random one, where a config says what the model reads.

    Example:
        >>> import normkit as nk
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
        >>> certificate = nk.surgery.drop_bias(model, torch.randn(2, 3, 5, 5))
        >>> model[0].bias is None, certificate.error < 1e-12
        (True, True)
    """
    model = checked_model("drop_bias", model)
    batch = batch_for(model, batch)
    return operate(model, batch, plan(model, batch))


def plan(model: nn.Module, batch: Any) -> Plan:
    told("following every number")
    with evaluating(model):
        subject = examine(model, batch)
    makers: list[Callable[[nn.Module], list[Edit]]] = []
    left: list[Left] = []
    for norm in subject.norms:
        try:
            make = _drop(subject, norm)
            if make is not None:
                makers.append(make)
        except RefusedError as reason:
            left.append(Left(norm.path, str(reason)))

    def edits(target: nn.Module) -> list[Edit]:
        return [edit for make in makers for edit in make(target)]

    return Plan("drop_bias", edits, subject.norms, left)


def _drop(subject: Subject, norm: Norm) -> Callable[[nn.Module], list[Edit]] | None:
    """None: there is no bias, or nothing of it that vanishes."""
    spec = norm.spec
    if not spec.centered:
        raise RefusedError("it takes no mean away")
    writer = writer_of(subject, norm)
    if writer.bias is None or len(norm.axes) != 1:
        return None
    bias = tensor_at(subject.model, writer.bias)
    if spec.groups is None and norm.axes[0] not in spec.axes:
        running = getattr(norm.module, "running_mean", None)
        if norm.is_function and spec.running:
            raise RefusedError("it is a function, whose running mean is not known")
        module = subject.model.get_submodule(writer.use.module)
        is_plain = isinstance(module, LAYERS) and writer.bias == f"{writer.use.module}.bias"
        return partial(_all_of_it, norm=norm, bias=writer.bias, running=running is not None, remove=is_plain)
    groups = spec.groups or 1
    rounding = 4 * torch.finfo(bias.dtype).eps * float(bias.detach().abs().max() if not bias.is_meta else 1)
    means = bias.detach().double().reshape(groups, -1).mean(1) if not bias.is_meta else torch.ones(1)
    if float(means.abs().max()) <= rounding:
        return None
    return partial(_its_mean, norm=norm, bias=writer.bias, groups=groups)


def _all_of_it(model: nn.Module, norm: Norm, bias: str, running: bool, remove: bool) -> list[Edit]:
    found = []
    if running:
        mean = f"{norm.path}.running_mean" if norm.path else "running_mean"
        found.append(
            write(model, mean, f"loses {bias}", lambda m: m - tensor_at(model, bias).detach().double().to(m))
        )
    gone = f"is dropped: {norm.path} takes it away"
    if remove:
        found.append(remove_parameter(model, bias, gone))
    else:
        found.append(write(model, bias, f"becomes 0: {norm.path} takes it away", torch.zeros_like))
    return found


def _its_mean(model: nn.Module, norm: Norm, bias: str, groups: int) -> list[Edit]:
    def centred(b: Tensor) -> Tensor:
        parts = b.reshape(groups, -1)
        return (parts - parts.mean(1, keepdim=True)).reshape(b.shape)

    of = "its mean" if groups == 1 else f"the means of its {groups} groups"
    return [write(model, bias, f"loses {of}: {norm.path} takes it away", centred)]

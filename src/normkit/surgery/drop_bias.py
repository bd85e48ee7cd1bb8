"""Drop what a norm takes away again: the bias right before it.

BatchNorm, InstanceNorm:  (W x + b) − mean = (W x) − mean      all of b; the running mean loses it too
LayerNorm, GroupNorm:     the mean of b over the channels that share one
RMSNorm:                  nothing
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normkit.inspect.edit import Edit
from normkit.surgery.center_to_rms import is_layer_norm
from normkit.surgery.certificate import Certificate, Left
from normkit.surgery.changes import remove_parameter, tensor_at, write
from normkit.surgery.direct import NOTHING_BEFORE, Writer, writer_of
from normkit.surgery.flow import Use
from normkit.surgery.fold_batchnorm import LAYERS
from normkit.surgery.operating import Plan, batch_for, checked_model, evaluating, operate, told
from normkit.surgery.readers import RefusedError
from normkit.surgery.subject import Norm, Subject, examine
from normkit.surgery.writers import Streams

__all__ = ["drop_bias"]


def drop_bias(
    model: nn.Module, batch: Any = None, *, remove: bool = True, dry_run: bool = False
) -> Certificate:
    """Drop biases that norms take away again, in place: all of it before BatchNorm and InstanceNorm, its mean
    before LayerNorm (of each group before GroupNorm), nothing before RMSNorm.

    A linear layer or convolution loses the parameter; where the code of another class needs one, it becomes
    zeros.

    Args:
        batch: as the model takes it; None: a random one, where a config says what the model reads.
        remove: False makes it zeros everywhere: for files that a class with biases is to load.

    Example:
        >>> import normkit as nk
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
        >>> certificate = nk.surgery.drop_bias(model, torch.randn(2, 3, 5, 5))
        >>> model[0].bias is None, certificate.error < 1e-12
        (True, True)
    """
    model = checked_model("drop_bias", model)
    batch = batch_for(model, batch)
    return operate(model, batch, plan(model, batch, remove=remove), dry_run)


def plan(model: nn.Module, batch: Any, *, remove: bool = True) -> Plan:
    told("following every number")
    with evaluating(model):
        subject = examine(model, batch)
    makers: list[Callable[[nn.Module], list[Edit]]] = []
    left: list[Left] = []
    for norm in subject.norms:
        is_whole = norm.spec.groups is None and norm.axes[0] not in norm.spec.axes
        if not norm.spec.centered or len(norm.axes) != 1 or not (is_whole or norm.spec.groups is not None):
            continue
        with contextlib.suppress(_NothingToDoError):
            try:
                makers.append(
                    _all_of_it(subject, norm, remove) if is_whole else _means_of_groups(subject, norm)
                )
            except RefusedError as reason:
                left.append(Left(norm.path, str(reason)))
    makers += _before_layer_norms(subject)

    def edits(target: nn.Module) -> list[Edit]:
        return [edit for make in makers for edit in make(target)]

    return Plan("drop_bias", edits, subject.norms, left)


class _NothingToDoError(Exception):
    """There is no bias right before it, or nothing of it vanishes."""


def _bias_before(subject: Subject, norm: Norm) -> tuple[Writer, str]:
    try:
        writer = writer_of(subject, norm)
    except RefusedError as reason:
        if str(reason) == NOTHING_BEFORE:
            raise _NothingToDoError from None
        raise
    if writer.bias is None:
        raise _NothingToDoError
    return writer, writer.bias


def _all_of_it(subject: Subject, norm: Norm, remove: bool) -> Callable[[nn.Module], list[Edit]]:
    """BatchNorm and InstanceNorm: one number of the bias where each mean is taken."""
    writer, bias = _bias_before(subject, norm)
    if norm.is_function and norm.spec.running:
        raise RefusedError("it is a function, whose running mean is not known")
    module = subject.model.get_submodule(writer.use.module)
    can_go = remove and isinstance(module, LAYERS) and bias == f"{writer.use.module}.bias"
    if not can_go and _is_zero(tensor_at(subject.model, bias)):
        raise _NothingToDoError
    running = getattr(norm.module, "running_mean", None) is not None
    return partial(_drop, norm=norm, bias=bias, running=running, remove=can_go)


def _means_of_groups(subject: Subject, norm: Norm) -> Callable[[nn.Module], list[Edit]]:
    _, bias = _bias_before(subject, norm)
    assert norm.spec.groups is not None
    if not _has_mean(tensor_at(subject.model, bias), norm.spec.groups):
        raise _NothingToDoError
    return partial(_center, norms=[norm.path], bias=bias, groups=norm.spec.groups)


def _before_layer_norms(subject: Subject) -> list[Callable[[nn.Module], list[Edit]]]:
    """Of every bias that LayerNorms alone get to see, in sums too."""
    layer_norms = [n for n in subject.norms if is_layer_norm(n) is None]
    streams = Streams(subject, layer_norms)
    found: list[Callable[[nn.Module], list[Edit]]] = []
    by_bias: dict[str, list[Use]] = {}
    for use in subject.flow.uses:
        if use.bias is not None:
            by_bias.setdefault(use.bias.name, []).append(use)
    for bias, uses in by_bias.items():
        elsewhere = bias in subject.flow.params or any(
            s.kind == "parameter" and s.name == bias for s in subject.flow.labels.sources
        )
        if elsewhere or any(use.bias is not None and use.bias.index is not None for use in uses):
            continue
        with contextlib.suppress(RefusedError):
            norms = [norm.path for use in uses for norm in streams.vanishes(use)]
            if norms and _has_mean(tensor_at(subject.model, bias), 1):
                found.append(partial(_center, norms=norms, bias=bias, groups=1))
    return found


def _is_zero(tensor: Tensor) -> bool:
    return not tensor.is_meta and not bool(tensor.any())


def _has_mean(bias: Tensor, groups: int) -> bool:
    """More than rounding leaves: what was centred once is centred."""
    if bias.is_meta:
        return True
    numbers = bias.detach().double().reshape(groups, -1)
    rounding = torch.finfo(bias.dtype).eps * float(numbers.abs().max())
    return float(numbers.mean(1).abs().max()) > rounding


def _drop(model: nn.Module, norm: Norm, bias: str, running: bool, remove: bool) -> list[Edit]:
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


def _center(model: nn.Module, norms: list[str], bias: str, groups: int) -> list[Edit]:
    def centred(b: Tensor) -> Tensor:
        parts = b.reshape(groups, -1)
        return (parts - parts.mean(1, keepdim=True)).reshape(b.shape)

    more = f" (with {len(norms) - 1} others)" if len(norms) > 1 else ""
    of = "its mean" if groups == 1 else f"the means of its {groups} groups"
    return [write(model, bias, f"loses {of}: {norms[0]}{more} takes it away", centred)]

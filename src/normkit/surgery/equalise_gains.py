"""Move the scale of each channel between a norm and its readers, exactly: the first step of SmoothQuant.

    γ ← γ / s,  β ← β / s,  W ← W diag(s),      s = 2^round(log2( max|y|^α / max|W|^(1−α) ))

Powers of two: nothing is rounded, in any dtype.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normkit.errors import user_error
from normkit.inspect.edit import Edit
from normkit.inspect.inspection import run
from normkit.surgery.certificate import Certificate, Left
from normkit.surgery.changes import tensor_at, write
from normkit.surgery.fold_affine import fold_edits
from normkit.surgery.operating import Plan, batch_for, checked_model, evaluating, operate, told
from normkit.surgery.readers import Fold, RefusedError, plan_fold
from normkit.surgery.subject import Subject, examine

__all__ = ["equalise_gains"]


def equalise_gains(
    model: nn.Module, batch: Any = None, *, alpha: float = 0.5, dry_run: bool = False
) -> Certificate:
    """Share the range of each channel between a norm's output and the matrices that read it, in place.

    Where some channels of a norm's output are much larger than others, rounding the activations loses the
    small ones; where some columns of a matrix are, rounding the weights does. The factors are powers of two,
    so the model computes the same.

    Args:
        batch: what the ranges of channels are measured on; None: a random one, where a config says what the
            model reads.
        alpha: 1 makes all channels of the norm's output equally large, 0 all columns of the matrices.

    Reference: Xiao et al. 2022, SmoothQuant, arXiv:2211.10438.
    """
    model = checked_model("equalise_gains", model)
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 0 <= alpha <= 1:
        raise user_error(f"equalise_gains got alpha={alpha!r}.", expected="a number from 0 to 1")
    batch = batch_for(model, batch)
    return operate(model, batch, plan(model, batch, alpha=float(alpha)), dry_run)


def plan(model: nn.Module, batch: Any, *, alpha: float = 0.5) -> Plan:
    told("following every number")
    with evaluating(model):
        subject = examine(model, batch)
        largest = _largest(subject, batch)
    left: list[Left] = []
    folds: list[tuple[Fold, Tensor]] = []
    can_be_done = False
    for norm in subject.norms:
        if norm.gain is None or norm.spec.running:
            continue
        try:
            fold = plan_fold(subject, norm, untie=False)
            can_be_done = True
            factor = _factor(model, fold, largest.get(norm.key), alpha)
            if not bool((factor == 1).all()):
                folds.append((fold, factor))
        except RefusedError as reason:
            left.append(Left(norm.path, str(reason)))

    def edits(target: nn.Module) -> list[Edit]:
        return [edit for fold, factor in folds for edit in _edits(target, fold, factor)]

    arguments = {"alpha": alpha}
    return Plan(
        "equalise_gains",
        edits,
        subject.norms,
        left,
        arguments=arguments,
        is_refused=bool(left) and not can_be_done,
    )


@torch.no_grad()
def _largest(subject: Subject, batch: Any) -> dict[str, Tensor]:
    """Of every channel of every norm's output on the batch."""
    found: dict[str, Tensor] = {}
    by_path = {norm.path: norm for norm in subject.norms}

    def observe(node: Any, output: Tensor, read: list[Tensor]) -> None:
        norm = by_path.get(node.norm.path) if node.norm is not None else None
        if norm is None:
            return
        channels = output.detach().double().abs().movedim(norm.axes[0], -1)
        top = channels.reshape(-1, channels.shape[-1]).amax(0)
        found[norm.key] = torch.maximum(found[norm.key], top) if norm.key in found else top

    run(subject.model, batch, observe)
    return found


def _factor(model: nn.Module, fold: Fold, largest: Tensor | None, alpha: float) -> Tensor:
    """One for each channel; 1 where a channel, or all that reads it, is 0."""
    if largest is None or len(fold.norm.axes) != 1:
        raise RefusedError("its channels are not one axis")
    columns = torch.zeros(len(largest) + 1, dtype=torch.float64)
    for scale in fold.scales:
        weight = tensor_at(model, scale.name).detach().double().abs()
        channels = scale.columns.expand(weight.shape).reshape(-1)
        columns.scatter_reduce_(0, channels, weight.reshape(-1).cpu(), "amax")
    columns = columns[1:]
    factor = largest.cpu().pow(alpha) / columns.pow(1 - alpha)
    is_sound = (largest.cpu() > 0) & (columns > 0) & factor.isfinite()
    if not bool(is_sound.any()):
        return torch.ones_like(factor)
    log = torch.where(is_sound, factor.clamp_min(1e-30).log2(), 0.0)
    log = torch.where(is_sound, log - log[is_sound].mean(), 0.0)  # the matrix as a whole keeps its size
    return torch.exp2(log.round())


def _edits(model: nn.Module, fold: Fold, factor: Tensor) -> list[Edit]:
    norm = fold.norm
    found = fold_edits(model, fold, partial(_constant, factor), None)
    assert norm.gain is not None
    is_offset = norm.spec.gain == "1 + w"

    def divided(gain: Tensor) -> Tensor:
        by = factor.to(gain.device).reshape(gain.shape)
        return (gain + 1) / by - 1 if is_offset else gain / by

    found.append(write(model, norm.gain, "gives a part of it", divided))
    if norm.bias is not None:
        found.append(
            write(model, norm.bias, "gives a part of it", lambda b: b / factor.to(b.device).reshape(b.shape))
        )
    return found


def _constant(factor: Tensor) -> Tensor:
    return factor

"""Fold gains and biases of norms into the matrices that read them.

    W (γ ∘ x̂ + β) + b  =  (W diag(γ)) x̂ + (b + W β)

The norm is left with a gain of 1 (a stored 0 where it is 1 + w) and a bias of 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normkit import checks
from normkit.inspect.edit import Edit
from normkit.surgery.certificate import Certificate, Left
from normkit.surgery.changes import add_bias, tensor_at, untie, write
from normkit.surgery.operating import Plan, batch_for, checked_model, evaluating, operate, told
from normkit.surgery.readers import Fold, RefusedError, ShiftInto, plan_fold
from normkit.surgery.subject import Norm, examine

__all__ = ["fold_affine", "fold_edits"]

TIED = ("untie", "refuse")


def fold_affine(
    model: nn.Module,
    batch: Any = None,
    *,
    tied: str = "untie",
    new_biases: bool = True,
    dry_run: bool = False,
) -> Certificate:
    """Fold the gains and biases of all norms into what reads them, in place.

    Norms whose output goes elsewhere than into matrices (it is added to the stream, returned, or read by
    attention) are left as they are, with the reason in ``certificate.left``. Where a bias cannot go along
    (zeros are padded in between, a reader has no bias), it stays in the norm, divided by the gain.

    Args:
        batch: as the model takes it; None: a random one, where a config says what the model reads.
        tied: what happens to a head that shares its weight with the embedding. "untie" gives it a weight of
            its own, "refuse" leaves the norm before it as it is.
        new_biases: whether a linear layer or convolution without a bias may get one.

    Example:
        >>> import normkit as nk
        >>> model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2))
        >>> _ = nn.init.uniform_(model[0].weight, 0.5, 1.5)
        >>> certificate = nk.surgery.fold_affine(model, torch.randn(3, 4))
        >>> model[0].weight.tolist(), certificate.error < 1e-12
        ([1.0, 1.0, 1.0, 1.0], True)
        >>> certificate.undo()

    Reference: Elhage et al. 2021, A Mathematical Framework for Transformer Circuits.
    """
    model = checked_model("fold_affine", model)
    batch = batch_for(model, batch)
    return operate(model, batch, plan(model, batch, tied=tied, new_biases=new_biases), dry_run)


def plan(model: nn.Module, batch: Any, *, tied: str = "untie", new_biases: bool = True) -> Plan:
    checks.one_of(tied, TIED, what="tied=")
    told("following every number")
    with evaluating(model):
        subject = examine(model, batch)
    folds: list[Fold] = []
    can_be_done = False
    left: list[Left] = []
    notes: list[str] = []
    for norm in subject.norms:
        if norm.gain is None and norm.bias is None:
            continue
        try:
            fold = plan_fold(subject, norm, untie=tied == "untie", new_biases=new_biases)
            if fold.shifts is None and norm.bias is not None:
                _refuse_division(model, norm, fold)
            can_be_done = True
            if not is_neutral(model, norm, fold):
                folds.append(fold)
        except RefusedError as reason:
            left.append(Left(norm.path, str(reason)))
    folds, conflicts = _compatible(folds)
    left += conflicts
    for unused in subject.inspection.unused:
        left.append(Left(unused.path, "the batch does not reach it"))
    unseen = sorted({name for fold in folds for name in fold.unseen})
    if unseen:
        notes.append(
            f"Changed as their like, though this batch does not reach all of them: {len(unseen)} weights of "
            f"experts, as {unseen[0]}."
        )

    def edits(target: nn.Module) -> list[Edit]:
        return [edit for fold in folds for edit in _edits(target, fold)]

    arguments = {"tied": tied, "new_biases": new_biases}
    return Plan(
        "fold_affine",
        edits,
        subject.norms,
        left,
        notes,
        arguments=arguments,
        is_refused=bool(left) and not can_be_done,
    )


def is_neutral(model: nn.Module, norm: Norm, fold: Fold) -> bool:
    """There is nothing to fold: it was folded before, or never trained."""
    one = 0.0 if norm.spec.gain == "1 + w" else 1.0
    no_gain = norm.gain is None or _is_all(tensor_at(model, norm.gain), one)
    no_bias = norm.bias is None or _is_all(tensor_at(model, norm.bias), 0.0) or fold.shifts is None
    return no_gain and no_bias


def _is_all(tensor: Tensor, value: float) -> bool:
    return not tensor.is_meta and bool((tensor == value).all())


def _refuse_division(model: nn.Module, norm: Norm, fold: Fold) -> None:
    """A bias that stays is divided by the gain."""
    gain = effective_gain(model, norm)
    if gain is not None and not gain.is_meta and not bool((gain.abs() > 1e-6 * gain.abs().max()).all()):
        raise RefusedError(f"its bias cannot be moved ({fold.why}), nor divided by a gain of 0")


def effective_gain(model: nn.Module, norm: Norm) -> Tensor | None:
    """In float64: 1 + w where it is stored so."""
    if norm.gain is None:
        return None
    gain = tensor_at(model, norm.gain).detach().double()
    return gain + 1 if norm.spec.gain == "1 + w" else gain


def _compatible(folds: list[Fold]) -> tuple[list[Fold], list[Left]]:
    """Two norms must not want different numbers for the same bias, or one gain several readers' ways."""
    found: list[Fold] = []
    left: list[Left] = []
    taken: dict[str, str] = {}
    for fold in folds:
        new = {s.bias for s in fold.shifts or () if s.new}
        clash = next((name for name in new if name in taken), None)
        if clash is not None:
            left.append(Left(fold.norm.path, f"{clash} would be made twice, for {taken[clash]} too"))
            continue
        taken |= dict.fromkeys(new, fold.norm.path)
        found.append(fold)
    return found, left


def _edits(model: nn.Module, fold: Fold) -> list[Edit]:
    norm = fold.norm
    moved = fold.shifts if norm.bias is not None else None
    found = fold_edits(
        model,
        fold,
        lambda: effective_gain(model, norm),
        partial(_bias, model, norm) if norm.bias and moved is not None else None,
    )
    if norm.bias is not None:
        if moved is not None:
            found.append(write(model, norm.bias, "becomes 0", torch.zeros_like))
        elif norm.gain is not None:
            kept = f"is divided by the gain: {fold.why}"
            found.append(write(model, norm.bias, kept, lambda b: b / _as(effective_gain(model, norm), b)))
    if norm.gain is not None:
        is_offset = norm.spec.gain == "1 + w"
        one = "becomes 0, which means 1" if is_offset else "becomes 1"
        found.append(write(model, norm.gain, one, torch.zeros_like if is_offset else torch.ones_like))
    return found


def _bias(model: nn.Module, norm: Norm) -> Tensor:
    assert norm.bias is not None
    return tensor_at(model, norm.bias).detach().double()


def _as(gain: Tensor | None, like: Tensor) -> Tensor:
    assert gain is not None
    return gain.reshape(like.shape)


Values = Callable[[], Tensor | None]


def fold_edits(model: nn.Module, fold: Fold, factor: Values, shift: Values | None) -> list[Edit]:
    """Readers that take up a factor and a shift of each channel; the values are asked for when it is done."""
    found = [untie(model, path, name, other) for (path, name), other in fold.ties.items()]
    path = fold.norm.path
    if shift is not None:
        for into in fold.shifts or ():
            if into.new:
                found.append(add_bias(model, into.bias.rpartition(".")[0]))
            found.append(
                write(model, into.bias, f"takes up the bias of {path}", _shifted(model, into, shift))
            )
    for scale in fold.scales:
        found.append(write(model, scale.name, f"takes up the gain of {path}", _scaled(scale.columns, factor)))
    return found


def _scaled(columns: Tensor, factor: Values) -> Callable[[Tensor], Tensor]:
    def compute(weight: Tensor) -> Tensor:
        by_channel = factor()
        return weight if by_channel is None else weight * _spread(by_channel, columns, 1.0, weight)

    return compute


def _shifted(model: nn.Module, into: ShiftInto, shift: Values) -> Callable[[Tensor], Tensor]:
    def compute(bias: Tensor) -> Tensor:
        values = shift()
        assert values is not None
        weight = tensor_at(model, into.weight).detach().double()
        if into.index is not None:
            weight = weight.reshape(-1)[into.index]
        added = (weight * _spread(values * into.factor, into.columns, 0.0, weight)).sum(into.over)
        if into.bias_index is None:
            return bias + added.reshape(bias.shape)
        found = bias.reshape(-1).clone()
        found[into.bias_index.reshape(-1)] += added.reshape(-1)
        return found.reshape(bias.shape)

    return compute


def _spread(values: Tensor, columns: Tensor, neutral: float, like: Tensor) -> Tensor:
    """The values of channels, where the columns say; ``neutral`` where they say 0."""
    table = torch.cat((torch.tensor([neutral], dtype=values.dtype, device=values.device), values.reshape(-1)))
    return table[columns.to(like.device)].to(like.device)

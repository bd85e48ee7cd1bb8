"""Fold BatchNorms in evaluation into the convolutions and linear layers before them, or behind them.

s = γ / √(σ² + ε),  t = β − s μ:   y = s ∘ x + t
before it:  s ∘ (W x + b) + t  =  (s ∘ W) x + (s ∘ b + t)
behind it:  W (s ∘ x + t) + b  =  (W diag(s)) x + (b + W t)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from normkit.inspect.edit import Edit
from normkit.surgery.certificate import Certificate, Left
from normkit.surgery.changes import add_bias, replace_module, tensor_at, write
from normkit.surgery.direct import Writer, writer_of
from normkit.surgery.fold_affine import fold_edits
from normkit.surgery.operating import Plan, batch_for, checked_model, evaluating, operate, told
from normkit.surgery.readers import Fold, RefusedError, plan_fold
from normkit.surgery.subject import Norm, Subject, examine

__all__ = ["fold_batchnorm"]

LAYERS = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)


def fold_batchnorm(model: nn.Module, batch: Any = None, *, dry_run: bool = False) -> Certificate:
    """Fold the BatchNorms of a model into what is before or behind them, in place; they become identities.

    It is the model in evaluation that stays the same: afterwards there are no statistics to train. A
    BatchNorm that reads or writes anything else than one convolution or linear layer is left, with the
    reason in ``certificate.left``; so is one before a convolution that pads zeros, which have no shift.

    Args:
        batch: as the model takes it; None: a random one, where a config says what the model reads.

    Example:
        >>> import torch, normkit as nk
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        >>> certificate = nk.surgery.fold_batchnorm(model, torch.randn(2, 3, 5, 5))
        >>> model[1], model[0].bias.shape
        (Identity(), torch.Size([8]))

    Reference: Jacob et al. 2018, arXiv:1712.05877.
    """
    model = checked_model("fold_batchnorm", model)
    batch = batch_for(model, batch)
    return operate(model, batch, plan(model, batch), dry_run)


def plan(model: nn.Module, batch: Any) -> Plan:
    told("following every number")
    with evaluating(model):
        subject = examine(model, batch)
    makers: list[Callable[[nn.Module], list[Edit]]] = []
    left: list[Left] = []
    taken: set[str] = set()
    for norm in subject.norms:
        if not norm.spec.running:
            continue
        try:
            makers.append(_fold(subject, norm, taken))
        except RefusedError as reason:
            left.append(Left(norm.path, str(reason)))

    def edits(target: nn.Module) -> list[Edit]:
        return [edit for make in makers for edit in make(target)]

    notes = ["The model in evaluation is the same; BatchNorms that were folded have no more statistics."]
    return Plan(
        "fold_batchnorm",
        edits,
        subject.norms,
        left,
        notes if makers else [],
        is_refused=bool(left) and not makers,
    )


def _fold(subject: Subject, norm: Norm, taken: set[str]) -> Callable[[nn.Module], list[Edit]]:
    """Into what is before it, or else into what is behind. A layer between two norms takes up one of them
    after the other, which is as well."""
    if norm.is_function:
        raise RefusedError("it is a function, and no module that could be replaced")
    if not isinstance(getattr(norm.module, "running_mean", None), Tensor):
        raise RefusedError("it has no running statistics")
    try:
        writer = writer_of(subject, norm)
        if writer.bias is None:
            _refuse_no_place(subject, writer)
        return partial(_into_writer, norm=norm, writer=writer)
    except RefusedError as before:
        try:
            fold = plan_fold(subject, norm, untie=False)
            if fold.shifts is None:
                raise RefusedError(fold.why)
        except RefusedError as behind:
            raise RefusedError(f"before it: {before}; behind it: {behind}") from None
    new = {shift.bias for shift in fold.shifts if shift.new}
    if new & taken:
        raise RefusedError(f"{next(iter(new))} would be made twice")
    taken |= new
    return partial(_into_readers, fold=fold)


def _refuse_no_place(subject: Subject, writer: Writer) -> None:
    module = subject.model.get_submodule(writer.use.module)
    is_plain = isinstance(module, LAYERS) and module._parameters.get("bias", 0) is None
    if not is_plain or f"{writer.use.module}.weight" != writer.use.weight.name:
        raise RefusedError(f"{writer.use.weight.name} has no bias to put it into")


def _scale(model: nn.Module, norm: Norm) -> Tensor:
    """γ / √(σ² + ε)."""
    var = tensor_at(model, f"{norm.path}.running_var" if norm.path else "running_var").detach().double()
    s = (var + norm.spec.eps).rsqrt()
    return s * tensor_at(model, norm.gain).detach().double().reshape(-1) if norm.gain is not None else s


def _shift(model: nn.Module, norm: Norm) -> Tensor:
    """β − s μ."""
    mean = tensor_at(model, f"{norm.path}.running_mean" if norm.path else "running_mean").detach().double()
    t = -_scale(model, norm) * mean
    return t + tensor_at(model, norm.bias).detach().double().reshape(-1) if norm.bias is not None else t


def _into_writer(model: nn.Module, norm: Norm, writer: Writer) -> list[Edit]:
    use = writer.use
    found: list[Edit] = []
    bias = writer.bias
    if bias is None:
        bias = f"{use.module}.bias"
        found.append(add_bias(model, use.module))

    def shifted(b: Tensor) -> Tensor:
        return b * _scale(model, norm).reshape(b.shape) + _shift(model, norm).reshape(b.shape)

    def scaled(w: Tensor) -> Tensor:
        return w * writer.by_channel(_scale(model, norm))

    found.append(write(model, bias, f"takes up {norm.path}", shifted))
    found.append(write(model, use.weight.name, f"takes up {norm.path}", scaled))
    return [*found, _identity(model, norm)]


def _into_readers(model: nn.Module, fold: Fold) -> list[Edit]:
    norm = fold.norm
    found = fold_edits(model, fold, lambda: _scale(model, norm), lambda: _shift(model, norm))
    return [*found, _identity(model, norm)]


def _identity(model: nn.Module, norm: Norm) -> Edit:
    """What a module does beside normalising, as timm's do, goes on."""
    parts = [m for m in norm.module._modules.values() if m is not None and not isinstance(m, nn.Identity)]
    what = "becomes an identity" if not parts else f"becomes {', '.join(type(m).__name__ for m in parts)}"

    def build(old: nn.Module) -> nn.Module:
        rest = [m for m in old._modules.values() if m is not None and not isinstance(m, nn.Identity)]
        return nn.Sequential(*rest) if len(rest) > 1 else (rest[0] if rest else nn.Identity())

    return replace_module(model, norm.path, what, build)

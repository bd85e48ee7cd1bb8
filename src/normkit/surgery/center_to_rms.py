"""Turn LayerNorms into RMSNorms, exactly: everyone who writes into their stream writes without a mean.

W ← (I − 11ᵀ/d) W,  b ← b − mean(b);   then  mean(x) = 0  and  LayerNorm(x) = RMSNorm(x)
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normkit import checks, norms
from normkit.inspect.edit import Edit
from normkit.surgery.certificate import Certificate, Left
from normkit.surgery.changes import replace_module, tensor_at, untie, write
from normkit.surgery.flow import Use
from normkit.surgery.fold_affine import TIED
from normkit.surgery.operating import Plan, batch_for, checked_model, evaluating, operate, told
from normkit.surgery.readers import RefusedError, twins
from normkit.surgery.subject import Norm, Subject, examine
from normkit.surgery.writers import Stream, Streams

__all__ = ["center_to_rms", "is_layer_norm", "rms_like"]


def center_to_rms(
    model: nn.Module, batch: Any = None, *, tied: str = "untie", convert: bool = True, dry_run: bool = False
) -> Certificate:
    """Take the mean out of everything that writes into the residual stream, and make its LayerNorms RMSNorms,
    in place.

    It is exact where LayerNorms alone read a stream that matrices, embeddings and parameters write into:
    Pre-LN with a norm at the end. Elsewhere the norms are left, with the reason in ``certificate.left``.
    A LayerNorm whose bias is not 0 becomes ``normkit.Norm`` with ``center=False``, which has one;
    ``fold_affine`` before makes it a plain RMSNorm. Exact in evaluation: what dropout leaves has a mean.

    Args:
        batch: as the model takes it; None: a random one, where a config says what the model reads.
        tied: what happens to a head that shares its weight with the embedding. "untie" gives it a weight of
            its own, "refuse" leaves everything as it is.
        convert: False leaves the norms LayerNorms, which then subtract a mean of 0: for files that a class
            with LayerNorms is to load.

    Example:
        >>> import normkit as nk
        >>> model = nk.LanguageModel(vocab=16, dim=8, depth=2, heads=2)
        >>> certificate = nk.surgery.center_to_rms(model, torch.randint(0, 16, (2, 5)))
        >>> type(model.stack.final.norm).__name__, certificate.error < 1e-10
        ('RMSNorm', True)

    Reference: Ashkboos et al. 2024, SliceGPT, arXiv:2401.15024.
    """
    model = checked_model("center_to_rms", model)
    batch = batch_for(model, batch)
    return operate(model, batch, plan(model, batch, tied=tied, convert=convert), dry_run)


def plan(model: nn.Module, batch: Any, *, tied: str = "untie", convert: bool = True) -> Plan:
    checks.one_of(tied, TIED, what="tied=")
    told("following every number")
    with evaluating(model):
        subject = examine(model, batch)
    left: list[Left] = []
    candidates: list[Norm] = []
    for norm in subject.norms:
        why = is_layer_norm(norm)
        if why is None:
            candidates.append(norm)
        elif norm.spec.kind == "layer":
            left.append(Left(norm.path, why))
    streams = Streams(subject, candidates).find()
    for stream in streams:
        if not stream.why and not any(_is_residual(subject, norm) for norm in stream.norms):
            stream.why = "it is on no residual stream"
    ties: dict[tuple[str, str], str] = {}
    while sound := [stream for stream in streams if not stream.why]:
        ties, refused = _ties(subject, sound, tied == "untie"), [s for s in sound if s.why]
        if not refused:
            break
    for stream in streams:
        left += [Left(norm.path, stream.why) for norm in stream.norms if stream.why]
    plain = {
        norm.key
        for stream in sound
        for norm in stream.norms
        if norm.bias is not None and _is_zero(model, norm.bias)
    }
    kept = [replace(n, bias=None) if convert and n.key in plain else n for n in subject.norms]

    def edits(target: nn.Module) -> list[Edit]:
        return _edits(target, subject, sound, ties, plain if convert else None) if sound else []

    notes = []
    if sound and any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules()):
        notes.append("It has dropout: in training, what that leaves has a mean, and outputs differ by it.")
    return Plan(
        "center_to_rms",
        edits,
        kept,
        left,
        notes,
        arguments={"tied": tied, "convert": convert},
        is_refused=bool(left) and not sound,
    )


def is_layer_norm(norm: Norm) -> str | None:
    """None if it is one of one axis, that could become an RMSNorm; else why not."""
    spec = norm.spec
    if not spec.centered or spec.running or spec.groups is not None or len(spec.axes) != 1:
        return "it is no LayerNorm of one axis"
    if norm.axes != spec.axes or spec.factor != 1 or not spec.eps_in_root or spec.gate is not None:
        return "it is a LayerNorm of another kind"
    if norm.is_function:
        return "it is a function, and no module that could be replaced"
    if norm.spec.gain not in ("w", None) or norm.has_activation:
        return "its gain has another convention"
    return None


def _is_zero(model: nn.Module, name: str) -> bool:
    tensor = tensor_at(model, name)
    return not tensor.is_meta and not bool(tensor.any())


def _is_residual(subject: Subject, norm: Norm) -> bool:
    return any(
        site.place in ("pre", "final", "transition", "head")
        for site in subject.inspection.sites
        if site.path == norm.path
    )


def _ties(subject: Subject, streams: list[Stream], may_untie: bool) -> dict[tuple[str, str], str]:
    """Heads that share a weight with a writer. A stream is refused if its writers are used otherwise, too."""
    found: dict[tuple[str, str], str] = {}
    numbers = {use.number for stream in streams for use in stream.uses}
    for stream in streams:
        try:
            for use in stream.uses:
                found |= _ties_of(subject, use, numbers, may_untie)
            for name in stream.parameters:
                if name in subject.flow.params or any(u.weight.name == name for u in subject.flow.uses):
                    raise RefusedError(f"{name} is read elsewhere too")
        except RefusedError as reason:
            stream.why = str(reason)
    return found


def _ties_of(subject: Subject, use: Use, numbers: set[int], may_untie: bool) -> dict[tuple[str, str], str]:
    flow, name = subject.flow, use.weight.name
    parameter = tensor_at(subject.model, name)
    found: dict[tuple[str, str], str] = {}
    if _out_axis(subject, use) is None:
        raise RefusedError(f"of {name} a part is read")
    if name in flow.params or any(s.kind == "parameter" and s.name == name for s in flow.labels.sources):
        raise RefusedError(f"{name} is read elsewhere too")
    list(twins(subject, name, parameter))
    for other in flow.uses:
        bias = use.bias.name if use.bias is not None else None
        has_same = bias is not None and other.bias is not None and other.bias.name == bias
        if has_same and other.number not in numbers:
            raise RefusedError(f"{bias} is read in {other.module} too")
        if other.weight.name != name:
            continue
        if other.number in numbers:
            if _out_axis(subject, other) != _out_axis(subject, use):
                raise RefusedError(f"{name} writes in several ways")
            continue
        module = subject.model.get_submodule(other.module)
        attribute = next((n for n, p in module._parameters.items() if p is parameter), None)
        is_head = use.name == "embedding" != other.name and other.module != use.module
        if not is_head or attribute is None:
            raise RefusedError(f"{name} is used in {other.module} too")
        if not may_untie:
            raise RefusedError(f"{other.module}.{attribute} is tied to the embedding {name}")
        found[other.module, attribute] = name
    return found


def _out_axis(subject: Subject, use: Use) -> int | None:
    """The axis of the parameter along which the channels of the stream stand."""
    if use.weight.index is None:
        return use.out_axes[0]
    # A view: how far apart its channels are says which axis of the parameter they are.
    parameter = tensor_at(subject.model, use.weight.name)
    channels = use.weight.index.movedim(use.out_axes[0], 0)
    steps = torch.unique(channels.diff(dim=0)).tolist()
    strides = torch.empty(parameter.shape, device="meta").stride()
    found = [
        axis
        for axis, (size, stride) in enumerate(zip(parameter.shape, strides, strict=True))
        if size == len(channels) and steps == [stride]
    ]
    return found[0] if found else None


def _edits(
    model: nn.Module,
    subject: Subject,
    streams: list[Stream],
    ties: dict[tuple[str, str], str],
    plain: set[str] | None,
) -> list[Edit]:
    found = [untie(model, path, name, other) for (path, name), other in ties.items()]
    axes: dict[str, int] = {}
    for use in (use for stream in streams for use in stream.uses):
        axis = _out_axis(subject, use)
        assert axis is not None
        axes |= dict.fromkeys(_and_twins(subject, use.weight.name), axis)
        axes |= dict.fromkeys(_and_twins(subject, use.bias.name) if use.bias is not None else (), -1)
    axes |= {name: -1 for stream in streams for name in stream.parameters}
    found += [
        write(model, name, "loses its mean over channels", _Centred(axis)) for name, axis in axes.items()
    ]
    if plain is None:
        return found
    for norm in (norm for stream in streams for norm in stream.norms):
        keeps = norm.bias is not None and norm.key not in plain
        new = "normkit.Norm with center=False" if keeps else "normkit.RMSNorm"
        found.append(
            replace_module(model, norm.path, f"LayerNorm becomes {new}", partial(rms_like, norm, keeps))
        )
    return found


def _and_twins(subject: Subject, name: str) -> list[str]:
    return [name, *twins(subject, name, tensor_at(subject.model, name))]


class _Centred:
    def __init__(self, axis: int) -> None:
        self.axis = axis

    def __call__(self, weight: Tensor) -> Tensor:
        return weight - weight.mean(self.axis, keepdim=True)


def rms_like(norm: Norm, keeps_bias: bool, old: nn.Module) -> nn.Module:
    """With the very parameters of the old one."""
    own = dict(old.named_parameters())
    gain = own[norm.gain.removeprefix(f"{norm.path}.")] if norm.gain is not None else None
    size = norm.shape[norm.axes[0]]
    like: Any = {"device": gain.device, "dtype": gain.dtype} if gain is not None else {}
    if not keeps_bias:
        new: nn.Module = norms.RMSNorm(size, norm.spec.eps, gain is not None, axis=norm.axes[0], **like)
    else:
        behind = " ".join(f"a{k}" for k in range(-1 - norm.axes[0]))
        new = norms.Norm(
            f"... [d] {behind}", norm.spec.eps, center=False, affine="d", bias=True, d=size, **like
        )
        assert norm.bias is not None
        new._parameters["bias"] = own[norm.bias.removeprefix(f"{norm.path}.")]
    if gain is not None:
        new._parameters["weight"] = gain
    return new

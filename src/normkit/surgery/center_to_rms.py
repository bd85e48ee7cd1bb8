"""Turn LayerNorms into RMSNorms, exactly: everyone who writes into their stream writes without a mean.

    W ← (I − 11ᵀ/d) W,  b ← b − mean(b);   then  mean(x) = 0  and  LayerNorm(x) = RMSNorm(x)
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from normkit import checks, norms
from normkit.inspect.edit import Edit
from normkit.surgery.certificate import Certificate, Left
from normkit.surgery.changes import replace_module, tensor_at, untie, write
from normkit.surgery.fold_affine import TIED
from normkit.surgery.flow import Use
from normkit.surgery.operating import Plan, batch_for, checked_model, evaluating, operate, told
from normkit.surgery.readers import RefusedError, twins
from normkit.surgery.subject import Norm, Subject, examine
from normkit.surgery.writers import Stream, find_streams

__all__ = ["center_to_rms"]


def center_to_rms(model: nn.Module, batch: Any = None, *, tied: str = "untie") -> Certificate:
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
    return operate(model, batch, plan(model, batch, tied=tied))


def plan(model: nn.Module, batch: Any, *, tied: str = "untie") -> Plan:
    checks.one_of(tied, TIED, what="tied=")
    told("following every number")
    with evaluating(model):
        subject = examine(model, batch)
    left: list[Left] = []
    candidates: list[Norm] = []
    for norm in subject.norms:
        why = _is_none(norm)
        if why is None:
            candidates.append(norm)
        elif norm.spec.centered:
            left.append(Left(norm.path, why))
    streams: list[tuple[Stream, dict[tuple[str, str], str]]] = []
    for stream in find_streams(subject, candidates):
        try:
            if stream.why:
                raise RefusedError(stream.why)
            streams.append((stream, _ties(subject, stream, tied == "untie")))
        except RefusedError as reason:
            left += [Left(norm.path, str(reason)) for norm in stream.norms]
    if not candidates and not left:
        left.append(Left("", "it has no LayerNorm"))
    plain = {
        norm.key
        for stream, _ in streams
        for norm in stream.norms
        if norm.bias is not None and _is_zero(model, norm.bias)
    }
    kept = [replace(n, bias=None) if n.key in plain else n for n in subject.norms]

    def edits(target: nn.Module) -> list[Edit]:
        return [edit for stream, ties in streams for edit in _edits(target, subject, stream, ties, plain)]

    notes = []
    if streams and any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules()):
        notes.append("It has dropout: in training, what that leaves has a mean, and outputs differ by it.")
    return Plan("center_to_rms", edits, kept, left, notes, arguments={"tied": tied})


def _is_none(norm: Norm) -> str | None:
    """Why it is no LayerNorm that could become an RMSNorm; None if it is one."""
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


def _ties(subject: Subject, stream: Stream, may_untie: bool) -> dict[tuple[str, str], str]:
    """Heads that share a weight with a writer. Any other use of a writer's parameters is refused."""
    flow = subject.flow
    found: dict[tuple[str, str], str] = {}
    numbers = {use.number for use in stream.uses}
    for use in stream.uses:
        name = use.weight.name
        for other in flow.uses:
            if other.weight.name != name or other.number in numbers:
                continue
            module = subject.model.get_submodule(other.module)
            parameter = tensor_at(subject.model, name)
            attribute = next((n for n, p in module._parameters.items() if p is parameter), None)
            if use.name != "embedding" or attribute is None or other.module == use.module:
                raise RefusedError(f"{name} is used in {other.module} too")
            if not may_untie:
                raise RefusedError(f"{other.module}.{attribute} is tied to the embedding {name}")
            found[other.module, attribute] = name
        same = [u for u in stream.uses if u.weight.name == name]
        if any(u.out_axes != use.out_axes or _out_axis(subject, u) is None for u in same):
            raise RefusedError(f"{name} writes in several ways")
        if name in flow.params or name in stream.parameters:
            raise RefusedError(f"{name} is read elsewhere too")
    for name in stream.parameters:
        if name in flow.params or any(u.weight.name == name for u in flow.uses):
            raise RefusedError(f"{name} is read elsewhere too")
    biases = {use.bias.name: use for use in stream.uses if use.bias is not None}
    for use in flow.uses:
        if use.bias is not None and use.bias.name in biases and use.number not in numbers:
            raise RefusedError(f"{use.bias.name} is read in {use.module} too")
    return found


def _out_axis(subject: Subject, use: Use) -> int | None:
    """The axis of the parameter along which the channels of the stream stand."""
    shape = tuple(tensor_at(subject.model, use.weight.name).shape)
    if use.groups > 1 and use.transposed:
        return None
    if use.weight.index is None:
        return use.out_axes[0]
    if len(shape) == 3 and shape[1:] == use.weight_shape:  # an expert of several
        return use.out_axes[0] + 1
    return None


def _edits(
    model: nn.Module,
    subject: Subject,
    stream: Stream,
    ties: dict[tuple[str, str], str],
    plain: set[str],
) -> list[Edit]:
    found = [untie(model, path, name, other) for (path, name), other in ties.items()]
    axes: dict[str, int] = {}
    for use in stream.uses:
        axis = _out_axis(subject, use)
        assert axis is not None
        parameter = tensor_at(subject.model, use.weight.name)
        for name in (use.weight.name, *twins(subject, use.weight.name, parameter)):
            axes[name] = axis
        if use.bias is not None:
            bias = tensor_at(subject.model, use.bias.name)
            for name in (use.bias.name, *twins(subject, use.bias.name, bias)):
                axes[name] = -1
    axes |= dict.fromkeys(stream.parameters, -1)
    found += [write(model, name, "loses its mean over channels", _Centred(axis)) for name, axis in axes.items()]
    for norm in stream.norms:
        keeps = norm.bias is not None and norm.key not in plain
        new = "normkit.Norm with center=False" if keeps else "normkit.RMSNorm"
        found.append(
            replace_module(model, norm.path, f"LayerNorm becomes {new}", partial(_rms, norm, keeps))
        )
    return found


class _Centred:
    def __init__(self, axis: int) -> None:
        self.axis = axis

    def __call__(self, weight: Tensor) -> Tensor:
        return weight - weight.mean(self.axis, keepdim=True)


def _rms(norm: Norm, keeps_bias: bool, old: nn.Module) -> nn.Module:
    """With the very parameters of the old one."""
    own = dict(old.named_parameters())
    gain = own[norm.gain.removeprefix(f"{norm.path}.")] if norm.gain is not None else None
    size = norm.shape[norm.axes[0]]
    like: Any = {"device": gain.device, "dtype": gain.dtype} if gain is not None else {}
    if not keeps_bias:
        new: nn.Module = norms.RMSNorm(size, norm.spec.eps, gain is not None, axis=norm.axes[0], **like)
    else:
        behind = " ".join(f"a{k}" for k in range(-1 - norm.axes[0]))
        new = norms.Norm(f"... [d] {behind}", norm.spec.eps, center=False, affine="d", bias=True, d=size, **like)
        assert norm.bias is not None
        new._parameters["bias"] = own[norm.bias.removeprefix(f"{norm.path}.")]
    if gain is not None:
        new._parameters["weight"] = gain
    return new

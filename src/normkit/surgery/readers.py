"""Who reads a norm, and whether a factor and a shift of each channel can be moved into them.

    W (s ∘ x + t) + b  =  (W diag(s)) x + (b + W t)

It can if every reader is a matrix, every number that it reads is one channel of the norm (or a zero), and
nobody else uses the same numbers of the matrix for something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from normkit.surgery.flow import Flow, Use
from normkit.surgery.labels import UNKNOWN, ZERO, Source
from normkit.surgery.subject import Norm, Subject

__all__ = ["Fold", "RefusedError", "ShiftInto", "plan_fold", "resolve", "twins"]


class RefusedError(Exception):
    """Why a norm is left as it is, in a few words."""


@dataclass(frozen=True)
class ScaleInto:
    """``columns`` of a parameter: which channel of the norm meets each of its numbers (from 1; 0: none)."""

    name: str
    columns: Tensor = field(repr=False)  # broadcasts to the parameter


@dataclass(frozen=True)
class ShiftInto:
    """The bias that takes up W t: by its name; or the module that gets one."""

    weight: str
    index: Tensor | None = field(repr=False)
    columns: Tensor = field(repr=False)  # broadcasts to the part of the weight that is read
    over: tuple[int, ...]  # its axes that are summed over
    factor: float
    bias: str
    bias_index: Tensor | None = field(repr=False)
    new: bool


@dataclass(frozen=True)
class Fold:
    """All that has to be changed so that a factor and a shift of a norm's channels are in its readers.

    shifts    None: a shift cannot go there, because of ``why``
    ties      modules whose weight must be made their own first: path and attribute -> its other name
    """

    norm: Norm
    scales: tuple[ScaleInto, ...]
    shifts: tuple[ShiftInto, ...] | None
    why: str
    ties: dict[tuple[str, str], str]
    unseen: tuple[str, ...] = ()  # parameters that no number of this batch met


def plan_fold(subject: Subject, norm: Norm, *, untie: bool, new_biases: bool = True) -> Fold:
    """The plan, or ``RefusedError``."""
    flow = subject.flow
    if norm.has_activation:
        raise RefusedError("its module goes on with an activation")
    if norm.shares:
        raise RefusedError(f"{norm.shares} has the same parameters")
    for name in filter(None, (norm.gain, norm.bias)):
        if _elsewhere(subject, name) or any(u.weight.name == name for u in flow.uses):
            raise RefusedError(f"{name} is read elsewhere too")
    sources = [use.source for use in flow.norms if use.key == norm.key and use.source is not None]
    if not sources:
        raise RefusedError("the batch does not reach it")
    reached = _reached(flow, sources)
    _refuse_other_readers(flow, norm, reached)
    uses = [use for use in flow.uses if use.labels is not None and _reads(flow, use, reached)]
    if not uses:
        raise RefusedError("no matrix reads it")
    columns = {use.number: _columns(flow, use, sources) for use in uses}
    ties: dict[tuple[str, str], str] = {}
    scales, unseen = _scales(subject, uses, columns, untie, ties)
    shifts, why = _shifts(subject, norm, uses, columns, ties, new_biases)
    return Fold(norm, tuple(scales), shifts, why, ties, tuple(unseen))


def resolve(flow: Flow, label: int) -> tuple[Source, int, float | None]:
    """Back through multiples: the source, the channel of it, and the factor (None: it is no one constant)."""
    factor: float | None = 1.0
    source = flow.labels.source(label)
    while source.kind == "scaled" and source.parts is not None:
        label = int(source.parts[label - source.start])
        factor = None if factor is None or source.factor is None else factor * source.factor
        source = flow.labels.source(label)
    return source, label - source.start, factor


def _reached(flow: Flow, sources: list[Source]) -> set[int]:
    """The starts of these sources, and of all that are multiples of their numbers."""
    found = {s.start for s in sources}
    for source in flow.labels.sources:  # in the order in which they were made
        if source.kind == "scaled" and _has_part_in(flow, source, found):
            found.add(source.start)
    return found


def _has_part_in(flow: Flow, source: Source, starts: set[int]) -> bool:
    assert source.parts is not None
    return any(s.start in starts for s in flow.labels.sources_of(source.parts))


def _refuse_other_readers(flow: Flow, norm: Norm, reached: set[int]) -> None:
    for source in flow.labels.sources:
        if source.kind == "sum" and _has_part_in(flow, source, reached):
            raise RefusedError("its output is added to something else")
    for read in flow.reads:
        if any(s.start in reached for s in read.sources):
            if read.what == "output":
                raise RefusedError("the model returns its output")
            where = f" in {read.module}" if read.module else ""
            raise RefusedError(f"{read.what} reads it{where}")
    for other in flow.norms:
        if any(s.start in reached for s in flow.labels.sources_of(other.labels)):
            raise RefusedError(f"another norm reads it, {other.path}")


def _reads(flow: Flow, use: Use, reached: set[int]) -> bool:
    assert use.labels is not None
    return any(s.start in reached for s in flow.labels.sources_of(use.labels))


@dataclass(frozen=True)
class _Columns:
    """Of the numbers that a matrix reads: the channel (from 1; 0 for another source), and the factor."""

    channels: Tensor
    factor: float | None
    has_zeros: bool


def _columns(flow: Flow, use: Use, sources: list[Source]) -> _Columns:
    assert use.labels is not None
    labels = use.labels
    for axis in range(labels.ndim - 1):
        if labels.shape[axis] > 1 and labels.stride(axis) == 0:
            labels = labels.narrow(axis, 0, 1)
    rows = labels.reshape(-1, labels.shape[-1])
    top = rows.amax(0)
    if not bool(((rows == top) | (rows == ZERO)).all()):
        raise RefusedError(f"{_named(use)} reads numbers of other origin in the same places")
    starts = {s.start for s in sources}
    channels, factors = [], set()
    for label in top.tolist():
        if label in (UNKNOWN, ZERO):
            channels.append(0)
            continue
        source, channel, factor = resolve(flow, label)
        channels.append(channel + 1 if source.start in starts else 0)
        if source.start in starts:
            factors.add(factor)
    factor = factors.pop() if len(factors) == 1 else None
    return _Columns(torch.tensor(channels), factor, bool((rows == ZERO).any()))


def _in_weight(use: Use, channels: Tensor) -> Tensor:
    """The channels as they stand in the weight that is read; broadcasts to it."""
    ndim = len(use.weight_shape)
    if use.groups == 1 or use.transposed:
        view = [1] * ndim
        view[use.in_axis] = len(channels)
        return channels.reshape(view)
    out = use.weight_shape[0]
    by_group = channels.reshape(use.groups, 1, -1).expand(-1, out // use.groups, -1).reshape(out, -1)
    return by_group.reshape([out, by_group.shape[1], *[1] * (ndim - 2)])


def _named(use: Use) -> str:
    return use.weight.name


def _scales(
    subject: Subject,
    uses: list[Use],
    columns: dict[int, _Columns],
    untie: bool,
    ties: dict[tuple[str, str], str],
) -> tuple[list[ScaleInto], list[str]]:
    found: list[ScaleInto] = []
    unseen: list[str] = []
    for name in dict.fromkeys(use.weight.name for use in uses):
        own = [use for use in uses if use.weight.name == name]
        if own[0].weight.is_buffer:
            raise RefusedError(f"{name} is a buffer")
        others = [u for u in subject.flow.uses if u.weight.name == name and u.number not in columns]
        if others or name in _elsewhere(subject, name):
            name = _tied(subject, own, others, untie, ties)
        parameter = subject.model.get_parameter(own[0].weight.name)
        into, is_whole = _merged(own, columns, parameter)
        if not is_whole:
            unseen.append(name)
        found.append(ScaleInto(name, into))
        for twin in twins(subject, name, parameter):
            if twin not in unseen:  # each of its like names it
                found.append(ScaleInto(twin, into))
                unseen.append(twin)
    return found, unseen


def _elsewhere(subject: Subject, name: str) -> set[str]:
    """The name, if something else than a matrix's product reads the parameter."""
    is_number = any(s.kind == "parameter" and s.name == name for s in subject.flow.labels.sources)
    return {name} if is_number or name in subject.flow.params else set()


def _tied(
    subject: Subject, own: list[Use], others: list[Use], untie: bool, ties: dict[tuple[str, str], str]
) -> str:
    """The name that the weight will have for its readers alone."""
    name = own[0].weight.name
    is_embedding = others and all(use.name == "embedding" for use in others)
    if not is_embedding or name in _elsewhere(subject, name):
        used = others[0].module if others else "another place"
        raise RefusedError(f"{name} is used in {used} too")
    places = {use.module for use in own}
    module = subject.model.get_submodule(own[0].module)
    parameter = subject.model.get_parameter(name)
    attribute = next((n for n, p in module._parameters.items() if p is parameter), None)
    if len(places) != 1 or attribute is None or own[0].module in {use.module for use in others}:
        raise RefusedError(
            f"{name} is the embedding's too, and {own[0].module} has no name of its own for it"
        )
    if not untie:
        raise RefusedError(f"{own[0].module}.{attribute} is tied to the embedding {name}")
    ties[own[0].module, attribute] = name
    return f"{own[0].module}.{attribute}"


def _merged(own: list[Use], columns: dict[int, _Columns], parameter: Tensor) -> tuple[Tensor, bool]:
    """What all uses of a parameter say about its numbers, and whether the batch met all of them."""
    views = [(use, _in_weight(use, columns[use.number].channels)) for use in own]
    if all(use.weight.index is None for use, _ in views):
        first = views[0][1]
        if any(v.shape != first.shape or not torch.equal(v, first) for _, v in views):
            raise RefusedError(f"{_named(own[0])} reads it in several ways")
        return first, True
    into = torch.full((parameter.numel(),), UNKNOWN)
    for use, view in views:
        index = use.weight.index
        index = torch.arange(parameter.numel()).reshape(parameter.shape) if index is None else index
        new = view.expand(use.weight_shape).reshape(-1)
        before = into[index.reshape(-1)]
        if not bool(((before == UNKNOWN) | (before == new)).all()):
            raise RefusedError(f"{_named(own[0])} reads it in several ways")
        into[index.reshape(-1)] = new
    into = into.reshape(parameter.shape)
    if not bool((into == UNKNOWN).any()):
        return into, True
    if parameter.ndim == 3:  # experts, of which the batch met some
        slices = [s for s in into if not bool((s == UNKNOWN).any())]
        partly = [s for s in into if bool((s == UNKNOWN).any()) and not bool((s == UNKNOWN).all())]
        if slices and not partly and all(torch.equal(s, slices[0]) for s in slices):
            return slices[0].unsqueeze(0), False
    raise RefusedError(f"of {_named(own[0])} this batch reads a part only")


def twins(subject: Subject, name: str, parameter: Tensor) -> Iterator[str]:
    """Experts that no number of this batch met: members of one list or dict of modules, of one class, with a
    parameter of the same name. Modules of that kind that stand beside each other in another way may be
    anything: they are refused."""
    path, _, attribute = name.rpartition(".")
    parts = path.split(".") if path else []
    for depth in range(len(parts) - 1, -1, -1):
        parent = subject.model.get_submodule(".".join(parts[:depth]))
        own = parent._modules[parts[depth]]
        rest = ".".join([*parts[depth + 1 :], attribute])
        is_container = isinstance(parent, (nn.ModuleList, nn.ModuleDict))
        for key, other in parent._modules.items():
            twin = ".".join([*parts[:depth], key, rest])
            if other is own or type(other) is not type(own) or twin not in subject.unread:
                continue
            if subject.model.get_parameter(twin).shape != parameter.shape:
                continue
            if not is_container and depth == len(parts) - 1:
                raise RefusedError(f"{twin} is like {name}, and this batch does not reach it")
            if is_container:
                yield twin
        if is_container:
            return


def _shifts(
    subject: Subject,
    norm: Norm,
    uses: list[Use],
    columns: dict[int, _Columns],
    ties: dict[tuple[str, str], str],
    new_biases: bool,
) -> tuple[tuple[ShiftInto, ...] | None, str]:
    """Where a shift goes, or None and why it goes nowhere."""
    renamed = {old: f"{module}.{attribute}" for (module, attribute), old in ties.items()}
    found: dict[str, ShiftInto] = {}
    for use in uses:
        these = columns[use.number]
        if these.has_zeros or use.pads:
            return None, f"zeros are padded before {_named(use)}"
        if these.factor is None:
            return None, f"what {_named(use)} reads is multiplied by something on the way"
        if any(True for _ in twins(subject, use.weight.name, subject.model.get_parameter(use.weight.name))):
            return None, f"the batch does not reach all that is like {_named(use)}"
        weight = renamed.get(use.weight.name, use.weight.name)
        bias, index, new = _bias(subject, use, weight, new_biases)
        if bias is None:
            return None, f"{_named(use)} has no bias to put it into"
        ndim = len(use.weight_shape)
        over = tuple(a for a in range(ndim) if a not in use.out_axes)
        shift = ShiftInto(
            weight, use.weight.index, _in_weight(use, these.channels), over, these.factor, bias, index, new
        )
        before = found.get(f"{bias}{_region(index)}")
        if before is not None and before.weight != shift.weight:
            return None, f"{bias} is the bias of several matrices"
        found[f"{bias}{_region(index)}"] = shift
    return tuple(found.values()), ""


def _region(index: Tensor | None) -> str:
    return "" if index is None else f"[{int(index.min())}:{int(index.max())}]"


def _bias(
    subject: Subject, use: Use, weight: str, new_biases: bool
) -> tuple[str | None, Tensor | None, bool]:
    """(its name, the part of it, whether it must be made)."""
    if len(use.out_axes) != 1 or (use.groups > 1 and use.transposed):
        return None, None, False
    if use.bias is not None and not use.bias.is_buffer:
        name = use.bias.name
        readers = [u for u in subject.flow.uses if u.bias is not None and u.bias.name == name]
        alone = all(u.weight.name == use.weight.name for u in readers) and not _elsewhere(subject, name)
        return (name if alone else None), use.bias.index, False
    module = subject.model.get_submodule(use.module)
    plain = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    can_be_made = (
        new_biases
        and not use.has_bias
        and use.weight.index is None
        and isinstance(module, plain)
        and weight == f"{use.module}.weight"
        and module._parameters.get("bias", 0) is None
    )
    return (f"{use.module}.bias", None, True) if can_be_made else (None, None, False)

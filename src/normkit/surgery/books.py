"""The books that are kept while a model runs: which labels each tensor has, and who read what."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from normkit.surgery.flow import Flow, NormUse, Read, Use, WeightView
from normkit.surgery.labels import UNKNOWN, Labels, Source, places
from normkit.surgery.weighted import Meeting

__all__ = ["Books", "Operation", "Target"]


@dataclass(frozen=True)
class Target:
    """A norm that is to be followed: ``axes`` are those of its gain. Without them, its output is no one's."""

    key: str
    path: str
    axes: tuple[int, ...] | None


@dataclass(frozen=True)
class Operation:
    """A call of a function: the floating-point tensors that it read, and those that it made or wrote to."""

    func: Any
    name: str
    kind: str
    args: Any
    kwargs: dict[str, Any]
    read: list[Tensor]
    made: list[Tensor]

    @property
    def out(self) -> Tensor:
        return self.made[0]

    @property
    def in_place(self) -> bool:
        return all(any(t is b for b in self.read) for t in self.made)


class Books:
    """Labels by tensor; ``stack`` holds the modules that are at work, and what they were given."""

    def __init__(self, model: nn.Module) -> None:
        self.flow = Flow(Labels())
        self.labels = self.flow.labels
        self.known: WeakIdKeyDictionary = WeakIdKeyDictionary()  # tensor -> labels
        self.weights: WeakIdKeyDictionary = WeakIdKeyDictionary()  # tensor -> WeightView
        self.seen: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.stack: list[tuple[str, list[Tensor]]] = []
        self.sources: dict[str, Source] = {}  # of parameters that are numbers of the stream
        for name, parameter in model.named_parameters():
            self.weights[parameter] = WeightView(name)
        for name, buffer in model.named_buffers():
            self.weights.setdefault(buffer, WeightView(name, is_buffer=True))

    @property
    def here(self) -> str:
        return self.stack[-1][0] if self.stack else ""

    def is_followed(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor) and (tensor in self.known or tensor in self.weights)

    def labels_of(self, tensor: Any) -> Tensor | None:
        """Of a tensor that is followed; a parameter's own where it is read as numbers."""
        if not isinstance(tensor, Tensor):
            return None
        if tensor in self.known:
            found: Tensor = self.known[tensor]
            return found
        view = self.weights.get(tensor)
        if view is None or not tensor.is_floating_point():
            self.look_at(tensor)
            return None
        if view.name not in self.sources:
            count = tensor.numel() if view.index is None else int(view.index.max()) + 1
            self.sources[view.name] = self.labels.new("parameter", view.name, max(count, view.size, 1))
        start = self.sources[view.name].start
        if view.index is not None:
            return view.index + start
        return torch.arange(start, start + tensor.numel()).reshape(tensor.shape)

    def all_labels(self, value: Any) -> Tensor:
        """Of a tensor or a number, whatever it is."""
        found = self.labels_of(value)
        if found is not None:
            return found
        if isinstance(value, Tensor):
            return torch.full((1,) * value.ndim, UNKNOWN).expand(value.shape)
        return torch.tensor(0 if value == 0 else UNKNOWN)

    def read(self, what: str, *tensors: Any) -> None:
        """These are read, and not followed any further."""
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                continue
            self.look_at(tensor)
            if tensor in self.known:
                sources = tuple(self.labels.sources_of(self.known[tensor]))
                if sources:
                    self.flow.reads.append(Read(what, self.here, sources))
            elif tensor in self.weights:
                self.flow.params.setdefault(self.weights[tensor].name, set()).add(what)

    def look_at(self, tensor: Tensor) -> None:
        """A tensor that no function was seen to make: whatever its module was given may be in it."""
        if tensor in self.seen or tensor in self.weights or not tensor.is_floating_point():
            return
        self.seen[tensor] = True
        if tensor._base is not None and (tensor._base in self.seen or tensor._base in self.weights):
            self.read("a view that nobody saw", tensor._base)
            return
        for given in self.stack[-1][1] if self.stack else []:
            if given in self.known:
                self.read("code that torch cannot show", given)

    def note_norm(self, target: Target, given: list[Tensor], result: Tensor) -> None:
        """A norm was at work: its output has labels of its own."""
        for other in given[1:]:
            self.read("the gate of a norm", other)
        self.seen[result] = True
        source = None
        if target.axes is not None:
            sizes = tuple(result.shape[a] for a in target.axes)
            source = self.labels.new("norm", target.key, math.prod(sizes))
            labels = places(source.start, sizes, target.axes, tuple(result.shape))
            if any(t.is_floating_point() and t.shape == result.shape for t in given[1:]):
                labels = self.labels.scaled(labels, None, uniform=False)
            self.known[result] = labels
        read = self.all_labels(given[0])
        self.flow.norms.append(NormUse(target.key, target.path, read, source, tuple(given[0].shape)))

    def note_use(self, name: str, met: Meeting, labels: Tensor | None, out: Tensor) -> None:
        """A matrix was at work: its output has labels of its own."""
        sizes = tuple(met.weight.shape[a] for a in met.out_axes)
        sizes = (sizes[0] * met.groups,) if met.transposed else sizes
        number, ndim = len(self.flow.uses), met.weight.ndim
        source = self.labels.new("weighted", str(number), math.prod(sizes))
        bias = self.weights.get(met.bias) if isinstance(met.bias, Tensor) else None
        if isinstance(met.bias, Tensor) and bias is None:
            self.read("bias", met.bias)
        self.flow.uses.append(
            Use(
                number,
                name,
                self.here,
                self.weights[met.weight],
                tuple(met.weight.shape),
                bias,
                met.bias is not None,
                labels.movedim(met.x_axis, -1) if labels is not None else None,
                source,
                met.in_axis % ndim,
                tuple(a % ndim for a in met.out_axes),
                met.groups,
                met.pads,
                met.transposed,
            )
        )
        self.known[out] = places(source.start, sizes, met.new_axes, tuple(out.shape))

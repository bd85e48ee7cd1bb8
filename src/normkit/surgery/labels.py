"""Where each number of a tensor comes from, as an integer: its label.

A label is a channel of a source: of a norm's output, of a matrix's output, of a parameter. Numbers that are
sums or multiples of others have labels of their own, which say of what. So whatever a model does with shapes
(heads, windows, a ``cat``, a padding), it is enough to do the same with the labels.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["UNKNOWN", "ZERO", "Labels", "Source", "narrowed", "places", "values"]

UNKNOWN, ZERO = -1, 0  # a number that nobody follows; a zero that was padded


@dataclass(frozen=True)
class Source:
    """Numbers that have labels: ``start`` and the ``count - 1`` that follow it.

    kind      "norm", "weighted" or "parameter", whose channels they are; "sum" and "scaled" of other labels
    name      of the norm, of a parameter; of a matrix, the number of its use
    parts     of a sum (n, 2) and of multiples (n,): the labels that went in
    factor    of multiples: what all were multiplied by; None: by something that is no one constant
    uniform   of multiples: all channels of a number's row by the same
    """

    kind: str
    name: str
    start: int
    count: int
    parts: Tensor | None = field(default=None, compare=False)
    factor: float | None = None
    uniform: bool = True


class Labels:
    """All labels of a run."""

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self._starts: list[int] = []
        self._by_parts: dict[tuple[object, ...], Source] = {}

    def new(self, kind: str, name: str, count: int, **more: object) -> Source:
        start = self.sources[-1].start + self.sources[-1].count if self.sources else 1
        source = Source(kind, name, start, count, **more)  # type: ignore[arg-type]  # its own fields
        self.sources.append(source)
        self._starts.append(start)
        return source

    def source(self, label: int) -> Source:
        """Of a label that is neither ``ZERO`` nor ``UNKNOWN``."""
        return self.sources[bisect.bisect_right(self._starts, label) - 1]

    def sources_of(self, labels: Tensor) -> list[Source]:
        found: dict[int, Source] = {}
        for label in values(labels):
            if label > 0 and not any(s.start <= label < s.start + s.count for s in found.values()):
                source = self.source(label)
                found[source.start] = source
        return list(found.values())

    def sum(self, a: Tensor, b: Tensor) -> Tensor:
        """Labels of ``x + y``; a number that is added to a zero stays what it is."""
        a, b = torch.broadcast_tensors(a, b)
        (small_a, small_b), shape = narrowed(a, b)
        pairs = torch.stack((torch.minimum(small_a, small_b), torch.maximum(small_a, small_b)), -1)
        kinds, where = torch.unique(pairs.reshape(-1, 2), dim=0, return_inverse=True)
        new = self._intern("sum", kinds, None, True)
        found = torch.arange(new.start, new.start + new.count)
        low, high = kinds.unbind(1)
        found = torch.where(low == ZERO, high, found)
        found = torch.where((low == UNKNOWN) & (high <= ZERO), UNKNOWN, found)
        return found[where].reshape(small_a.shape).expand(shape)

    def scaled(self, a: Tensor, factor: float | None, *, uniform: bool = True) -> Tensor:
        """Labels of ``x · factor``. A zero stays one."""
        (small,), shape = narrowed(a)
        kinds, where = torch.unique(small.reshape(-1), return_inverse=True)
        new = self._intern("scaled", kinds, factor, uniform)
        found = torch.where(kinds <= ZERO, kinds, torch.arange(new.start, new.start + new.count))
        return found[where].reshape(small.shape).expand(shape)

    def _intern(self, kind: str, parts: Tensor, factor: float | None, uniform: bool) -> Source:
        """Blocks that repeat what others did get the same labels: a tensor is summed once for each reader."""
        key = (kind, tuple(parts.flatten().tolist()), factor, uniform)
        if key not in self._by_parts:
            self._by_parts[key] = self.new(kind, "", len(parts), parts=parts, factor=factor, uniform=uniform)
        return self._by_parts[key]


def narrowed(*tensors: Tensor) -> tuple[list[Tensor], torch.Size]:
    """Without the axes along which all of them repeat themselves, and the shape that they had."""
    shape = tensors[0].shape
    found = list(tensors)
    for axis, size in enumerate(shape):
        if size > 1 and all(t.stride(axis) == 0 for t in tensors):
            found = [t.narrow(axis, 0, 1) for t in found]
    return found, shape


def values(labels: Tensor) -> list[int]:
    (small,), _ = narrowed(labels)
    return torch.unique(small).tolist()


def places(start: int, sizes: tuple[int, ...], axes: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
    """Labels from ``start`` on, counted along ``axes`` of a tensor of ``shape``; alike along the others."""
    view = [1] * len(shape)
    count = 1
    for axis, size in zip(axes, sizes, strict=True):
        view[axis] = size
        count *= size
    order = sorted(range(len(axes)), key=lambda k: axes[k] % len(shape))
    found = torch.arange(start, start + count).reshape([sizes[k] for k in range(len(axes))])
    return found.permute(order).reshape(view).expand(shape)

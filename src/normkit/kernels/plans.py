"""Which kernel does a norm, and how memory is described to it: by shape and strides alone, for every device.

Rows: the normalised axes lie next to each other. Groups: dense memory is seen as five axes, (k0, r1, k2,
r3, i), with one mean for each (k0, k2), over r1, r3 and i. Parameters lie along (k2, r3), the channels; or
along r1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from torch.compiler import is_compiling

__all__ = ["GroupPlan", "Plan", "RowPlan", "is_dense_as", "memory_order", "plan"]

# What may lie in each of the five: kept or reduced, and whether parameters lie along it.
_ALONG_CHANNELS = ("k", "r", "K", "R", "r")
_ALONG_ROWS = ("k", "R", "k", "", "")
_NO_PARAMETERS = ("k", "r", "k", "", "r")
_NEIGHBOURS = ("k", "", "", "", "r")  # rows, but for a mask


class RowPlan(NamedTuple):
    dims: int  # how many axes are normalised
    order: tuple[int, ...] | None  # the axes as they lie in memory; None: the normalised ones are the last


class GroupPlan(NamedTuple):
    sizes: tuple[int, int, int, int, int]
    order: tuple[int, ...] | None  # the axes as they lie in memory; None: copy it, into their own order
    channels: tuple[int, ...]  # the axes along k2 and r3: a mask may not vary there
    on_rows: bool  # parameters lie along r1

    @property
    def parameters(self) -> int:
        _, r1, k2, r3, _ = self.sizes
        return r1 if self.on_rows else k2 * r3


Plan = RowPlan | GroupPlan


def plan(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    axes: tuple[int, ...],
    along: tuple[int, ...],
    rows: bool,
) -> Plan | str:
    """How to normalise over ``axes`` with parameters along the axes ``along``, or why the kernels cannot.

    ``rows``: the norm is one that the row kernels know.
    """
    make = _plan if is_compiling() else _kept  # a size that is a symbol cannot be kept
    return make(shape, strides, axes, along, rows)


def _plan(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    axes: tuple[int, ...],
    along: tuple[int, ...],
    rows: bool,
) -> Plan | str:
    natural = tuple(range(len(shape)))
    dims = len(axes)
    if rows and dims and axes == natural[-dims:]:
        return RowPlan(dims, None)
    order = memory_order(shape, strides)
    if rows and dims and order is not None and set(order[-dims:]) == set(axes):
        return RowPlan(dims, order)  # the channels of channels_last are rows
    found = _five(shape, order, axes, along) if order is not None else None
    if found is None and order != natural:
        found = _five(shape, natural, axes, along)
        found = found and found._replace(order=None)
    return found or "shared axes, kept axes and axes with parameters alternate too often in memory"


_kept = functools.lru_cache(maxsize=1024)(_plan)


def _five(
    shape: Sequence[int], order: tuple[int, ...], axes: Sequence[int], along: Sequence[int]
) -> GroupPlan | None:
    labels: list[str] = []
    members: list[list[int]] = []
    for axis in order:
        if shape[axis] == 1:
            continue
        label = "r" if axis in axes else "k"
        label = label.upper() if axis in along else label
        if labels and labels[-1] == label:
            members[-1].append(axis)
        else:
            labels.append(label)
            members.append([axis])
    has_parameters = any(label.isupper() for label in labels)
    for form in (_ALONG_CHANNELS, _ALONG_ROWS) if has_parameters else (_NEIGHBOURS, _NO_PARAMETERS):
        places = _fit(labels, form)
        if places is None:
            continue
        sizes = [1, 1, 1, 1, 1]
        for place, own in zip(places, members, strict=True):
            sizes[place] = math.prod([shape[a] for a in own])
        k0, r1, k2, r3, i = sizes
        channels = [a for place, own in zip(places, members, strict=True) if place in (2, 3) for a in own]
        return GroupPlan((k0, r1, k2, r3, i), order, tuple(channels), form is _ALONG_ROWS)
    return None


def _fit(labels: Sequence[str], form: Sequence[str]) -> tuple[int, ...] | None:
    """Places for all labels, in order: as far to the right as they go, where passes over memory are long."""
    places: list[int] = []
    place = len(form)
    for label in reversed(labels):
        place -= 1
        while place >= 0 and form[place] != label:
            place -= 1
        if place < 0:
            return None
        places.append(place)
    return tuple(reversed(places))


def memory_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The axes from the outermost to the innermost, if together they fill one block of memory."""
    natural = tuple(range(len(shape)))
    if is_dense_as(shape, strides, natural):
        return natural
    order: list[int] = []  # by hand: a stride that torch.compile knows as a symbol is no key for sorted()
    for axis in natural:
        at = len(order)
        while at > 0 and strides[order[at - 1]] < strides[axis]:
            at -= 1
        order.insert(at, axis)
    return tuple(order) if is_dense_as(shape, strides, order) else None


def is_dense_as(shape: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> bool:
    """Do the axes, in this order, lie in one block of memory? An axis of one number may have any stride."""
    step = 1
    for axis in reversed(order):
        if shape[axis] != 1:
            if strides[axis] != step:
                return 0 in shape
            step = step * shape[axis]
    return True

"""Text that occurs twice: what was kept apart says nothing where it is a copy of what was trained on."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["LENGTH", "copied"]

LENGTH = 64  # bytes, a power of two: shorter repetitions are what a language is made of
CHUNK = 1 << 22
FACTOR = 0x9E3779B97F4A7C15  # odd


def copied(text: Tensor, other: Tensor) -> Tensor:
    """For every byte of a text, whether it lies in a stretch of 64 bytes that occurs in the other, too.

    Example:
        >>> a, b = torch.arange(200, dtype=torch.uint8), torch.arange(100, 250, dtype=torch.uint8)
        >>> copied(a, b).nonzero().flatten().tolist() == list(range(100, 200))
        True
    """
    marks = torch.zeros(len(text), dtype=torch.bool)
    wanted = _hashes(text)
    if not len(wanted):
        return marks
    known = wanted.unique()  # sorted
    found = torch.zeros(len(known), dtype=torch.bool)
    for start in range(0, max(0, len(other) - LENGTH + 1), CHUNK):
        there = _hashes(other[start : start + CHUNK + LENGTH - 1])
        place = torch.searchsorted(known, there).clamp_(max=len(known) - 1)
        found[place[known[place] == there]] = True
    starts = found[torch.searchsorted(known, wanted)]
    # A byte is marked if one of the 64 stretches that it lies in is.
    count = torch.nn.functional.pad(starts.long().cumsum(0), (LENGTH, LENGTH - 1), value=0)
    count[len(starts) + LENGTH :] = count[len(starts) + LENGTH - 1]
    return count[LENGTH:] > count[:-LENGTH]


def _hashes(text: Tensor) -> Tensor:
    """Of every stretch, by doubling: modulo 2^64, as integers overflow."""
    values, width, factor = text.long() + 1, 1, FACTOR
    while width < LENGTH:
        if len(values) <= width:
            return values[:0]
        values = values[:-width] + values[width:] * _signed(factor)
        width, factor = 2 * width, factor * factor % (1 << 64)
    return values


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number

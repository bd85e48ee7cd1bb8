"""Which rows are trained on, which choose and which judge; and the windows that lie wholly in one part.

No row is in two parts, and a window never crosses from one part, or from one series, to another: what is
judged by shares no time step with what was trained on.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = [
    "EARLIEST",
    "HELD_OUT",
    "TRAINING",
    "UNUSED",
    "VALIDATION",
    "cut_at_gaps",
    "longest",
    "origin",
    "parts_by_pieces",
    "parts_by_time",
    "window_starts",
]

TRAINING, VALIDATION, HELD_OUT, UNUSED = 0, 1, 2, -1
APART, CHOOSING = 0.25, 0.15  # of the rows that are used: those that judge, and those that choose
EARLIEST = 0.85  # of the rows: where the data of a seed may end; a fifth of all is held out even then
ENOUGH = 10  # series, to keep whole ones apart
BLOCKS = 30  # into which too few series are cut
SHORTEST = 3  # lengths of a window, of such a block
GAP = 5  # usual steps; a hole of fewer rows is bridged
USUAL, NEAR = 0.95, 0.15  # of the steps, so that times are regular at all; months differ by a tenth


def cut_at_gaps(series: Tensor, time: Tensor) -> Tensor:
    """Numbers the stretches of rows of one series without a gap in time.

    There are none where steps are irregular by nature, as from one trading day to the next.

    Example:
        >>> hours = torch.cat([torch.arange(30.0), torch.arange(200.0, 230.0)])
        >>> cut_at_gaps(torch.zeros(60, dtype=torch.long), hours).bincount()
        tensor([30, 30])
    """
    begins, step = series.diff() != 0, time.diff().double()
    own = step[~begins]
    usual = own.median() if len(own) else own.sum()
    if usual > 0 and ((own - usual).abs() <= NEAR * usual).double().mean() >= USUAL:
        begins = begins | (step > GAP * usual)
    return torch.cat([torch.zeros(1, dtype=torch.long), begins.long().cumsum(0)])


def origin(seed: int) -> float:
    """Where the data of a seed end, as a share of all rows."""
    draw = torch.Generator().manual_seed(seed)
    return EARLIEST + (1 - EARLIEST) * torch.rand((), generator=draw, dtype=torch.float64).item()


def parts_by_time(time: Tensor, end: float) -> Tensor:
    """The part of each row: the past is trained on, what comes next chooses, and the future judges.

    What is later than ``end``, a share of the rows, is not used: each seed has another (rolling-origin
    evaluation). Rows of the same time are in the same part, whatever series they belong to.

    Reference: Tashman 2000, International Journal of Forecasting 16(4).
    """
    ordered, count = time.sort().values, len(time)
    parts = torch.full((count,), TRAINING)
    for part, share in ((VALIDATION, 1 - APART - CHOOSING), (HELD_OUT, 1 - APART), (UNUSED, 1.0)):
        first = int(share * end * count)
        if first < count:
            parts[time >= ordered[first]] = part
    return parts


def parts_by_pieces(series: Tensor, labels: Tensor, length: int, seed: int) -> Tensor:
    """The part of each row, for classes that do not depend on when it is: whole series are drawn, or blocks
    of consecutive rows where there are too few series, the same share of each class.

    Between blocks of different parts a window's length of rows is left out, as neighbours are much alike.
    """
    counts = torch.bincount(series)
    whole = len(counts) >= ENOUGH and int(counts.max()) <= len(series) / 3
    pieces = series if whole else _blocks(counts, max(SHORTEST * length, len(series) // BLOCKS))
    members = torch.zeros(int(pieces.max()) + 1, int(labels.max()) + 1, dtype=torch.long)
    known = labels >= 0
    members.index_put_((pieces[known], labels[known]), torch.tensor(1), accumulate=True)
    classes = members.argmax(dim=1)
    draw = torch.Generator().manual_seed(seed)
    part_of = torch.full((len(members),), TRAINING)
    for number in range(members.shape[1]):
        own = (classes == number).nonzero().flatten()
        own = own[torch.randperm(len(own), generator=draw)]
        judge = math.ceil(APART * len(own)) if len(own) > 1 else 0
        choose = math.ceil(CHOOSING * len(own)) if len(own) > 2 else 0
        part_of[own[:judge]] = HELD_OUT
        part_of[own[judge : judge + choose]] = VALIDATION
    parts = part_of[pieces]
    if whole:
        return parts
    changed = (parts.diff() != 0) & (series.diff() == 0)
    after = changed.nonzero() + 1 + torch.arange(length)
    after = after[after < len(parts)]
    parts[after] = UNUSED
    return parts


def _blocks(counts: Tensor, rows: int) -> Tensor:
    """The number of its block, for every row; series of these many rows, one after the other."""
    found, first = [], 0
    for count in counts.tolist():
        blocks = max(1, count // rows)
        found.append(first + torch.arange(count) * blocks // max(1, count))
        first += blocks
    return torch.cat(found)


def window_starts(series: Tensor, parts: Tensor, part: int, span: int) -> Tensor:
    """The first rows of all windows of ``span`` rows in a part.

    Example:
        >>> window_starts(torch.tensor([0, 0, 0, 0, 1, 1]), torch.tensor([0, 0, 0, 2, 0, 0]), 0, 2)
        tensor([0, 1, 4])
    """
    stretch = _stretches(series, parts)
    starts = torch.arange(max(0, len(series) - span + 1))
    return starts[(stretch[starts] == stretch[starts + span - 1]) & (parts[starts] == part)]


def longest(series: Tensor, parts: Tensor, part: int) -> int:
    """How many rows the longest stretch of a part has."""
    counts = torch.bincount(_stretches(series, parts)[parts == part])
    return int(counts.max()) if len(counts) else 0


def _stretches(series: Tensor, parts: Tensor) -> Tensor:
    """Numbers the stretches of consecutive rows that are of one series and one part."""
    begins = torch.zeros(len(series), dtype=torch.long)
    begins[1:] = ((series.diff() != 0) | (parts.diff() != 0)).long()
    return begins.cumsum(0)

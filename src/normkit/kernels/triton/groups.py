"""The group operators on Triton: the arguments of ``torch.ops.normkit.groups*``; statistics are float32 here."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from normkit.kernels.by_reference import STATISTICS, pack_statistics
from normkit.kernels.triton import group_kernels as kernels
from normkit.kernels.triton import row_kernels
from normkit.kernels.triton.launch import launch
from normkit.kernels.triton.tiles import next_power_of_2

__all__ = ["groups", "groups_backward", "groups_out", "update_running"]

TILE = 2048  # numbers at a time
PLACES = 512  # of a channel in a chunk, where it has as many
PARTS = 256  # chunks at a time that are put together


def groups(
    x: Tensor,
    k0: int,
    r1: int,
    k2: int,
    r3: int,
    i: int,
    weight: Tensor | None,
    bias: Tensor | None,
    weight_on_rows: bool,
    mask: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    eps: float,
    center: bool,
) -> tuple[Tensor, Tensor]:
    y = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    stats = groups_out(x, k0, r1, k2, r3, i, weight, bias, weight_on_rows, mask, mean, var, eps, center, y)
    return y, stats


def groups_out(
    x: Tensor,
    k0: int,
    r1: int,
    k2: int,
    r3: int,
    i: int,
    weight: Tensor | None,
    bias: Tensor | None,
    weight_on_rows: bool,
    mask: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    eps: float,
    center: bool,
    out: Tensor,
) -> Tensor:
    """The statistics, as ``group_finish`` says them."""
    if mean is not None and var is not None and x.numel() > 0:
        stats = _given(mean, var, k0, eps)
    elif x.numel() == 0:
        stats = pack_statistics(x.new_zeros((3, k0 * k2), dtype=torch.float32), eps)
    else:
        stats = _statistics(x, _cut(r1, k2 * r3, i), k0, r1, k2, r3, i, mask, eps, center)
    if x.numel() == 0:
        return stats
    cut = _cut(r1, k2 * r3, i)
    arguments = (x, mask, stats, _flat(weight), _flat(bias), out, r1, k2 * r3, i, r3, cut.chunks, cut.steps)
    constants = (*cut.tile, mask is not None, weight is not None, bias is not None, weight_on_rows)
    grid = (k0 * cut.chunks, cut.blocks)
    launch(kernels.group_apply, grid, (*arguments, k0 * k2), constants, 4, x.device)
    return stats


def groups_backward(
    dy: Tensor,
    x: Tensor,
    k0: int,
    r1: int,
    k2: int,
    r3: int,
    i: int,
    weight: Tensor | None,
    bias: Tensor | None,
    weight_on_rows: bool,
    mask: Tensor | None,
    stats: Tensor,
    given: bool,
    eps: float,
    center: bool,
    need_dweight: bool,
    need_dbias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    dx = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    channels, n_groups, device = k2 * r3, k0 * k2, x.device
    wide = r1 if weight_on_rows else channels
    needed = (need_dweight, need_dbias)
    dweight, dbias = (
        x.new_empty((wide if need else 0,), dtype=torch.float32 if p is None else p.dtype)
        for p, need in zip((weight, bias), needed, strict=True)
    )
    if x.numel() == 0:
        return dx, dweight.zero_(), dbias.zero_()
    weight = _flat(weight)
    cut = _cut(r1, channels, i)
    grid = (k0 * cut.chunks, cut.blocks)
    sizes = (r1, channels, i, r3, cut.chunks, cut.steps, n_groups)
    constants = None
    of_channels = any(needed) and not weight_on_rows
    if of_channels or not given:
        size = k0 * cut.chunks * channels
        parts = x.new_empty((2, k0 * cut.chunks, channels), dtype=torch.float32)
        on_rows = weight_on_rows and weight is not None
        settings = (*cut.tile, mask is not None, on_rows)
        launch(
            kernels.group_sums, grid, (dy, x, mask, stats, weight, parts, *sizes, size), settings, 4, device
        )
        for part, gradient, need in zip(parts, (dweight, dbias), needed, strict=True):
            if need and not weight_on_rows:
                _sum(part, gradient)
        if not given:
            constants = x.new_empty((2, n_groups), dtype=torch.float32)
            block = min(PARTS, next_power_of_2(cut.chunks * r3))
            weighs = weight is not None and not weight_on_rows
            numbers = (n_groups, k2, r3, cut.chunks, size)
            arguments = (parts, weight, stats, constants, *numbers)
            launch(kernels.group_constants, (n_groups,), arguments, (block, weighs), 1, device)
    arguments = (dy, x, mask, stats, constants, weight, dx, *sizes)
    settings = (*cut.tile, center, mask is not None, weight is not None, weight_on_rows, given)
    launch(kernels.group_backward, grid, arguments, settings, 4, device)
    if weight_on_rows and any(needed):
        parts = x.new_empty((2, k0, r1), dtype=torch.float32)
        block_q = min(16, next_power_of_2(r1))
        numbers = (r1, channels, r3, n_groups, k0 * r1)
        settings = (min(128, next_power_of_2(channels)), block_q, mask is not None)
        arguments = (dy, x, mask, stats, parts, *numbers)
        launch(kernels.group_row_parameters, (k0, -(-r1 // block_q)), arguments, settings, 4, device)
        for part, gradient, need in zip(parts, (dweight, dbias), needed, strict=True):
            if need:
                _sum(part, gradient)
    return dx, dweight, dbias


def update_running(mean: Tensor, var: Tensor, stats: Tensor, momentum: float) -> None:
    channels = mean.numel()
    if channels > 0:
        arguments = (mean, var, stats, channels, float(momentum))
        launch(kernels.move_running, (-(-channels // 256),), arguments, (256,), 4, mean.device)


class _Cut(NamedTuple):
    """How the places of every channel are cut into chunks, and the channels into blocks."""

    tile: tuple[int, int, bool]  # channels, places, and whether channels are the neighbours in memory
    chunks: int
    steps: int  # of a chunk, a tile each
    blocks: int


def _cut(r1: int, channels: int, i: int) -> _Cut:
    """By the sizes of one k0 alone."""
    columns = i == 1
    if columns:
        block_c = min(64, next_power_of_2(channels))
        block_q = min(TILE // block_c, next_power_of_2(r1))
        total = -(-r1 // block_q)
    else:
        block_q = min(1024, next_power_of_2(i))
        block_c = min(TILE // block_q, next_power_of_2(channels))
        total = r1 * -(-i // block_q)
    steps = min(max(1, PLACES // block_q), total)
    return _Cut((block_c, block_q, columns), -(-total // steps), steps, -(-channels // block_c))


def _statistics(
    x: Tensor,
    cut: _Cut,
    k0: int,
    r1: int,
    k2: int,
    r3: int,
    i: int,
    mask: Tensor | None,
    eps: float,
    center: bool,
) -> Tensor:
    channels, size = k2 * r3, k0 * cut.chunks * k2 * r3
    parts = x.new_empty((5, k0 * cut.chunks, channels), dtype=torch.float32)
    arguments = (x, mask, parts, r1, channels, i, cut.chunks, cut.steps, eps, size)
    grid = (k0 * cut.chunks, cut.blocks)
    launch(kernels.group_moments, grid, arguments, (*cut.tile, center, mask is not None), 4, x.device)
    stats = x.new_empty((STATISTICS, k0 * k2), dtype=torch.float32)
    block = min(PARTS, next_power_of_2(cut.chunks * r3))
    numbers = (k0 * k2, k2, r3, cut.chunks, eps, size)
    launch(kernels.group_finish, (k0 * k2,), (parts, stats, *numbers), (block, center), 1, x.device)
    return stats


def _given(mean: Tensor, var: Tensor, k0: int, eps: float) -> Tensor:
    """The statistics of every k0 are the given ones."""
    k2 = mean.numel()
    stats = mean.new_empty((STATISTICS, k0 * k2), dtype=torch.float32)
    arguments = (mean.contiguous(), var.contiguous(), stats, k2, k0 * k2, eps)
    launch(kernels.given_statistics, (-(-k0 * k2 // 256),), arguments, (256,), 4, mean.device)
    return stats


def _sum(parts: Tensor, out: Tensor) -> None:
    count, dim = parts.shape
    launch(row_kernels.sum_partials, (-(-dim // 64),), (parts, out, count), (dim, 64, 32), 4, parts.device)


def _flat(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.contiguous()

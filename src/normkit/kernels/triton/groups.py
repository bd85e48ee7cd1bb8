"""The group operators on Triton, called like ``torch.ops.normkit.groups*``; statistics are in float32."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from normkit.kernels.by_reference import STATISTICS, pack_statistics
from normkit.kernels.triton.device import group_backward, group_forward
from normkit.kernels.triton.launch import Launch, launch
from normkit.kernels.triton.rows import sum_partials
from normkit.kernels.triton.tiles import next_power_of_2

__all__ = ["groups", "groups_backward", "groups_out", "plan_forward", "update_running"]

TILE = {2: 2048, 4: 1024}  # numbers at a time, by their bytes
PLACES = 512  # of a channel in a chunk, where it has as many
PARTS = 256  # chunks at a time that are put together
MOST_BLOCKS = 65535  # along the second axis of a grid
CHANNELS = 256  # at a time, where there is one number for each
Sizes = tuple[int, int, int, int, int, int]  # the five, and the bytes of a number
Step = tuple[Launch, tuple[str, ...]]  # and the names of the tensors that it takes


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
    return y, groups_out(x, k0, r1, k2, r3, i, weight, bias, weight_on_rows, mask, mean, var, eps, center, y)


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
    if x.numel() == 0:
        return pack_statistics(x.new_zeros((3, k0 * k2), dtype=torch.float32), eps)
    sizes, device = (k0, r1, k2, r3, i, x.element_size()), x.device
    stats = x.new_empty((STATISTICS, k0 * k2), dtype=torch.float32)
    if mean is not None and var is not None:
        launch(_plan_given(k2, k0 * k2, eps), (mean.contiguous(), var.contiguous(), stats), device)
    else:
        parts = x.new_empty((5, k0 * _cut(sizes).chunks, k2 * r3), dtype=torch.float32)
        moments, finish = _plan_statistics(sizes, eps, center, mask is not None)
        launch(moments, (x, mask, parts), device)
        launch(finish, (parts, stats), device)
    given = (mask is not None, weight is not None, bias is not None, weight_on_rows)
    launch(_plan_apply(sizes, given), (x, mask, stats, _flat(weight), _flat(bias), out), device)
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
    sizes, device, needed = (k0, r1, k2, r3, i, x.element_size()), x.device, (need_dweight, need_dbias)
    dx = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
    wide = r1 if weight_on_rows else k2 * r3
    dweight, dbias = (
        x.new_empty((wide if need else 0,), dtype=torch.float32 if p is None else p.dtype)
        for p, need in zip((weight, bias), needed, strict=True)
    )
    if x.numel() == 0:
        return dx, dweight.zero_(), dbias.zero_()
    weight = _flat(weight)
    calls = _plan_backward(sizes, mask is not None, weight is not None, weight_on_rows, given, center)
    parts = constants = None
    if not given or (any(needed) and not weight_on_rows):
        parts = stats.new_empty((2, k0 * _cut(sizes).chunks, k2 * r3))
        launch(calls.sums, (dy, x, mask, stats, weight, parts), device)
    if not given:
        constants = stats.new_empty((2, k0 * k2))
        launch(calls.constants, (parts, weight, stats, constants), device)
    launch(calls.apply, (dy, x, mask, stats, constants, weight, dx), device)
    if weight_on_rows and any(needed):
        parts = stats.new_empty((2, k0, r1))
        launch(calls.row_parameters, (dy, x, mask, stats, parts), device)
    for k, gradient in enumerate((dweight, dbias)):
        if needed[k] and parts is not None:
            sum_partials(parts[k], gradient)
    return dx, dweight, dbias


def update_running(mean: Tensor, var: Tensor, stats: Tensor, momentum: float) -> None:
    if mean.numel() > 0:
        launch(_plan_running(mean.numel(), float(momentum)), (mean, var, stats), mean.device)


def plan_forward(
    sizes: Sizes, eps: float, given: bool, momentum: float | None, weight: bool, bias: bool
) -> tuple[list[Step], int]:
    """What a norm without a mask launches on tensors of which names, and how many float32 it works with."""
    k0, _, k2, r3, _, _ = sizes
    steps: list[Step] = []
    work = 0
    if given:
        steps.append((_plan_given(k2, k0 * k2, eps), ("mean", "var", "stats")))
    else:
        work = 5 * k0 * _cut(sizes).chunks * k2 * r3
        moments, finish = _plan_statistics(sizes, eps, True, False)
        steps += [(moments, ("x", "none", "work")), (finish, ("work", "stats"))]
    of = (False, weight, bias, False)
    steps.append((_plan_apply(sizes, of), ("x", "none", "stats", "weight", "bias", "y")))
    if momentum is not None:
        steps.append((_plan_running(k2, momentum), ("mean", "var", "stats")))
    return steps, work


class _Cut(NamedTuple):
    """How the places of every channel are cut into chunks, and the channels into blocks."""

    tile: tuple[int, int, bool]  # channels, places, and whether channels are the neighbours in memory
    chunks: int
    steps: int  # of a chunk, a tile each
    blocks: int


class _Backward(NamedTuple):
    sums: Launch
    constants: Launch
    apply: Launch
    row_parameters: Launch


@functools.lru_cache(maxsize=1024)
def _cut(sizes: Sizes) -> _Cut:
    """By the sizes of one k0 alone."""
    _, r1, k2, r3, i, itemsize = sizes
    channels, columns = k2 * r3, i == 1
    if columns:
        block_c = min(64, next_power_of_2(channels))
        block_q = min(TILE[itemsize] // block_c, next_power_of_2(r1))
        total = -(-r1 // block_q)
    else:
        block_q = min(1024, next_power_of_2(i))
        block_c = min(TILE[itemsize] // block_q, next_power_of_2(channels))
        while -(-channels // block_c) > MOST_BLOCKS:
            block_c, block_q = 2 * block_c, max(1, block_q // 2)
        total = r1 * -(-i // block_q)
    steps = min(max(1, PLACES // block_q), total)
    return _Cut((block_c, block_q, columns), -(-total // steps), steps, -(-channels // block_c))


@functools.lru_cache(maxsize=1024)
def _plan_given(k2: int, groups: int, eps: float) -> Launch:
    grid = (-(-groups // CHANNELS),)
    return Launch(group_forward.given_statistics, grid, (k2, groups, eps), (CHANNELS,), 4)


@functools.lru_cache(maxsize=1024)
def _plan_statistics(sizes: Sizes, eps: float, center: bool, mask: bool) -> tuple[Launch, Launch]:
    k0, r1, k2, r3, i, _ = sizes
    cut = _cut(sizes)
    size = k0 * cut.chunks * k2 * r3
    numbers: tuple[float, ...] = (r1, k2 * r3, i, cut.chunks, cut.steps, eps, size)
    moments = Launch(
        group_forward.group_moments, (k0 * cut.chunks, cut.blocks), numbers, (*cut.tile, center, mask), 4
    )
    numbers = (k0 * k2, k2, r3, cut.chunks, eps, size)
    block = min(PARTS, next_power_of_2(cut.chunks * r3))
    return moments, Launch(group_forward.group_finish, (k0 * k2,), numbers, (block, center), 1)


@functools.lru_cache(maxsize=1024)
def _plan_apply(sizes: Sizes, given: tuple[bool, bool, bool, bool]) -> Launch:
    k0, r1, k2, r3, i, itemsize = sizes
    cut = _cut(sizes)
    numbers = (r1, k2 * r3, i, r3, cut.chunks, cut.steps, k0 * k2)
    grid, warps = (k0 * cut.chunks, cut.blocks), 8 if itemsize == 2 else 4  # 4 spill on sm_120
    return Launch(group_forward.group_apply, grid, numbers, (*cut.tile, *given), warps)


@functools.lru_cache(maxsize=1024)
def _plan_backward(
    sizes: Sizes, mask: bool, weight: bool, on_rows: bool, given: bool, center: bool
) -> _Backward:
    k0, r1, k2, r3, i, _ = sizes
    cut, channels = _cut(sizes), k2 * r3
    grid, size = (k0 * cut.chunks, cut.blocks), k0 * cut.chunks * channels
    places = (r1, channels, i, r3, cut.chunks, cut.steps, k0 * k2)
    block = min(PARTS, next_power_of_2(cut.chunks * r3))
    block_q = min(16, next_power_of_2(r1))
    return _Backward(
        Launch(group_backward.group_sums, grid, (*places, size), (*cut.tile, mask, on_rows and weight), 4),
        Launch(
            group_backward.group_constants,
            (k0 * k2,),
            (k0 * k2, k2, r3, cut.chunks, size),
            (block, weight and not on_rows),
            1,
        ),
        Launch(
            group_backward.group_backward, grid, places, (*cut.tile, center, mask, weight, on_rows, given), 4
        ),
        Launch(
            group_backward.group_row_parameters,
            (k0, -(-r1 // block_q)),
            (r1, channels, r3, k0 * k2, k0 * r1),
            (min(128, next_power_of_2(channels)), block_q, mask),
            4,
        ),
    )


@functools.lru_cache(maxsize=1024)
def _plan_running(channels: int, momentum: float) -> Launch:
    return Launch(
        group_forward.move_running, (-(-channels // CHANNELS),), (channels, momentum), (CHANNELS,), 4
    )


def _flat(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.contiguous()

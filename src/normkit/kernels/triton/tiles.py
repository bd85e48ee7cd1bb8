"""How a row is laid over a program: by D and the dtype alone, so that its bits depend on nothing else.

The limits are those at which the compiler still keeps a row in registers without spilling: `make gpu` shows
them for each architecture, and a test fails when a kernel starts to spill.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Tile", "backward_tile", "forward_tile", "is_long_backward", "is_long_forward", "next_power_of_2"]

MAX_FORWARD = {2: 32768, 4: 16384}  # the longest row in registers, by the bytes of an element
MAX_BACKWARD = {2: 8192, 4: 4096}
LONG_BLOCK = 4096  # columns at a time of a row that is looped over; half of that backward
ROWS_PER_PARTIAL = 32  # rows whose share of dweight and dbias is one partial sum, where there are many rows
PARTIALS = 128  # as many as there are, at least, before a partial sum takes more rows


class Tile(NamedTuple):
    block: int  # columns
    rows: int
    warps: int


def forward_tile(dim: int, itemsize: int) -> Tile:
    """Some 2,048 numbers a program for short rows; 16 to 64 numbers a thread for long ones."""
    block = next_power_of_2(dim)
    if is_long_forward(dim, itemsize):
        return Tile(LONG_BLOCK, 1, 8)
    if block <= 2048:
        return Tile(block, max(1, min(32, 2048 // block)), 4)
    return Tile(block, 1, min(16, block * itemsize // 2048))


def backward_tile(dim: int, itemsize: int) -> Tile:
    """Half as many numbers a thread: there are two tensors to hold, and sums over rows."""
    block = next_power_of_2(dim)
    if is_long_backward(dim, itemsize):
        return Tile(LONG_BLOCK // 2, 1, 8)
    if block <= 1024:
        return Tile(block, max(1, min(16, 1024 // block)), 4)
    return Tile(block, 1, min(16, block * itemsize // 1024))


def is_long_forward(dim: int, itemsize: int) -> bool:
    return dim > MAX_FORWARD[itemsize]


def is_long_backward(dim: int, itemsize: int) -> bool:
    return dim > MAX_BACKWARD[itemsize]


def rows_per_partial(rows: int, tile_rows: int) -> int:
    """A multiple of a tile's rows. It follows from the shape: one shape, one order of sums."""
    wanted = min(ROWS_PER_PARTIAL, max(1, rows // PARTIALS))
    return -(-wanted // tile_rows) * tile_rows


def next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length() if n > 1 else 1

"""The memory of the emulator: tensors, each at an address of its own, and what a block shares."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["GlobalMemory", "PTXError", "SharedMemory", "Tensor"]

Array = np.ndarray[Any, Any]
SPACE = 40  # tensor k begins at (k + 1) · 2^40: an address names its tensor


class PTXError(RuntimeError):
    """The program did what no program may do."""


class Tensor:
    """The bytes of a tensor, how often each was read and written, and how wide accesses were, in bits.

    A gap (at, bytes) is a place where nothing lies, and which takes no memory here.
    """

    def __init__(self, name: str, data: Array, gap: tuple[int, int] = (0, 0)) -> None:
        self.name, self.gap = name, gap
        self.data = data.reshape(-1).view(np.uint8)
        self.reads = np.zeros(self.data.size, np.int64)
        self.writes = np.zeros(self.data.size, np.int64)
        self.load_bits: set[int] = set()
        self.store_bits: set[int] = set()


class GlobalMemory:
    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors

    def address(self, index: int) -> int:
        return (index + 1) << SPACE

    def load(self, addresses: Array, size: int, threads: Array) -> Array:
        """``size`` bytes for each address: (threads, size)."""
        tensor, places = self._at(addresses, size)
        if tensor is None:
            return np.zeros((0, size), np.uint8)
        tensor.load_bits.add(8 * size)
        np.add.at(tensor.reads, places, 1)
        return tensor.data[places]

    def store(self, addresses: Array, values: Array, threads: Array) -> None:
        tensor, places = self._at(addresses, values.shape[1])
        if tensor is not None:
            tensor.store_bits.add(8 * values.shape[1])
            np.add.at(tensor.writes, places, 1)
            tensor.data[places] = values

    def barrier(self) -> None:
        """Nothing waits for global memory."""

    def _at(self, addresses: Array, size: int) -> tuple[Tensor | None, Array]:
        if not addresses.size:
            return None, addresses
        index = int(addresses[0] >> np.uint64(SPACE)) - 1
        if not 0 <= index < len(self.tensors):
            raise PTXError(f"address {int(addresses[0]):#x} is in no tensor")
        tensor = self.tensors[index]
        first = addresses.astype(np.int64) - self.address(index)
        start, length = tensor.gap
        if np.any((first >= start) & (first < start + length)):
            raise PTXError(f"an access to {tensor.name} where nothing lies")
        first = np.where(first >= start + length, first - length, first)
        return tensor, _places(first, size, tensor.data.size, tensor.name)


class SharedMemory:
    """Lock step hides a barrier that is missing, so which warps used a byte since the last one is kept."""

    def __init__(self, size: int) -> None:
        self.data = np.full(size, 255, np.uint8)
        self.readers, self.writers = np.zeros((2, size), np.uint32)  # a bit for each warp

    def load(self, addresses: Array, size: int, threads: Array) -> Array:
        places, warps = self._at(addresses, size, threads)
        np.bitwise_or.at(self.readers, places, warps)
        if np.any(self.writers[places] & ~warps):
            raise PTXError(
                "a thread reads what another one wrote to shared memory, without a barrier between"
            )
        return self.data[places]

    def store(self, addresses: Array, values: Array, threads: Array) -> None:
        """Two threads may write one byte if they write the same: Triton does so with what several hold."""
        places, warps = self._at(addresses, values.shape[1], threads)
        before, others = self.data[places], (self.readers | self.writers)[places] & ~warps
        np.bitwise_or.at(self.writers, places, warps)
        self.data[places] = values
        if np.any(self.data[places] != values) or np.any((others != 0) & (before != values)):
            raise PTXError(
                "a thread writes to shared memory that another one uses, without a barrier between"
            )

    def barrier(self) -> None:
        self.readers[:] = self.writers[:] = 0

    def _at(self, addresses: Array, size: int, threads: Array) -> tuple[Array, Array]:
        places = _places(addresses.astype(np.int64), size, self.data.size, "shared memory")
        warps = np.uint32(1) << (threads // 32).astype(np.uint32)
        return places, np.broadcast_to(warps[:, None], places.shape)


def _places(first: Array, size: int, end: int, name: str) -> Array:
    """The bytes of each access: (threads, size)."""
    if np.any(first % size):
        raise PTXError(f"an access of {size} bytes to {name} is not aligned")
    if np.any(first < 0) or np.any(first + size > end):
        raise PTXError(f"an access outside {name}: bytes {first.min()} to {first.max() + size} of {end}")
    return first[:, None] + np.arange(size)

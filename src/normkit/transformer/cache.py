"""Keys and values of the tokens so far, so that a new token costs one step."""

from __future__ import annotations

import torch
from torch import Tensor

from normkit.errors import refusal

__all__ = ["Cache"]


class Cache:
    """Memory for the keys and values of every layer, filled from the front.

    ``length`` tokens are in it.
    """

    def __init__(
        self,
        layers: int,
        batch: int,
        heads: int,
        context: int,
        size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (layers, 2, batch, heads, context, size)
        self.memory = torch.empty(shape, dtype=dtype, device=device)
        self.context, self.length = context, 0
        self.crossed: dict[int, tuple[Tensor, Tensor]] = {}  # keys and values of an encoder's output

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store those of new tokens, and return all. ``advance`` moves on when the last layer is done."""
        if key.requires_grad:
            raise refusal(
                "A cache got keys that record a gradient.",
                expected="inference: what is in a cache gets no gradient",
                fix="call the model under torch.no_grad(), or without a cache.",
            )
        end = self.length + key.shape[-2]
        if end > self.context:
            raise refusal(
                f"The cache got token {end}; it was made for {self.context}.",
                expected=f"at most {self.context} tokens, prompt and continuation together",
                fix="make a cache for more, or generate fewer tokens.",
            )
        keys, values = self.memory[layer]
        keys[:, :, self.length : end] = key
        values[:, :, self.length : end] = value
        return keys[:, :, :end], values[:, :, :end]

    def advance(self, tokens: int) -> None:
        self.length += tokens

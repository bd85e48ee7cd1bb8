"""Keys and values of the tokens so far, so that a new token costs one step."""

from __future__ import annotations

import torch
from torch import Tensor

from normkit.errors import user_error

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
        memory = torch.empty((layers, 2, batch, heads, context, size), dtype=dtype, device=device)
        self.layers = [(memory[k, 0], memory[k, 1]) for k in range(layers)]
        self.context, self.length = context, 0
        self.crossed: dict[int, tuple[Tensor, Tensor]] = {}  # keys and values of an encoder's output

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store those of new tokens, and return all. ``advance`` moves on when the last layer is done."""
        if key.requires_grad:
            raise user_error(
                "A cache got keys that record a gradient.",
                expected="inference: what is in a cache gets no gradient",
                fix="call the model under torch.no_grad(), or without a cache.",
            )
        end = self.length + key.shape[-2]
        if end > self.context:
            raise user_error(
                f"The cache got token {end}; it was made for {self.context}.",
                expected=f"at most {self.context} tokens, prompt and continuation together",
                fix="make a cache for more, or generate fewer tokens.",
            )
        keys, values = self.layers[layer]
        keys.narrow(2, self.length, key.shape[2]).copy_(key)
        values.narrow(2, self.length, key.shape[2]).copy_(value)
        return keys.narrow(2, 0, end), values.narrow(2, 0, end)

    def check(self, batch: int, segments: Tensor | None) -> None:
        """Does a call fit what was reserved?"""
        own = self.layers[0][0].shape[0]
        if batch != own:
            raise user_error(f"A cache for a batch of {own} got a batch of {batch}.", expected="the same")
        if segments is not None:
            raise user_error("segments= came with a cache.", expected="the one or the other")

    def advance(self, tokens: int) -> None:
        self.length += tokens

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from normkit import checks
from normkit.placement.norm_factory import NormFactory, apply_norm, make_norm
from normkit.transformer.linear import project

__all__ = ["FeedForward"]

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "swiglu": F.silu,
}


class FeedForward(nn.Module):
    r"""Two linear layers with an activation between, for every token by itself.

        y = output( act( input(x) ) )             swiglu:  y = output( silu(g) · u ),  (g, u) = input(x)

    Args:
        dim, hidden: features of the stream, and inside.
        activation: "gelu", "gelu_tanh", "relu", "silu" or "swiglu".
        inner: norms that a placement puts inside: "output" or "activation", here the same place.

    Reference: swiglu: Shazeer 2020, arXiv:2002.05202.
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        *,
        activation: str = "gelu",
        bias: bool = True,
        norm: NormFactory = "layer",
        inner: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        checks.one_of(activation, FUNCTIONS, what="activation=")
        self.activation, self.inner = activation, inner
        self.input = nn.Linear(dim, 2 * hidden if activation == "swiglu" else hidden, bias)
        self.output = nn.Linear(hidden, dim, bias)
        self.inner_norm = make_norm(norm, hidden) if {"output", "activation"} & set(inner) else None

    def initialise(self, gain: float = 1.0) -> None:
        """Xavier's, times ``gain``. Biases are 0."""
        halves = self.input.weight.detach().chunk(2 if self.activation == "swiglu" else 1)
        for weight in (*halves, self.output.weight):
            nn.init.xavier_normal_(weight, gain)
        for bias in (self.input.bias, self.output.bias):
            if bias is not None:
                nn.init.zeros_(bias)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        y = project(self.input, x)
        if self.activation == "swiglu":
            gate, up = y.chunk(2, -1)
            y = F.silu(gate) * up
        else:
            y = FUNCTIONS[self.activation](y)
        if self.inner_norm is not None:
            y = apply_norm(self.inner_norm, y, mask)
        return project(self.output, y)

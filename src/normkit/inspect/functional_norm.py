"""A norm that is called as a function, as a module: so it can be probed and called again as others are."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from normkit.inspect.operations import norm_arguments

__all__ = ["FunctionalNorm"]


class FunctionalNorm(nn.Module):
    """What it got beside the input is kept."""

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.func = func
        names = norm_arguments(func)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        self.x: Tensor | None = given.pop("input", None)
        for name in ("weight", "bias"):
            tensor = given.pop(name, None)
            if isinstance(tensor, Tensor):
                self.register_parameter(name, nn.Parameter(tensor.detach(), requires_grad=False))
            elif name in names:
                given[name] = tensor
        for name, value in list(given.items()):
            if isinstance(value, Tensor):
                self.register_buffer(name, given.pop(name).detach())
        for name in ("training", "use_input_stats"):  # what it computes is seen where it takes statistics
            if name in given:
                self.train(bool(given[name]))
                given[name] = True
        self.settings = given
        self.eps = given.get("eps", 0.0)

    def forward(self, x: Tensor) -> Tensor:
        tensors = {**self._parameters, **self._buffers}
        y: Tensor = self.func(x, **tensors, **self.settings)
        return y

"""Networks without attention, as stacks of residual sublayers: any norm, in any place."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor, nn

from normkit.norms import BatchNorm2d, GroupNorm, InstanceNorm2d
from normkit.placement import FinalNorm, Residual, Stream
from normkit.placement.norm_factory import NormFactory

if TYPE_CHECKING:
    from normkit.lab.run import Run

__all__ = ["ResidualNetwork", "conv_net", "mlp"]


class _Hidden(nn.Module):
    """Two layers with an activation between them; a placement may scale their first weights."""

    def __init__(self, first: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.first, self.last = first, last

    def initialise(self, gain: float = 1.0) -> None:
        for layer in (self.first, self.last):
            assert isinstance(layer, nn.Linear | nn.Conv2d)
            nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5))
            layer.weight.data.mul_(gain)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.first, nn.Conv2d):  # features are last everywhere else
            x = x.permute(0, 3, 1, 2)
        y: Tensor = self.last(nn.functional.gelu(self.first(x)))
        return y.permute(0, 2, 3, 1) if isinstance(self.first, nn.Conv2d) else y


class ResidualNetwork(nn.Module):
    """An entry, residual sublayers, the end that the placement wants, and a linear output.

    Shape: whatever ``entry`` takes -> (N, outputs). Images are averaged over their pixels.
    """

    def __init__(
        self, run: Run, entry: nn.Module, sublayers: list[nn.Module], outputs: int, norm: NormFactory
    ):
        super().__init__()
        place = run.placement_rule
        self.entry = entry
        self.blocks = nn.ModuleList(
            Residual(fn, run.width, place, norm, layer=k, depth=run.depth)
            for k, fn in enumerate(sublayers, start=1)
        )
        last = self.blocks[-1]
        assert isinstance(last, Residual)
        self.final = FinalNorm(run.width, last.placement, norm)
        self.head = nn.Linear(run.width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        stream = Stream(self.entry(x))
        for block in self.blocks:
            stream = block(stream)
        y = self.final(stream)
        if y.ndim == 4:  # the mean of what an InstanceNorm gives would be the same for every image
            y = nn.functional.gelu(y).mean(dim=(1, 2))
        scores: Tensor = self.head(y)
        return scores


class _Pixels(nn.Module):
    """A first convolution; features last, so that every norm and placement takes them."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return y.permute(0, 2, 3, 1)


def mlp(run: Run, inputs: int, outputs: int) -> ResidualNetwork:
    """Linear, ``depth`` residual sublayers of two linear layers each, linear."""
    width = run.width
    sublayers: list[nn.Module] = [
        _Hidden(nn.Linear(width, 2 * width), nn.Linear(2 * width, width)) for _ in range(run.depth)
    ]
    return ResidualNetwork(run, nn.Linear(inputs, width), sublayers, outputs, run.norm_factory)


def conv_net(run: Run, channels: int, outputs: int) -> ResidualNetwork:
    """The same with 3 x 3 convolutions. Its norms may be "group" and "instance" too."""
    width = run.width
    sublayers: list[nn.Module] = [
        _Hidden(nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1))
        for _ in range(run.depth)
    ]
    images: dict[str, NormFactory] = {
        "batch": partial(BatchNorm2d, axis=-1),
        "group": lambda dim: GroupNorm(math.gcd(dim, 8), dim, axis=-1),
        "instance": partial(InstanceNorm2d, affine=True, axis=-1),
    }
    norm = images.get(run.norm) or run.norm_factory
    return ResidualNetwork(run, _Pixels(channels, width), sublayers, outputs, norm)

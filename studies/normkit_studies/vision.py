"""Is BatchNorm better than LayerNorm in conv nets?

Question: On images, in the same conv net, which norm gives the lowest error, and does LayerNorm over the
channels of a pixel harm? Is BatchNorm more robust to noise, and does it break the residual stream when it
stands on the sum?

Hypothesis: BatchNorm is better than LayerNorm, by more than half a point of error. LayerNorm over the
channels of a pixel costs less than a point against no norm at all. Noise costs BatchNorm at least a point
less than LayerNorm. What BatchNorm on the sum costs, against BatchNorm at the end of the branch, does not
rise with the depth of the net; He et al. 2016 (arXiv:1603.05027), who measured it at 110 layers, say that it
costs something.

Method: TODO

Refuted if: one of the four is not so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normkit.lab.design import Plot, Rows, Rule, Study, grid, slope
from normkit.norms import BatchNorm2d, GroupNorm, LayerNorm
from normkit_studies.small_batches import STRIDES, Block, Images, evaluate, judged, network, split, training

DEPTHS = (3, 9, 27)  # residual blocks
BATCH_SIZE, WIDTH = 32, 8
NOISE = 0.25  # its standard deviation, in shades of grey from 0 to 1
WHOLE = "layer, whole image"
NORMS: dict[str, Callable[[int], nn.Module] | None] = {
    "batch": BatchNorm2d,
    "layer": lambda channels: LayerNorm(channels, axis=1),
    WHOLE: lambda channels: GroupNorm(1, channels),
    "none": None,
}


class OnSum(nn.Module):
    """A block with its last norm on the sum, in place of the end of the branch."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        *inner, self.norm = block.branch
        self.branch, self.shortcut = nn.Sequential(*inner), block.shortcut

    def forward(self, x: Tensor) -> Tensor:
        assert self.shortcut is not None
        return F.relu(self.norm(self.shortcut(x) + self.branch(x)))


def deep_network(data: str, norm: str, place: str, depth: int) -> nn.Module:
    """Of ``depth`` residual blocks, an odd number."""
    made = network(NORMS[norm], STRIDES[data], WIDTH, blocks=depth // 2)
    if place == "branch":
        return made
    return nn.Sequential(*(OnSum(part) if isinstance(part, Block) else part for part in made))


def run(cell: Mapping[str, Any]) -> dict[str, float]:
    seed = cell["seed"]
    torch.manual_seed(seed)
    parts = split(cell["data"], seed)
    parts = parts._replace(training=parts.training.at(slice(0, cell["images"])))
    model = deep_network(cell["data"], cell["norm"], cell["place"], cell["depth"])
    for _ in training(model, parts.training, BATCH_SIZE, epochs=cell["epochs"], lr=cell["lr"], seed=seed):
        pass
    found = judged(model, parts)
    clean = parts.held_out
    noise = torch.randn(clean.x.shape, generator=torch.Generator().manual_seed(seed))
    noisy = Images(clean.x + NOISE * noise, clean.y)
    found["noisy error"] = evaluate(model, noisy)[1]
    if cell["norm"] == "batch":
        found["noisy error, own statistics"] = _own_statistics(model, noisy)
    return found


@torch.no_grad()
def _own_statistics(model: nn.Module, images: Images) -> float:
    """Error in percent with the statistics of these images themselves."""
    model.train()
    return 100 * float((model(images.x).argmax(-1) != images.y).double().mean())

"""A healthy model and a sick one at the doctor's: the same network, and four bugs that raise nothing.

    make doctor
    python examples/clinic.py --html clinic.html        # the sick one's report as a page
    normkit doctor examples.clinic:sick --batch examples.clinic:batch

The bugs: a skip taken after the norm, an eps that is a flag, BatchNorm with another framework's momentum, and
a norm that nobody calls. The model runs, and its loss goes down; only worse.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import normkit as nk

DIM, HEADS, DEPTH, CLASSES = 64, 4, 3, 10


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """A Pre-LN layer, as it should be."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.feed_forward = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class SickLayer(Layer):
    """The same, with three bugs."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads)
        self.norm2 = nn.LayerNorm(dim, True)  # meant elementwise_affine=True; the second argument is eps
        self.norm3 = nn.LayerNorm(dim)  # and never called

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x)
        x = x + self.attention(x)  # the stream that norm1 read is gone
        return x + self.feed_forward(self.norm2(x))


class Listener(nn.Module):
    """Sound, as (batch, 1, samples), to one of ten words: a convolution, three layers, a head."""

    def __init__(self, layer: type[Layer] = Layer, momentum: float = 0.1) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, DIM, 16, stride=8, bias=False)
        self.stem_norm = nn.BatchNorm1d(DIM, momentum=momentum)
        self.layers = nn.ModuleList(layer(DIM, HEADS) for _ in range(DEPTH))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, sound: Tensor) -> Tensor:
        x = torch.relu(self.stem_norm(self.stem(sound))).mT
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


def healthy() -> nn.Module:
    torch.manual_seed(0)
    return Listener()


def sick() -> nn.Module:
    torch.manual_seed(0)
    return Listener(SickLayer, momentum=0.99)  # TensorFlow's: the share that is kept


def batch() -> Tensor:
    return torch.randn(8, 1, 400, generator=torch.Generator().manual_seed(0))


def main() -> None:
    parser = argparse.ArgumentParser(description="A healthy model and a sick one at the doctor's.")
    parser.add_argument("--html", metavar="FILE", help="also write the sick one's report as a page")
    page = parser.parse_args().html
    for name, model in (("healthy", healthy()), ("sick", sick())):
        report = nk.doctor(model, batch())
        print(f"──── {name} {'─' * (74 - len(name))}\n\n{report}\n")
    if page is not None:
        print(f"page  {report.save(page)}")


if __name__ == "__main__":
    main()

"""NK104 wrong-axes, NK105 group-collapse."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sick.blocks import GPT, Attention, Feed
from sick.case import DIM, LENGTH, Sick, images, tokens, twins, vectors

# NK104


# github.com/kyegomez/zeta/issues/180: "the normalization should be in the dim -1, not -2"
class ZetaNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.g, self.dim = nn.Parameter(torch.ones(DIM)), dim

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=self.dim) * DIM**0.5 * self.g


# mean() and var() without an axis: one mean for the whole batch; common in answers on forums
class Everything(nn.Module):
    def __init__(self, *axes: int) -> None:
        super().__init__()
        self.alpha, self.beta = nn.Parameter(torch.ones(DIM)), nn.Parameter(torch.zeros(DIM))
        self.over = {"dim": axes, "keepdim": True} if axes else {}

    def forward(self, x: Tensor) -> Tensor:
        mean, var = x.mean(**self.over), x.var(**self.over, correction=0)
        return (x - mean) / torch.sqrt(var + 1e-5) * self.alpha + self.beta


def gpt(last: Callable[[], nn.Module]) -> nn.Module:
    """The norms of one block are others."""
    model = GPT(depth=3)
    model.h[1].ln_1, model.h[1].ln_2 = last(), last()
    return model


# github.com/Qualcomm-AI-research/geometric-algebra-transformer/pull/8: normalized_shape is x.shape[1:]
class Baseline(nn.Module):
    def __init__(self, broken: bool) -> None:
        super().__init__()
        self.attn, self.mlp, self.broken = Attention(causal=False), Feed(), broken
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(F.layer_norm(x, x.shape[1:] if self.broken else x.shape[-1:]))
        return x + self.mlp(self.norm(x))


def baseline(broken: bool) -> nn.Module:
    blocks = [Baseline(broken), Baseline(False), Baseline(False)]
    return nn.Sequential(*blocks, nn.LayerNorm(DIM), nn.Linear(DIM, 2))


# ConvNeXt's block without its permute: nn.LayerNorm(8) fits, since images are 8 x 8
class ConvNext(nn.Module):
    def __init__(self, permutes: bool) -> None:
        super().__init__()
        self.dwconv, self.norm = nn.Conv2d(8, 8, 7, padding=3, groups=8), nn.LayerNorm(8)
        self.pw1, self.pw2, self.permutes = nn.Conv2d(8, 32, 1), nn.Conv2d(32, 8, 1), permutes

    def forward(self, x: Tensor) -> Tensor:
        y = self.dwconv(x)
        y = self.norm(y.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) if self.permutes else self.norm(y)
        return x + self.pw2(F.gelu(self.pw1(y)))


def conv_next(permutes: bool) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 1), ConvNext(permutes), ConvNext(permutes), nn.Conv2d(8, 2, 1))


# A LayerNorm for images with the axis of one for tokens
class LayerNorm2d(nn.Module):
    def __init__(self, axis: int) -> None:
        super().__init__()
        self.weight, self.axis = nn.Parameter(torch.ones(8, 1, 1)), axis

    def forward(self, x: Tensor) -> Tensor:
        u = x.mean(self.axis, keepdim=True)
        return (x - u) / torch.sqrt((x - u).pow(2).mean(self.axis, keepdim=True) + 1e-6) * self.weight


def images_net(axis: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), LayerNorm2d(axis), nn.GELU(), nn.Conv2d(8, 2, 1))


# NK105


# github.com/pytorch/pytorch/issues/19250: a 1 x 1 map, as behind DeepLab's image pooling
def pooled(norm: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1), norm(), nn.ReLU(),
                         nn.Flatten(), nn.Linear(8, 2))  # fmt: skip


# As many groups as channels, on vectors
def vector_net(groups: int) -> nn.Module:
    return nn.Sequential(nn.Linear(DIM, 8), nn.GroupNorm(groups, 8), nn.ReLU(), nn.Linear(8, 2))


# A value head of width 1 with a LayerNorm behind it
class Critic(nn.Module):
    def __init__(self, broken: bool) -> None:
        super().__init__()
        self.body, self.value = nn.Linear(DIM, 8), nn.Linear(8, 1)
        self.scale = nn.LayerNorm(1 if broken else 8)
        self.broken = broken

    def forward(self, state: Tensor) -> Tensor:
        if self.broken:
            return self.scale(self.value(torch.tanh(self.body(state))))
        return self.value(torch.tanh(self.scale(self.body(state))))


class Scores(nn.Module):
    """F.layer_norm of one score."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(DIM, width)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.score(x)
        return (F.layer_norm(y, y.shape[-1:]),)


# github.com/pytorch/pytorch/issues/45687: the last maps of a discriminator are 1 x 1; StyleGAN's own layer
class InstanceNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean((2, 3), keepdim=True)
        return x * torch.rsqrt(x.square().mean((2, 3), keepdim=True) + 1e-8)


def discriminator(size: int) -> nn.Module:
    down = [nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 8, size, bias=False)]
    return nn.Sequential(*down, InstanceNorm(), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 1))


# fmt: off
CASES = [
    twins("NK104", "RMSNorm over dim -2", gpt, lambda: ZetaNorm(-2), lambda: ZetaNorm(-1), tokens,
          "h.1.ln_1 h.1.ln_2"),
    Sick("NK104", "a mean over everything", lambda: GPT(norm=Everything),
         lambda: GPT(norm=lambda: Everything(-1)), tokens, "h.0.ln_1 h.0.ln_2 h.1.ln_1 h.1.ln_2 ln_f"),
    twins("NK104", "LayerNorm over tokens too", gpt, lambda: nn.LayerNorm([LENGTH, DIM]),
          lambda: nn.LayerNorm(DIM), tokens, "h.1.ln_1 h.1.ln_2"),
    twins("NK104", "a mean over tokens", gpt, lambda: Everything(1), lambda: Everything(2), tokens,
          "h.1.ln_1 h.1.ln_2"),
    twins("NK104", "a function with x.shape[1:]", baseline, True, False, vectors(), "0:layer_norm"),
    twins("NK104", "ConvNeXt without its permute", conv_next, False, True, images(), "1.norm 2.norm"),
    # tensorflow/addons/pull/2142 (axis=1 where features are last): GroupNorm takes tokens for channels
    twins("NK104", "GroupNorm of tokens", gpt, lambda: nn.GroupNorm(2, LENGTH), lambda: nn.LayerNorm(DIM),
          tokens, "h.1.ln_1 h.1.ln_2"),
    twins("NK104", "LayerNorm2d over the last axis", images_net, -1, 1, images(), "1"),
    twins("NK105", "GroupNorm on a 1 x 1 map", pooled, lambda: nn.GroupNorm(8, 8),
          lambda: nn.GroupNorm(2, 8), images(), "3"),
    twins("NK105", "as many groups as channels", vector_net, 8, 2, vectors(4, DIM), "1"),
    twins("NK105", "F.layer_norm of one number", Scores, 1, 4, vectors(), ":layer_norm"),
    twins("NK105", "LayerNorm(1)", Critic, True, False, vectors(8, DIM), "scale"),
    twins("NK105", "InstanceNorm on a 1 x 1 map", discriminator, 4, 2, images(), "3"),
]
# fmt: on

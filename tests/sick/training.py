"""NK401 stream-growth, NK402 grad-imbalance, NK501 decayed-norm, NK502 dead-gamma, NK601 redundant-bias."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sick.blocks import GPT, Attention, Feed, Rms
from sick.case import DIM, Sick, images, tokens, twins, vectors
from sick.hugging import gemma2

# NK401


# Zhang et al. 2019, arXiv:1901.09321 (Fixup): branches without norms double the variance in each block
class Plain(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.conv, self.scale = nn.Conv2d(8, 8, 3, padding=1, bias=False), scale
        nn.init.kaiming_normal_(self.conv.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.conv(F.relu(x))


def plain_net(scale: float) -> nn.Module:
    blocks = [Plain(scale) for _ in range(12)]
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), *blocks, nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 2)
    )


# LayerNorm Scaling (Sun et al. 2025, arXiv:2502.05795) the wrong way round: times a power of the depth
class Tower(nn.Module):
    """Layers as attributes: layer1, layer2, …"""

    def __init__(self, power: float) -> None:
        super().__init__()
        for i in range(1, 13):
            setattr(self, f"layer{i}", Scaling(i**power))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, 2)

    def forward(self, x: Tensor) -> Tensor:
        for i in range(1, 13):
            x = getattr(self, f"layer{i}")(x)
        return self.head(self.norm(x))


class Scaling(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.rms, self.fc, self.scale = Rms(), Feed(), scale

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc(self.scale * self.rms(x))


# NK402


def mean_square(output: Any) -> Tensor:
    return output.float().square().mean()


def with_loss(model: nn.Module) -> dict[str, Any]:
    return {"loss": mean_square}


# Xiong et al. 2020, arXiv:2002.04745, turned round: sums whose gradient shrinks twentyfold on the way down
class Shrinking(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Scaling(0.1) for _ in range(3))
        self.factor, self.norm, self.head = factor, nn.LayerNorm(DIM), nn.Linear(DIM, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x * self.factor)
        return self.head(self.norm(x))


# A LayerScale of 1e-6 (CaiT's) that was never trained, and one of 0.1
class Scaled(nn.Module):
    def __init__(self, gamma: float) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2, self.mlp = (
            nn.LayerNorm(DIM),
            Attention(),
            nn.LayerNorm(DIM),
            Feed(),
        )
        self.gamma = nn.Parameter(gamma * torch.ones(DIM))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gamma * self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def cait(gamma: float) -> nn.Module:
    return nn.Sequential(Scaled(gamma), Scaled(0.1), nn.LayerNorm(DIM), nn.Linear(DIM, 2))


# NK501


def all_decay(model: nn.Module) -> dict[str, Any]:
    return {"optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)}


def by_shape(model: nn.Module) -> dict[str, Any]:
    """nanoGPT's: matrices decay, vectors do not."""
    flat, deep = [], []
    for p in model.parameters():
        (deep if p.ndim > 1 else flat).append(p)
    groups = [{"params": deep, "weight_decay": 0.1}, {"params": flat, "weight_decay": 0.0}]
    return {"optimizer": torch.optim.AdamW(groups, lr=1e-3)}


# github.com/huggingface/transformers/issues/16908: "LayerNorm.weight" does not match layer_norm.weight
def by_name(model: nn.Module) -> dict[str, Any]:
    named = list(model.named_parameters())
    no_decay = ("bias", "LayerNorm.weight")
    groups = [
        {"params": [p for n, p in named if not n.endswith(no_decay)], "weight_decay": 0.01},
        {"params": [p for n, p in named if n.endswith(no_decay)], "weight_decay": 0.0},
    ]
    return {"optimizer": torch.optim.AdamW(groups, lr=1e-3)}


class RobertaHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.layer_norm = nn.Linear(DIM, DIM, bias=False), nn.LayerNorm(DIM)
        self.LayerNorm, self.decoder = nn.LayerNorm(DIM), nn.Linear(DIM, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.layer_norm(F.gelu(self.dense(self.LayerNorm(x)))))


# A gain that belongs to the layer, and a function
class Inline(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.g, self.fc = nn.Parameter(torch.ones(DIM)), nn.Linear(DIM, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.rms_norm(x, (DIM,), weight=self.g, eps=1e-6))


# NK502


# github.com/lucidrains/deep-cross-attention/issues/2: zeros before a ReLU get no gradient, ever
def zero_gain(zero: bool, norm: type[nn.Module] = nn.BatchNorm1d) -> nn.Module:
    model = nn.Sequential(nn.Linear(DIM, 8, bias=False), norm(8), nn.ReLU(), nn.Linear(8, 2))
    if zero:
        nn.init.zeros_(model[1].weight)
    return model


# Network slimming (Liu et al. 2017, arXiv:1708.06519): what was pruned does not come back behind a ReLU
def pruned(most: bool) -> nn.Module:
    model = zero_gain(False)
    with torch.no_grad():
        model[1].weight[: 6 if most else 0] = 0
    return model


# zero_init_residual (Goyal et al. 2017), and the gains frozen with the rest
class ZeroInit(nn.Module):
    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, 8, 3, bias=False), nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn, self.fc = nn.GroupNorm(2, 8), nn.Linear(8, 2)
        nn.init.zeros_(self.bn.weight)
        self.bn.requires_grad_(not frozen)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.bn(self.conv(x))
        return self.fc(F.relu(x).mean((2, 3)))


# NK601


# github.com/milesial/Pytorch-UNet/pull/325
def unet_block(bias: bool) -> nn.Module:
    convs = [nn.Conv2d(3, 8, 3, padding=1, bias=bias), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
    return nn.Sequential(*convs, nn.Conv2d(8, 8, 3, bias=bias), nn.BatchNorm2d(8), nn.ReLU(inplace=True))


# pix2pix and CycleGAN: InstanceNorm takes all of it away, too
def cycle_gan(bias: bool) -> nn.Module:
    conv = nn.ConvTranspose2d(3, 8, 3, bias=bias)
    return nn.Sequential(conv, nn.InstanceNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 3))


class BeforeLayerNorm(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.proj, self.ln, self.head = nn.Linear(DIM, 8, bias=bias), nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"scores": self.head(torch.tanh(self.ln(self.proj(x))))}


ROLES = ("input", "post_attention", "pre_feedforward", "post_feedforward")
GEMMA = " ".join([*(f"model.layers.{i}.{role}_layernorm" for i in range(2) for role in ROLES), "model.norm"])
# fmt: off
CASES = [
    twins("NK401", "branches without norms", plain_net, 1.0, 0.3, images(), None),
    twins("NK401", "scaled the wrong way round", Tower, 2.0, -0.5, vectors(), None),
    twins("NK402", "a gradient that shrinks", Shrinking, 0.15, 1.0, vectors(), "layers.0", options=with_loss),
    twins("NK402", "a LayerScale of 1e-6", cait, 1e-6, 0.3, vectors(), "0"),
    Sick("NK501", "all parameters", GPT, GPT, tokens, "h.0.ln_1 h.0.ln_2 h.1.ln_1 h.1.ln_2 ln_f",
         options=all_decay, healthy_options=by_shape),
    Sick("NK501", "by a name that does not match", RobertaHead, RobertaHead, vectors(), "layer_norm",
         options=by_name, healthy_options=by_shape),
    # huggingface/transformers/pull/35927: RMSNorms of one's own are not instances of nn.LayerNorm
    Sick("NK501", "Gemma-2, whose gains decay to 1", gemma2, gemma2, tokens, GEMMA,
         options=all_decay, healthy_options=by_shape, line="transformers"),
    Sick("NK501", "the gain of a function", Inline, Inline, vectors(), ":rms_norm", options=all_decay,
         healthy_options=by_shape),
    twins("NK502", "zeros before a ReLU", zero_gain, True, False, vectors(64, DIM), "1", options=with_loss),
    Sick("NK502", "zeros before a ReLU, LayerNorm", lambda: zero_gain(True, nn.LayerNorm),
         lambda: zero_gain(False, nn.LayerNorm), vectors(64, DIM), "1", options=with_loss),
    twins("NK502", "most of them", pruned, True, False, vectors(64, DIM), "1", options=with_loss),
    twins("NK502", "zero-init, frozen", ZeroInit, True, False, images(), "bn", options=with_loss),
    twins("NK601", "a U-Net's convolutions", unet_block, True, False, images(), "1 4"),
    twins("NK601", "before InstanceNorm", cycle_gan, True, False, images(), "1"),
    twins("NK601", "before LayerNorm", BeforeLayerNorm, True, False, vectors(), "ln"),
]
# fmt: on

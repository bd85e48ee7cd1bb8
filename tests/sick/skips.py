"""NK101 wrong-skip."""

from __future__ import annotations

import types

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sick.blocks import GPT, Attention, Block, Feed, Step, ViT, pre_block
from sick.case import DIM, LENGTH, images, tokens, twins, vectors
from sick.hugging import gpt2
from sick.wrappers import PreNorm, Residual


# github.com/Howuhh/faster-trajectory-transformer/issues/3
def normed_twice_over(block: nn.Module, x: Tensor) -> Tensor:
    h = block.ln_1(x)
    x = h + block.attn(h)
    return x + block.mlp(block.ln_2(x))


# github.com/pytorch/pytorch/issues/61165 (norm_first, before it was mended); tracel-ai/burn/issues/1056
def overwritten(block: nn.Module, x: Tensor) -> Tensor:
    x = block.ln_1(x)
    x = x + block.attn(x)
    x = block.ln_2(x)
    return x + block.mlp(x)


# github.com/SHI-Labs/Compact-Transformers/issues/25: "a bad merge"
def second_half_only(block: nn.Module, x: Tensor) -> Tensor:
    x = x + block.attn(block.ln_1(x))
    x = block.ln_2(x)
    return x + block.mlp(x)


# github.com/lbcb-sci/RiNALMo/issues/9, written with functions and in place
class Rinalmo(nn.Module):
    def __init__(self, broken: bool) -> None:
        super().__init__()
        self.mha, self.transition, self.broken = Attention(causal=False), Feed(), broken
        self.gamma = nn.ParameterList(nn.Parameter(torch.ones(DIM)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        if self.broken:
            x = F.layer_norm(x, (DIM,), self.gamma[0])
            x += self.mha(x)
        else:
            x = x + self.mha(F.layer_norm(x, (DIM,), self.gamma[0]))
        return x + self.transition(F.layer_norm(x, (DIM,), self.gamma[1]))


class RinalmoStack(nn.Module):
    def __init__(self, broken: bool) -> None:
        super().__init__()
        self.stack = nn.ModuleDict({name: Rinalmo(broken) for name in ("lower", "upper")})
        self.top, self.classes = nn.LayerNorm(DIM), nn.Linear(DIM, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.stack.values():
            x = layer(x)
        return self.classes(self.top(x)), x


# The wrappers of lucidrains/vit-pytorch the wrong way round: PreNorm(Residual(f)) for Residual(PreNorm(f))
def wrapped(broken: bool) -> nn.Module:
    def layer(fn: nn.Module) -> nn.Module:
        return PreNorm(Residual(fn)) if broken else Residual(PreNorm(fn))

    layers = [layer(fn()) for _ in range(2) for fn in (Attention, Feed)]
    return nn.Sequential(*layers, nn.LayerNorm(DIM), nn.Linear(DIM, 3))


# github.com/dmlc/gluon-nlp/pull/1488, in a convolutional net
class ConvBlock(nn.Module):
    def __init__(self, broken: bool, width: int) -> None:
        super().__init__()
        self.bn, self.conv, self.broken = nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, padding=1), broken

    def forward(self, x: Tensor) -> Tensor:
        if self.broken:
            x = self.bn(x)
            return x + self.conv(F.relu(x))
        return x + self.conv(F.relu(self.bn(x)))


def conv_net(broken: bool) -> nn.Module:
    blocks = [ConvBlock(broken, 8) for _ in range(3)]
    return nn.Sequential(nn.Conv2d(3, 8, 3), *blocks, nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 10))


# Hugging Face's block, with one line moved by hand
def patched_gpt2(broken: bool) -> nn.Module:
    model = gpt2()

    def forward(self: nn.Module, hidden_states: Tensor, *args: object, **kwargs: object) -> Tensor:
        residual = hidden_states
        hidden_states = self.ln_1(hidden_states)
        if broken:
            residual = hidden_states
        hidden_states = self.attn(hidden_states)[0] + residual
        residual = hidden_states
        return self.mlp(self.ln_2(hidden_states)) + residual

    for block in model.transformer.h:
        block.forward = types.MethodType(forward, block)
    return model


# A U-Net of a diffusion model: the skip of a ResNet block starts behind its first norm
class ResnetBlock(nn.Module):
    def __init__(self, broken: bool) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, padding=1)
        self.broken = broken

    def forward(self, x: Tensor, temb: Tensor) -> Tensor:
        h = self.norm1(x)
        x = h if self.broken else x
        h = self.conv1(F.silu(h)) + temb[:, :, None, None]
        return x + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    def __init__(self, broken: bool) -> None:
        super().__init__()
        self.time, self.inp = nn.Linear(4, 8), nn.Conv2d(3, 8, 3, padding=1)
        self.downs = nn.ModuleDict({f"res{i}": ResnetBlock(broken) for i in range(2)})
        self.mid, self.norm_out, self.out = ResnetBlock(False), nn.GroupNorm(2, 8), nn.Conv2d(8, 3, 3)

    def forward(self, sample: Tensor, timestep: Tensor) -> tuple[Tensor]:
        x, temb = self.inp(sample), F.silu(self.time(timestep))
        for block in self.downs.values():
            x = block(x, temb)
        return (self.out(F.silu(self.norm_out(self.mid(x, temb)))),)


def noisy() -> dict[str, Tensor]:
    return {"sample": torch.randn(4, 3, 8, 8), "timestep": torch.randn(4, 4)}


# minGPT's attention of old, with a mask and a table that are plain attributes, and norms of queries and keys
class MaskedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.proj = (nn.Linear(DIM, DIM) for _ in range(4))
        self.q_norm, self.k_norm = nn.RMSNorm(8), nn.RMSNorm(8)
        self.mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)
        self.tables = [torch.randn(LENGTH, 8) for _ in range(2)]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (2, 8)).transpose(1, 2) for f in (self.query, self.key, self.value))
        cos, sin = self.tables
        q, k = (t * cos + t.flip(-1) * sin for t in (self.q_norm(q), self.k_norm(k)))
        scores = q @ k.transpose(-2, -1) / 8**0.5 + self.mask
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def min_gpt(step: Step) -> nn.Module:
    model = GPT(step)
    for block in model.h:
        block.attn = MaskedAttention()
    return model


def alone(step: Step) -> nn.Module:
    """A layer by itself."""
    return Block(step, lambda: nn.RMSNorm(DIM))


# Attention and feed-forward in parallel (GPT-J's), and the skip behind their norm
class Parallel(nn.Module):
    def __init__(self, broken: bool) -> None:
        super().__init__()
        self.ln, self.attn, self.mlp, self.broken = nn.LayerNorm(DIM), Attention(), Feed(), broken

    def forward(self, x: Tensor) -> Tensor:
        h = self.ln(x)
        return self.attn(h) + self.mlp(h) + (h if self.broken else x)


def parallel(broken: bool) -> nn.Module:
    return nn.Sequential(Parallel(broken), Parallel(broken), nn.LayerNorm(DIM), nn.Linear(DIM, 2))


MIXED = [pre_block, overwritten, pre_block]
# fmt: off
CASES = [
    twins("NK101", "norm_x + attn(norm_x)", GPT, normed_twice_over, pre_block, tokens, "h.0.ln_1 h.1.ln_1"),
    twins("NK101", "x = norm(x), x + f(x)", GPT, overwritten, pre_block, tokens,
          "h.0.ln_1 h.0.ln_2 h.1.ln_1 h.1.ln_2"),
    twins("NK101", "one block of three", GPT, MIXED, [pre_block] * 3, tokens, "h.1.ln_1 h.1.ln_2"),
    twins("NK101", "blocks as attributes", ViT, second_half_only, pre_block, images(),
          "block1.ln_2 block2.ln_2"),
    twins("NK101", "a mask that is no buffer", min_gpt, normed_twice_over, pre_block, tokens,
          "h.0.ln_1 h.1.ln_1"),
    twins("NK101", "a layer by itself", alone, normed_twice_over, pre_block, vectors(), "ln_1"),
    twins("NK101", "both skips of a layer", alone, overwritten, pre_block, vectors(), "ln_1 ln_2"),
    twins("NK101", "functions, in place, in a ModuleDict", RinalmoStack, True, False, vectors(),
          "stack.lower.gamma:layer_norm stack.upper.gamma:layer_norm"),
    twins("NK101", "PreNorm(Residual(f))", wrapped, True, False, vectors(), "0.norm 1.norm 2.norm 3.norm"),
    twins("NK101", "parallel sublayers", parallel, True, False, vectors(), "0.ln 1.ln"),
    twins("NK101", "a convolutional net", conv_net, True, False, images(), "1.bn 2.bn 3.bn"),
    twins("NK101", "a U-Net", UNet, True, False, noisy, "downs.res0.norm1 downs.res1.norm1"),
    twins("NK101", "GPT-2 with a line moved", patched_gpt2, True, False, tokens,
          "transformer.h.0.ln_1 transformer.h.1.ln_1"),
]
# fmt: on

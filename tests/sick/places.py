"""NK101 wrong-skip, NK102 missing-final-norm, NK103 double-norm."""

from __future__ import annotations

import types
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sick.blocks import GPT, Attention, Feed, Rms, ViT, pre_block
from sick.case import DIM, VOCAB, Sick, images, tokens, vectors
from sick.hugging import gpt2, llama

# NK101


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


class PreNorm(nn.Module):
    """lucidrains' wrapper."""

    def __init__(self, fn: nn.Module) -> None:
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(DIM), fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(self.norm(x))


class Residual(nn.Module):
    def __init__(self, fn: nn.Module) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x) + x


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


# NK102


class Unfinished(nn.Module):
    """The last norm was forgotten; the head is the embedding's matrix."""

    def __init__(self, pooled: bool, finished: bool) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.first, self.second = (PreLayer() for _ in range(2))
        self.out = nn.RMSNorm(DIM) if finished else nn.Identity()
        self.pooled = pooled

    def forward(self, ids: Tensor) -> Tensor:
        x = self.out(self.second(self.first(self.emb(ids))))
        return (x.mean(1) if self.pooled else x) @ self.emb.weight.T


class PreLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.mix, self.feed = Attention(), Feed()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(self.a(x))
        return x + self.feed(self.b(x))


# github.com/PaddlePaddle/PaddleNLP/pull/571, NVIDIA-NeMo/Speech/pull/2197: norm_first without a last norm
def torch_encoder(norm_first: bool, norm: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(DIM, 2, 32, dropout=0.0, batch_first=True, norm_first=norm_first)
    final = nn.LayerNorm(DIM) if norm else None
    encoder = nn.TransformerEncoder(layer, 2, norm=final, enable_nested_tensor=False)
    return nn.Sequential(encoder, nn.Linear(DIM, 5))


def without(model: nn.Module, path: str) -> nn.Module:
    model.set_submodule(path, nn.Identity())
    return model


# NK103


class Inner(nn.Module):
    """An attention that has a norm of its own, as lucidrains' have."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attend = nn.LayerNorm(DIM), Attention()

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(self.norm(x))


def twice(wrap: Callable[[nn.Module], nn.Module]) -> nn.Module:
    layers = [Residual(wrap(Inner())) for _ in range(2)]
    return nn.Sequential(*layers, nn.LayerNorm(DIM), nn.Linear(DIM, 3))


# github.com/Helsinki-NLP/mammoth/pull/3: stacks with a norm at both ends
class Stack(nn.Module):
    def __init__(self, first: bool) -> None:
        super().__init__()
        self.begin = Rms() if first else nn.Identity()
        self.body = nn.Sequential(nn.Linear(DIM, DIM), nn.GELU(), nn.Linear(DIM, DIM))
        self.end = Rms()

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.body(self.begin(x)))


# github.com/ggml-org/llama.cpp/pull/1925: RMS norm applied twice
class NormTwice(nn.Module):
    def __init__(self, again: bool) -> None:
        super().__init__()
        self.scale, self.bn = nn.RMSNorm(DIM), nn.LayerNorm(DIM) if again else nn.Identity()
        self.fc = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = self.scale(x)
        x = x.reshape(-1, DIM)
        return self.fc(self.bn(x))


def conv_bn(twice: bool) -> nn.Module:
    again = [nn.BatchNorm2d(8)] if twice else []
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), *again, nn.ReLU(), nn.Conv2d(8, 4, 3))


BOTH = ("h.0.ln_1", "h.1.ln_1")
CASES = [
    Sick("NK101", "norm_x + attn(norm_x)", lambda: GPT(normed_twice_over), GPT, tokens, BOTH),
    Sick(
        "NK101",
        "x = norm(x), x + f(x)",
        lambda: GPT(overwritten),
        GPT,
        tokens,
        (*BOTH, "h.0.ln_2", "h.1.ln_2"),
    ),
    Sick(
        "NK101",
        "blocks as attributes",
        lambda: ViT(second_half_only),
        ViT,
        images(),
        ("block1.ln_2", "block2.ln_2"),
    ),
    Sick(
        "NK101",
        "one block of three",
        lambda: GPT([pre_block, overwritten, pre_block]),
        lambda: GPT(depth=3),
        tokens,
        ("h.1.ln_1", "h.1.ln_2"),
    ),
    Sick(
        "NK101",
        "functions, in place, in a ModuleDict",
        lambda: RinalmoStack(True),
        lambda: RinalmoStack(False),
        vectors(),
        ("stack.lower.gamma:layer_norm", "stack.upper.gamma:layer_norm"),
    ),
    Sick(
        "NK101",
        "PreNorm(Residual(f))",
        lambda: wrapped(True),
        lambda: wrapped(False),
        vectors(),
        ("0.norm", "1.norm", "2.norm", "3.norm"),
    ),
    Sick(
        "NK101",
        "in a convolutional net",
        lambda: conv_net(True),
        lambda: conv_net(False),
        images(),
        ("1.bn", "2.bn", "3.bn"),
    ),
    Sick(
        "NK101",
        "GPT-2 with a line moved",
        lambda: patched_gpt2(True),
        lambda: patched_gpt2(False),
        tokens,
        ("transformer.h.0.ln_1", "transformer.h.1.ln_1"),
    ),
    Sick("NK102", "nanoGPT without ln_f", lambda: GPT(final=nn.Identity), GPT, tokens, ("lm_head",)),
    Sick(
        "NK102",
        "torch's encoder with norm_first",
        lambda: torch_encoder(True, False),
        lambda: torch_encoder(True, True),
        vectors(),
        ("1",),
        line="torch",
    ),
    Sick("NK102", "the class token of a ViT", lambda: ViT(final=nn.Identity()), ViT, images(), ("head",)),
    Sick(
        "NK102",
        "a tied head",
        lambda: Unfinished(False, False),
        lambda: Unfinished(False, True),
        tokens,
        ("emb",),
    ),
    Sick(
        "NK102",
        "the mean over tokens",
        lambda: Unfinished(True, False),
        lambda: Unfinished(True, True),
        tokens,
        ("emb",),
    ),
    Sick(
        "NK102",
        "GPT-2 without ln_f",
        lambda: without(gpt2(), "transformer.ln_f"),
        gpt2,
        tokens,
        ("lm_head",),
        line="transformers",
    ),
    Sick(
        "NK102",
        "Llama without norm",
        lambda: without(llama(), "model.norm"),
        llama,
        tokens,
        ("lm_head",),
        line="transformers",
    ),
    Sick(
        "NK103",
        "a norm behind torch's Post-LN encoder",
        lambda: torch_encoder(False, True),
        lambda: torch_encoder(False, False),
        vectors(),
        ("0.norm",),
        severity="info",
        line="torch",
    ),
    Sick(
        "NK103",
        "PreNorm around what has a norm",
        lambda: twice(PreNorm),
        lambda: twice(nn.Sequential),
        vectors(),
        ("0.fn.fn.norm", "1.fn.fn.norm"),
    ),
    Sick(
        "NK103",
        "stacks with norms at both ends",
        lambda: nn.Sequential(Stack(True), Stack(True)),
        lambda: nn.Sequential(Stack(True), Stack(False)),
        vectors(),
        ("1.begin",),
    ),
    Sick(
        "NK103",
        "twice, reshaped between",
        lambda: NormTwice(True),
        lambda: NormTwice(False),
        vectors(),
        ("bn",),
    ),
    Sick("NK103", "two BatchNorms", lambda: conv_bn(True), lambda: conv_bn(False), images(), ("2",)),
]

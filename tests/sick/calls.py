"""NK106 unused-norm, NK107 shared-norm."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sick.blocks import GPT, Attention, Feed, pre_block
from sick.case import DIM, images, tokens, twins, vectors
from sick.hugging import llama

# NK106


# github.com/huggingface/pytorch-image-models/issues/1851: Mlp builds a norm and does not call it
class Mlp(nn.Module):
    def __init__(self, builds: bool) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(DIM, 32), nn.GELU(), nn.Linear(32, DIM)
        if builds:
            self.norm = nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


def mixer(builds: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(8, DIM), Mlp(builds), Mlp(builds), nn.Linear(DIM, 2))


# The second norm of a Post-LN layer, forgotten in forward
class PostLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.ffn = Attention(), Feed()
        self.attention_norm, self.output_norm = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.output_norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x))
        return self.end(x)

    def end(self, x: Tensor) -> Tensor:
        return self.output_norm(x + self.ffn(x))


class Forgetful(PostLayer):
    def end(self, x: Tensor) -> Tensor:
        return x + self.ffn(x)  # self.output_norm(x + self.ffn(x))


class Encoder(nn.Module):
    def __init__(self, kind: type[PostLayer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(kind() for _ in range(2))
        self.head = nn.Linear(DIM, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


# A list of norms that is one longer than the layers which zip() pairs it with
class Zipped(nn.Module):
    def __init__(self, extra: int) -> None:
        super().__init__()
        self.fcs = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(3))
        self.norms = nn.ModuleList(nn.RMSNorm(DIM) for _ in range(3 + extra))

    def forward(self, x: Tensor) -> Tensor:
        for fc, norm in zip(self.fcs, self.norms, strict=False):
            x = F.relu(norm(fc(x)))
        return x


# A hand-written norm under a name that says nothing, in a model that returns a dataclass
class Rescale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.ones(DIM))

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * self.g


@dataclass
class Output:
    logits: Tensor


class Leftover(nn.Module):
    def __init__(self, leftover: bool) -> None:
        super().__init__()
        self.inp, self.stabiliser, self.out = nn.Linear(DIM, DIM), Rescale(), nn.Linear(DIM, 2)
        if leftover:
            self.post_scale = Rescale()

    def forward(self, x: Tensor) -> Output:
        return Output(self.out(self.stabiliser(self.inp(x))))


def llama_with(extra: bool) -> nn.Module:
    model = llama()
    if extra:
        model.model.layers[1].self_attn.q_norm = nn.RMSNorm(8)
    return model


# github.com/Cerebras/modelzoo/pull/85: q_norm and k_norm are built, and never called; here one of them
class QkAttention(nn.Module):
    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        for name in names:
            self.add_module(name, nn.RMSNorm(8))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(self.q_norm(q), k, v)
        return self.out(y.transpose(1, 2).flatten(2))


# Layers as dicts, of which one key is not used
class Dicts(nn.Module):
    def __init__(self, keys: tuple[str, ...]) -> None:
        super().__init__()
        parts = {"lin": lambda: nn.Linear(DIM, DIM), "bn": lambda: nn.BatchNorm1d(DIM)}
        self.layers = nn.ModuleList(nn.ModuleDict({k: parts[k]() for k in keys}) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer["lin"](x))
        return x


# NK107


# github.com/allenai/OLMo/issues/222: self.norm for attention and for the feed-forward
def one_norm(block: nn.Module, x: Tensor) -> Tensor:
    x = x + block.attn(block.ln_1(x))
    return x + block.mlp(block.ln_1(x))


class Olmo(GPT):
    def __init__(self, shared: bool) -> None:
        super().__init__(one_norm if shared else pre_block)
        if shared:
            for block in self.h:
                del block.ln_2


# A Post-LN layer: norm1 written twice
class PostTwice(nn.Module):
    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.attn, self.ff, self.norm1 = Attention(), Feed(), nn.LayerNorm(DIM)
        self.norm2 = self.norm1 if shared else nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attn(x))
        return self.norm2(x + self.ff(x))


def post_stack(shared: bool) -> nn.Module:
    return nn.Sequential(*(PostTwice(shared) for _ in range(2)), nn.Linear(DIM, 3))


# [Layer(norm) for _ in range(n)]: one object in all layers, as in IDEA-Research/DAB-DETR/pull/17
def passed_on(shared: bool) -> nn.Module:
    model, norm = GPT(), nn.LayerNorm(DIM)
    for block in model.h if shared else ():
        block.ln_1 = norm
    return model


# github.com/henry9zhr/QANet-pytorch/issues/7: one LayerNorm for all sublayers of an encoder block
class QaNet(nn.Module):
    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(3))
        norms = [nn.LayerNorm(DIM) for _ in range(3)]
        self.norms = nn.ModuleList([norms[0]] * 3 if shared else norms)

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.relu(conv(norm(x)))
        return x


# One BatchNorm for all convolutions of a net: its running statistics are of none of them
class ConvNet(nn.Module):
    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, bias=False), nn.Conv2d(8, 8, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.bn2 = self.bn1 if shared else nn.BatchNorm2d(8)
        self.fc = nn.Linear(8 * 4 * 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(input=self.conv1(x)))
        x = F.relu(self.bn2(input=self.conv2(x)))
        return self.fc(x.flatten(1))


# Two norms, one parameter
class Tied(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.a, self.fc1, self.b, self.fc2 = (
            nn.RMSNorm(DIM),
            nn.Linear(DIM, DIM),
            nn.RMSNorm(DIM),
            nn.Linear(DIM, 2),
        )
        if tied:
            self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.b(torch.tanh(self.fc1(self.a(x)))))


# fmt: off
CASES = [
    twins("NK106", "timm's Mlp", mixer, True, False, vectors(16, 8), "1.norm 2.norm", line=""),
    twins("NK106", "the second norm of a Post-LN layer", Encoder, Forgetful, PostLayer, vectors(),
          "layers.0.output_norm layers.1.output_norm", line=""),
    twins("NK106", "a list that is one too long", Zipped, 1, 0, vectors(), "norms.3", severity="info",
          line=""),
    twins("NK106", "a norm without the word", Leftover, True, False, vectors(), "post_scale", line=""),
    twins("NK106", "a q_norm that Llama does not call", llama_with, True, False, tokens,
          "model.layers.1.self_attn.q_norm", line=""),
    twins("NK106", "k_norm", QkAttention, ("q_norm", "k_norm"), ("q_norm",), vectors(), "k_norm", line=""),
    twins("NK106", "a key of a ModuleDict", Dicts, ("lin", "bn"), ("lin",), vectors(64, DIM),
          "layers.0.bn layers.1.bn", line=""),
    twins("NK107", "OLMo's block", Olmo, True, False, tokens, "h.0.ln_1 h.1.ln_1"),
    twins("NK107", "norm1 twice in a Post-LN layer", post_stack, True, False, vectors(), "0.norm1 1.norm1"),
    twins("NK107", "one norm for all layers", passed_on, True, False, tokens, "h.0.ln_1"),
    twins("NK107", "one norm for all sublayers", QaNet, True, False, vectors(), "norms.0"),
    twins("NK107", "one BatchNorm for all convolutions", ConvNet, True, False, images(16), "bn1"),
    twins("NK107", "two norms with one gain", Tied, True, False, vectors(), "b"),
]
# fmt: on

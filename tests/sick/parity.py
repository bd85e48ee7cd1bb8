"""NK701 gain-convention, NK702 eps-differs, NK703 kind-differs, NK704 cast-differs, NK705 place-differs,
NK706 axes-differ: a port, and the model it was ported from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normkit as nk
from sick.blocks import GPT, Attention, Feed, Rms, pre_block
from sick.case import DIM, Sick, seeded, tokens, vectors
from sick.hugging import gpt2, llama


def against(build: Callable[[], nn.Module]) -> Callable[[nn.Module], dict[str, Any]]:
    return lambda model: {"reference": build().eval() if not model.training else build()}


class Unit(nn.Module):
    """Gemma's: 1 + w."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(DIM))

    def gain(self) -> Tensor:
        return 1.0 + self.weight.float()

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (y * self.gain()).type_as(x)


class Raw(Unit):
    """A port of it that multiplies by the weight as it is stored."""

    def gain(self) -> Tensor:
        return self.weight.float()


# github.com/pytorch/executorch/pull/19901: Gemma's checkpoint, and an RMSNorm that multiplies by w
def gemma(norm: type[nn.Module]) -> nn.Module:
    return seeded(lambda: GPT(norm=norm))


# github.com/utensils/mold/pull/1078: weights that hold the 1 already, and 1 + w once more
def folded(norm: Callable[[], nn.Module]) -> nn.Module:
    def build() -> nn.Module:
        model = llama()
        for path, module in list(model.named_modules()):
            if type(module).__name__ == "LlamaRMSNorm":
                model.set_submodule(path, norm())
        return model

    return seeded(build)


def plus_one() -> nn.Module:
    return nk.RMSNorm(DIM, 1e-6, zero_centered_weight=True, multiply="after_cast")


def plain() -> nn.Module:
    return nk.RMSNorm(DIM, 1e-6, multiply="after_cast")


# huggingface/candle/pull/271, meta-pytorch/torchtune/pull/152: 1e-5 for 1e-6
def with_eps(eps: float) -> nn.Module:
    def build() -> nn.Module:
        model = llama()
        model.model.norm.variance_epsilon = eps
        return model

    return seeded(build)


# allenai/OLMo/issues/281: eps beside the root, where Llama has it inside
class Outside(nn.Module):
    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.w, self.inside = nn.Parameter(torch.ones(DIM)), inside

    def forward(self, x: Tensor) -> Tensor:
        square = x.pow(2).mean(-1, keepdim=True)
        return self.w * x / ((square + 1e-5).sqrt() if self.inside else square.sqrt() + 1e-5)


class Wrapped(nn.Module):
    """A norm between two matrices; the norm is the only thing that differs."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.inp, self.scale, self.out = nn.Linear(DIM, DIM), norm, nn.Linear(DIM, 2)

    def forward(self, *, x: Tensor) -> dict[str, Tensor]:
        return {"y": self.out(self.scale(self.inp(x)))}


def between(norm: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: seeded(lambda: Wrapped(norm()))


def keyword() -> dict[str, Tensor]:
    return {"x": torch.randn(4, 6, DIM)}


# ggml-org/llama.cpp/issues/173: a LayerNorm where Llama has an RMSNorm
def kinds(norm: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: seeded(lambda: GPT(norm=norm))


# harvardnlp/annotated-transformer/pull/119, allenai/allennlp/pull/953: std() is the unbiased one
class Annotated(nn.Module):
    def __init__(self, correction: int) -> None:
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.ones(DIM)), nn.Parameter(torch.zeros(DIM))
        self.correction = correction

    def forward(self, x: Tensor) -> Tensor:
        std = x.std(-1, keepdim=True, correction=self.correction)
        return self.a_2 * (x - x.mean(-1, keepdim=True)) / (std + 1e-6) + self.b_2


# Mamba-2's norm_before_gate
class Gated(nn.Module):
    def __init__(self, norm_before_gate: bool) -> None:
        super().__init__()
        self.weight, self.before = nn.Parameter(torch.ones(DIM)), norm_before_gate

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        x = x if self.before else x * F.silu(z)
        y = self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        return y * F.silu(z) if self.before else y


class Mixer(nn.Module):
    def __init__(self, norm_before_gate: bool) -> None:
        super().__init__()
        self.inp, self.norm, self.out = nn.Linear(DIM, 2 * DIM), Gated(norm_before_gate), nn.Linear(DIM, DIM)

    def forward(self, hidden: Tensor) -> Tensor:
        x, z = self.inp(hidden).chunk(2, -1)
        return self.out(self.norm(x, z))


def gated(norm_before_gate: bool) -> Callable[[], nn.Module]:
    return lambda: seeded(lambda: Mixer(norm_before_gate))


# NVIDIA/TransformerEngine/issues/1132: Hugging Face rounds before the gain, others after it
class Casts(nn.Module):
    def __init__(self, first: bool) -> None:
        super().__init__()
        self.weight, self.first = nn.Parameter(1 + 0.1 * torch.randn(DIM)), first

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype) if self.first else (self.weight.float() * y).to(x.dtype)


def narrow(norm: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: seeded(lambda: GPT(norm=norm)).bfloat16()


# pytorch/pytorch/pull/133085: statistics in the dtype of the input, where LlamaRMSNorm takes float32
class HalfStatistics(Rms):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


# Pre-LN and Post-LN have the same weights: a checkpoint of one loads into the other (normalize_before)
def post_block(block: nn.Module, x: Tensor) -> Tensor:
    x = block.ln_1(x + block.attn(x))
    return block.ln_2(x + block.mlp(x))


def placed(step: Callable[[nn.Module, Tensor], Tensor]) -> Callable[[], nn.Module]:
    return lambda: seeded(lambda: GPT(step))


# EleutherAI/gpt-neox/pull/1408: "the norm placement order is changed from neox to olmo2"
class Reordered(nn.Module):
    def __init__(self, before: bool) -> None:
        super().__init__()
        self.mix, self.norm, self.mlp, self.mlp_norm = Attention(), Rms(), Feed(), Rms()
        self.before = before

    def forward(self, x: Tensor) -> Tensor:
        if self.before:
            x = x + self.mix(self.norm(x))
            return x + self.mlp(self.mlp_norm(x))
        x = x + self.norm(self.mix(x))
        return x + self.mlp_norm(self.mlp(x))


def reordered(before: bool) -> Callable[[], nn.Module]:
    return lambda: seeded(
        lambda: nn.Sequential(Reordered(before), Reordered(before), Rms(), nn.Linear(DIM, 3))
    )


# Two norms that have changed places
def crossed(block: nn.Module, x: Tensor) -> Tensor:
    x = x + block.attn(block.ln_2(x))
    return x + block.mlp(block.ln_1(x))


def without_norm(path: str) -> nn.Module:
    def build() -> nn.Module:
        model = gpt2()
        model.set_submodule(path, nn.Identity())
        return model

    return seeded(build)


# vllm-project/vllm-metal/issues/767: OLMo-2 normalises queries over all heads, others each head
class QkNorm(nn.Module):
    def __init__(self, heads_first: bool) -> None:
        super().__init__()
        self.qkv, self.proj, self.heads_first = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM), heads_first
        self.q_norm, self.k_norm = (nn.RMSNorm(DIM // 2 if heads_first else DIM, 1e-6) for _ in range(2))
        self.ln = nn.RMSNorm(DIM, 1e-6)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.ln(x)).chunk(3, -1)
        if not self.heads_first:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.unflatten(-1, (2, -1)) for t in (q, k, v))
        if self.heads_first:
            q, k = self.q_norm(q), self.k_norm(k)
        y = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)))
        return x + self.proj(y.transpose(1, 2).flatten(2))


def qk(heads_first: bool) -> Callable[[], nn.Module]:
    return lambda: seeded(lambda: nn.Sequential(QkNorm(heads_first), QkNorm(heads_first), nn.RMSNorm(DIM)))


# state-spaces/mamba/pull/910, huggingface/transformers/pull/35943: groups of a gated norm, ignored
class GroupRms(nn.Module):
    def __init__(self, groups: int) -> None:
        super().__init__()
        self.weight, self.groups = nn.Parameter(torch.ones(DIM)), groups

    def forward(self, x: Tensor) -> Tensor:
        y = x.unflatten(-1, (self.groups, -1))
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * y.flatten(-2)


BLOCKS = "h.0.ln_1 h.0.ln_2 h.1.ln_1 h.1.ln_2"
ALL = f"{BLOCKS} ln_f"
NAMES = [f"model.layers.{i}.{name}_layernorm" for i in range(2) for name in ("input", "post_attention")]
LLAMA = " ".join([*NAMES, "model.norm"])


def port(code: str, name: str, sick: Any, healthy: Any, batch: Any, where: str, **more: Any) -> Sick:
    """The repaired twin is the model that it was ported from, built once more."""
    return Sick(code, name, sick, healthy, batch, where, options=against(healthy), **more)


# fmt: off
CASES = [
    port("NK701", "Gemma with w", lambda: gemma(Raw), lambda: gemma(Unit), tokens, ALL),
    port("NK701", "Llama with 1 + w", lambda: folded(plus_one), lambda: folded(plain), tokens, LLAMA,
         line="transformers"),
    port("NK702", "1e-5 for 1e-6", lambda: with_eps(1e-5), lambda: with_eps(1e-6), tokens, "model.norm",
         line="transformers"),
    port("NK702", "outside of the root", between(lambda: Outside(False)), between(lambda: Outside(True)),
         keyword, "scale"),
    port("NK702", "BERT's 1e-12", kinds(lambda: nn.LayerNorm(DIM)), kinds(lambda: nn.LayerNorm(DIM, 1e-12)),
         tokens, ALL),
    port("NK703", "LayerNorm for RMSNorm", kinds(lambda: nn.LayerNorm(DIM, 1e-6, bias=False)),
         kinds(lambda: nn.RMSNorm(DIM, 1e-6)), tokens, ALL),
    port("NK703", "a bias that was left out", between(lambda: nn.LayerNorm(DIM, bias=False)),
         between(lambda: nn.LayerNorm(DIM)), keyword, "scale"),
    port("NK703", "an unbiased variance", between(lambda: Annotated(1)), between(lambda: Annotated(0)),
         keyword, "scale"),
    port("NK703", "the gate on the other side", gated(True), gated(False), vectors(), "norm"),
    port("NK704", "the gain before the cast", narrow(lambda: Casts(False)), narrow(lambda: Casts(True)),
         tokens, ALL),
    port("NK704", "the gain after the cast", narrow(lambda: Casts(True)), narrow(lambda: Casts(False)),
         tokens, ALL),
    port("NK704", "statistics in bfloat16", narrow(HalfStatistics), narrow(Rms), tokens, ALL),
    port("NK705", "Post-LN for Pre-LN", placed(post_block), placed(pre_block), tokens, ALL),
    port("NK705", "two norms that changed places", placed(crossed), placed(pre_block), tokens, BLOCKS),
    port("NK705", "Pre-LN for OLMo-2's", reordered(True), reordered(False), vectors(),
         "0.norm 0.mlp_norm 1.norm 1.mlp_norm"),
    port("NK705", "a norm that is missing", lambda: without_norm("transformer.h.1.ln_2"),
         lambda: seeded(gpt2), tokens, "transformer.h.1.ln_2", line=""),
    port("NK706", "each head for all heads", qk(True), qk(False), vectors(),
         "0.q_norm 0.k_norm 1.q_norm 1.k_norm"),
    port("NK706", "all heads for each head", qk(False), qk(True), vectors(),
         "0.q_norm 0.k_norm 1.q_norm 1.k_norm"),
    port("NK706", "groups that are ignored", between(lambda: GroupRms(1)), between(lambda: GroupRms(4)),
         keyword, "scale"),
]
# fmt: on

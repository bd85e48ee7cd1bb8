"""NK102 missing-final-norm, NK103 double-norm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sick.blocks import GPT, Attention, Feed, Rms, ViT, pre_block
from sick.case import DIM, VOCAB, images, tokens, twins, vectors
from sick.hugging import gemma2, gpt2, llama, t5
from sick.wrappers import PreNorm, Residual

# NK102


class Unfinished(nn.Module):
    """The last norm was forgotten; the head is the embedding's matrix."""

    def __init__(self, finished: bool, pooled: bool = False) -> None:
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
def torch_encoder(norm: bool, norm_first: bool = True) -> nn.Module:
    layer = nn.TransformerEncoderLayer(DIM, 2, 32, dropout=0.0, batch_first=True, norm_first=norm_first)
    final = nn.LayerNorm(DIM) if norm else None
    encoder = nn.TransformerEncoder(layer, 2, norm=final, enable_nested_tensor=False)
    return nn.Sequential(encoder, nn.Linear(DIM, 5))


# github.com/marian-nmt/marian-dev/pull/719: the encoder, too, has to end in a norm; a decoder reads it
class Translator(nn.Module):
    def __init__(self, norm: bool) -> None:
        super().__init__()
        more = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        final = nn.LayerNorm(DIM) if norm else None
        layer = nn.TransformerEncoderLayer(DIM, 2, 32, **more)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=final, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(DIM, 2, 32, **more), 2, nn.LayerNorm(DIM)
        )

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.decoder(tgt, self.encoder(src))


# nanochat's: norms are functions without weights, one of them was left out
class Nanochat(nn.Module):
    def __init__(self, finished: bool) -> None:
        super().__init__()
        self.wte, self.finished = nn.Embedding(VOCAB, DIM), finished
        self.h = nn.ModuleList(nn.ModuleDict({"attn": Attention(), "mlp": Feed()}) for _ in range(2))
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, idx: Tensor) -> Tensor:
        x = norm(self.wte(idx))
        for block in self.h:
            x = x + block["attn"](norm(x))
            x = x + block["mlp"](norm(x))
        x = norm(x) if self.finished else x
        return 15 * torch.tanh(self.head(x) / 15)


def norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.size(-1),), eps=1e-6)


# titu1994/Wide-Residual-Networks/pull/9, raghakot/keras-resnet/pull/31: no BN and ReLU before the pooling
class PreAct(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(width), nn.Conv2d(width, out, 3, padding=1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(out), nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(width, out, 1, bias=False) if width != out else None

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(x))
        x = x if self.shortcut is None else self.shortcut(out)
        return self.conv2(F.relu(self.bn2(self.conv1(out)))) + x


class WideResNet(nn.Module):
    def __init__(self, finished: bool) -> None:
        super().__init__()
        self.conv, self.linear, self.finished = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(16, 10), finished
        self.blocks = nn.Sequential(PreAct(8, 8), PreAct(8, 16), PreAct(16, 16))
        self.bn = nn.BatchNorm2d(16) if finished else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.conv(x))
        x = F.relu(self.bn(x)) if self.bn is not None else x
        return self.linear(F.avg_pool2d(x, 8).flatten(1))


# Qwen-MoE's: tokens in one row, and an expert that all of them share
class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(DIM, 2), nn.ModuleList(Feed() for _ in range(2))
        self.shared, self.gate = Feed(), nn.Linear(DIM, 1)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, DIM)
        weights = self.router(rows).softmax(-1)
        y = torch.zeros_like(rows)
        for i, expert in enumerate(self.experts):
            chosen = torch.where(weights[:, i] > 0.5)[0]
            y.index_add_(0, chosen, expert(rows[chosen]) * weights[chosen, i, None])
        return (y + torch.sigmoid(self.gate(rows)) * self.shared(rows)).reshape(x.shape)


def moe(final: type[nn.Module] | None) -> nn.Module:
    model = gpt(final)
    for block in model.h:
        block.mlp = Experts()
    return model


def gpt(final: Callable[[], nn.Module] | None) -> nn.Module:
    return GPT(pre_block, final=final)


def without(path: str, build: Callable[[], nn.Module]) -> nn.Module:
    model = build()
    if path:
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


# An attention that normalises what its layer has normalised, in a Llama edited by hand
def llama_twice(again: bool) -> nn.Module:
    model = llama()
    if again:
        layer = model.model.layers[1]
        layer.input_layernorm = nn.Sequential(layer.input_layernorm, nn.RMSNorm(DIM))
    return model


post_ln = partial(torch_encoder, norm_first=False)
HF = {"line": "transformers"}
# fmt: off
CASES = [
    twins("NK102", "nanoGPT without ln_f", gpt, nn.Identity, None, tokens, "lm_head"),
    twins("NK102", "torch's encoder with norm_first", torch_encoder, False, True, vectors(), "1",
          line="torch"),
    twins("NK102", "an encoder that a decoder reads", Translator, False, True,
          lambda: (torch.randn(4, 6, DIM), torch.randn(4, 5, DIM)), "decoder.layers.0.multihead_attn",
          line="torch"),
    twins("NK102", "the class token of a ViT", lambda f: ViT(final=f), nn.Identity, None, images(), "head"),
    twins("NK102", "a tied head", Unfinished, False, True, tokens, "emb"),
    twins("NK102", "the mean over tokens", partial(Unfinished, pooled=True), False, True, tokens, "emb"),
    twins("NK102", "norms without weights", Nanochat, False, True, tokens, "head"),
    twins("NK102", "GPT-2", partial(without, build=gpt2), "transformer.ln_f", "", tokens, "lm_head", **HF),
    twins("NK102", "Gemma-2", partial(without, build=gemma2), "model.norm", "", tokens, "lm_head", **HF),
    twins("NK102", "a mixture of experts", moe, nn.Identity, None, tokens, "lm_head"),
    twins("NK102", "a wide ResNet", WideResNet, False, True, images(), "linear"),
    twins("NK102", "Llama", partial(without, build=llama), "model.norm", "", tokens, "lm_head", **HF),
    twins("NK102", "T5's decoder", partial(without, build=t5), "decoder.final_layer_norm", "",
          lambda: {"input_ids": tokens(), "decoder_input_ids": tokens()}, "lm_head", **HF),
    twins("NK102", "T5's encoder", partial(without, build=t5), "encoder.final_layer_norm", "",
          lambda: {"input_ids": tokens(), "decoder_input_ids": tokens()},
          "decoder.block.0.layer.1.EncDecAttention.k", **HF),
    twins("NK103", "behind torch's Post-LN encoder", post_ln, True, False, vectors(), "0.norm",
          severity="info", line="torch"),
    twins("NK103", "PreNorm around what has a norm", twice, PreNorm, nn.Sequential, vectors(),
          "0.fn.fn.norm 1.fn.fn.norm"),
    twins("NK103", "stacks with norms at both ends", lambda first: nn.Sequential(Stack(True), Stack(first)),
          True, False, vectors(), "1.begin"),
    twins("NK103", "twice, reshaped between", NormTwice, True, False, vectors(), "bn"),
    twins("NK103", "two BatchNorms", conv_bn, True, False, images(), "2"),
    twins("NK103", "a Llama edited by hand", llama_twice, True, False, tokens,
          "model.layers.1.input_layernorm.1", **HF),
]
# fmt: on

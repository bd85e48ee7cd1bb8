"""NK201 eps-underflow, NK202 square-overflow, NK203 massive-activation, NK204 absurd-eps,
NK205 not-a-norm."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sick.blocks import GPT, Feed, Rms
from sick.case import DIM, VOCAB, Sick, tokens, twins, vectors

HALF = torch.float16


def half(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(shape or (4, 6, DIM), dtype=HALF)


# NK201


class Narrow(nn.Module):
    """T5's norm without its cast: everything in the dtype of the input."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(DIM)), eps

    def forward(self, hidden: Tensor) -> Tensor:
        variance = hidden.pow(2).mean(-1, keepdim=True)
        return self.weight * hidden * torch.rsqrt(variance + self.variance_epsilon)


# BERT's own LayerNorm, of the days before torch had one, with BERT's 1e-12: huggingface/transformers/pull/585
class BertLayerNorm(nn.Module):
    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(DIM)), nn.Parameter(torch.zeros(DIM))
        self.wide = wide

    def forward(self, x: Tensor) -> Tensor:
        y = x.float() if self.wide else x
        u = y.mean(-1, keepdim=True)
        s = (y - u).pow(2).mean(-1, keepdim=True)
        return self.gamma * ((y - u) / torch.sqrt(s + 1e-12)).to(x.dtype) + self.beta


# github.com/pytorch/pytorch/issues/32137: F.normalize's eps of 1e-12 is 0 in half precision
class Retriever(nn.Module):
    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.encode, self.project, self.wide = nn.Linear(DIM, 32), nn.Linear(32, 8), wide

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(F.relu(self.encode(x)))
        return F.normalize(y.float(), dim=-1).to(y.dtype) if self.wide else F.normalize(y, dim=-1)


# x / x.norm(), without any eps: 0 / 0 in float32, too
class UnitNorm(nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.norm(dim=-1, keepdim=True) + self.eps)


def embedder(eps: float) -> nn.Module:
    return nn.Sequential(nn.Linear(DIM, 8), UnitNorm(eps))


# github.com/huggingface/diffusers/pull/13316: the same in the norm of an autoencoder
class VaeNorm(nn.Module):
    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.gamma, self.scale, self.wide = nn.Parameter(torch.ones(8, 1, 1)), 8**0.5, wide

    def forward(self, x: Tensor) -> Tensor:
        y = F.normalize(x.float() if self.wide else x, dim=1)
        return y.to(x.dtype) * self.scale * self.gamma


def vae(wide: bool) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), VaeNorm(wide), nn.SiLU(), nn.Conv2d(8, 3, 3)).to(HALF)


def half_gpt(norm: Callable[[], nn.Module]) -> nn.Module:
    return GPT(norm=norm).to(HALF)


ALL = "h.0.ln_1 h.0.ln_2 h.1.ln_1 h.1.ln_2 ln_f"

# NK202


def mlp(wide: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(DIM, DIM), BertLayerNorm(wide), nn.GELU(), nn.Linear(DIM, 2)).to(HALF)


# github.com/huggingface/transformers/issues/5651: T5's stream leaves float16
class LargeStream(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.shared, self.blocks = nn.Embedding(VOCAB, DIM), nn.ModuleList(Residual() for _ in range(2))
        self.final, self.head = Rms(), nn.Linear(DIM, VOCAB)
        with torch.no_grad():
            self.shared.weight[:, 3] *= scale

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.shared(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.final(x))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.ff = Rms(), Feed()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.ff(self.norm(x))


# NK203


def spiked(by: float) -> nn.Module:
    """The last matrix of a feed-forward writes one large number at every token."""
    model = GPT()
    with torch.no_grad():
        model.h[1].mlp.down.bias[2] += by
    return model


# NK204


# github.com/eriklindernoren/PyTorch-GAN: nn.BatchNorm2d(128, 0.8), where 0.8 was meant as momentum
def generator(*more: float, **named: float) -> nn.Module:
    return nn.Sequential(
        nn.Linear(DIM, 128),
        nn.Unflatten(1, (8, 4, 4)),
        nn.BatchNorm2d(8),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(8, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8, *more, **named),
        nn.LeakyReLU(0.2),
        nn.Conv2d(8, 3, 3, padding=1),
        nn.Tanh(),
    )


# LSTM with norms, whose inputs are the samples of quiet audio: a variance of 1e-6
class Quiet(nn.Module):
    def __init__(self, eps: float, gain: float) -> None:
        super().__init__()
        self.scale, self.gain = nn.LayerNorm(DIM, eps=eps), gain
        self.lstm, self.after = nn.LSTM(DIM, 8, batch_first=True), nn.LayerNorm(8)

    def forward(self, wave: Tensor) -> Tensor:
        y, _ = self.lstm(self.scale(self.gain * wave))
        return self.after(y)


# NK205


class RMSNorm(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.weight, self.kind, self.eps = nn.Parameter(torch.ones(DIM)), kind, 1e-6

    def forward(self, x: Tensor) -> Tensor:
        mean_square = x.pow(2).mean(-1, keepdim=True)
        if self.kind == "divides by rsqrt":  # github.com/mosaicml/llm-foundry/issues/371
            return x / torch.rsqrt(mean_square + self.eps) * self.weight
        if self.kind == "lost its division":
            return x * self.weight
        if self.kind == "without the root":
            return x / (mean_square + self.eps) * self.weight
        return x * torch.rsqrt(mean_square + self.eps) * self.weight


class MyLayerNorm(nn.Module):
    """Subtracts the mean and stops."""

    def __init__(self, divides: bool) -> None:
        super().__init__()
        self.a_2, self.b_2, self.divides = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8)), divides

    def forward(self, x: Tensor) -> Tensor:
        std = x.std(-1, keepdim=True) + 1e-6 if self.divides else 1.0
        return self.a_2 * (x - x.mean(-1, keepdim=True)) / std + self.b_2


def probe(divides: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(DIM, 8), MyLayerNorm(divides), nn.Linear(8, 2))


def gpt(kind: str) -> nn.Module:
    return GPT(norm=lambda: RMSNorm(kind))


# fmt: off
CASES = [
    # Micikevicius et al. 2018: 1e-8 is 0 in float16
    twins("NK201", "T5's norm with 1e-8", half_gpt, lambda: Narrow(1e-8), Rms, tokens, ALL),
    twins("NK201", "BERT's own LayerNorm", mlp, False, True, half(), "1"),
    Sick("NK201", "F.normalize", lambda: Retriever(False).to(HALF), lambda: Retriever(True).to(HALF), half(),
         ":normalize"),
    twins("NK201", "F.normalize in a norm of channels", vae, False, True, half(4, 3, 8, 8), "1"),
    twins("NK201", "no eps at all", embedder, 0.0, 1e-6, vectors(), "1"),
    # github.com/pytorch/pytorch/pull/133085: nn.RMSNorm, in its first form
    twins("NK202", "squares in float16", half_gpt, lambda: Narrow(1e-5), Rms, tokens, ALL),
    # github.com/xlite-dev/LeetCUDA/pull/335: LayerNorm and RMSNorm give zeros
    twins("NK202", "BERT's own LayerNorm", mlp, False, True, half(), "1"),
    Sick("NK202", "T5's stream", lambda: LargeStream(1e4).to(HALF), lambda: LargeStream(1.0).to(HALF),
         tokens, "blocks.0 blocks.1"),
    # Sun et al. 2024, arXiv:2402.17762: a feature of Llama, thousands of times as large as the others
    twins("NK203", "a feature of the embedding", LargeStream, 3e3, 1.0, tokens, "blocks.0 blocks.1"),
    twins("NK203", "the bias of a branch", spiked, 2e3, 0.0, tokens, "h.1"),
    Sick("NK204", "nn.LayerNorm(dim, True)", lambda: GPT(norm=lambda: nn.LayerNorm(DIM, True)), GPT, tokens,
         ALL),
    # github.com/vithursant/nanoGPT_mlx/issues/1: LayerNorm(config.n_embd, config.bias)
    Sick("NK204", "nn.LayerNorm(dim, config.bias)", lambda: GPT(final=lambda: nn.LayerNorm(DIM, False)), GPT,
         tokens, "ln_f"),
    Sick("NK204", "momentum in the place of eps", lambda: generator(0.8), lambda: generator(momentum=0.8),
         vectors(16, DIM), "5"),
    Sick("NK204", "above the variance", lambda: Quiet(1e-3, 1.0), lambda: Quiet(1e-5, 1e3),
         lambda: 1e-3 * torch.randn(4, 6, DIM), "scale"),
    twins("NK205", "x / rsqrt", gpt, "divides by rsqrt", "", tokens, ALL),
    twins("NK205", "x * weight", gpt, "lost its division", "", tokens, ALL),
    twins("NK205", "x / variance", gpt, "without the root", "", tokens, ALL),
    twins("NK205", "only centres", probe, False, True, vectors(), "1"),
]
# fmt: on

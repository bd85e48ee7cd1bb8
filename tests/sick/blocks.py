"""Parts that broken models are made of; nothing is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sick.case import DIM, LENGTH, VOCAB

__all__ = ["GPT", "Attention", "Block", "Feed", "Rms", "Step", "ViT", "pre_block"]


class Attention(nn.Module):
    def __init__(self, dim: int = DIM, heads: int = 2, causal: bool = True) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.proj(y.transpose(1, 2).flatten(2))


class Feed(nn.Module):
    def __init__(self, dim: int = DIM) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Rms(nn.Module):
    """Llama's, with its statistics in float32."""

    def __init__(self, dim: int = DIM, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


Step = Callable[[nn.Module, Tensor], Tensor]


def pre_block(module: nn.Module, x: Tensor) -> Tensor:
    x = x + module.attn(module.ln_1(x))
    return x + module.mlp(module.ln_2(x))


class Block(nn.Module):
    def __init__(self, step: Step, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.ln_1, self.attn = norm(), Attention()
        self.ln_2, self.mlp = norm(), Feed()
        self.step = step

    def forward(self, x: Tensor) -> Tensor:
        return self.step(self, x)


class GPT(nn.Module):
    """nanoGPT's. ``step``: what a block does; ``final``: what stands before the head."""

    def __init__(
        self,
        step: Step | Sequence[Step] = pre_block,
        depth: int = 2,
        norm: Callable[[], nn.Module] = lambda: nn.LayerNorm(DIM),
        final: Callable[[], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        steps = list(step) if isinstance(step, Sequence) else [step] * depth
        self.wte, self.wpe = nn.Embedding(VOCAB, DIM), nn.Embedding(LENGTH, DIM)
        self.h = nn.ModuleList(Block(s, norm) for s in steps)
        self.ln_f = (final or norm)()
        self.lm_head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class ViT(nn.Module):
    """With blocks as attributes, and a dict as its output."""

    def __init__(self, step: Step = pre_block, final: type[nn.Module] | None = None) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, DIM, 4, stride=4)
        self.cls, self.pos = nn.Parameter(torch.randn(1, 1, DIM)), nn.Parameter(torch.randn(1, 5, DIM))
        self.block1, self.block2 = (Block(step, lambda: nn.LayerNorm(DIM)) for _ in range(2))
        self.norm = final() if final is not None else nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, 10)

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        x = self.patches(pixels).flatten(2).mT
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        x = self.block2(self.block1(x))
        return {"logits": self.head(self.norm(x)[:, 0])}

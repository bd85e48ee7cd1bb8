"""NK301 bn-small-batch, NK302 bn-stat-drift, NK303 bn-not-frozen, NK304 pad-leak, NK305 inverted-momentum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normkit as nk
from sick.case import DIM, VOCAB, Sick, images, twins, vectors

# NK301


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(DIM, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))


# github.com/xuebinqin/BASNet/issues/42, tinghuiz/SfMLearner/issues/30: batches of a few images
class Aspp(nn.Module):
    """DeepLab's pooled branch: one number for each image and channel."""

    def __init__(self, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1, bias=False), norm(), nn.ReLU())
        self.out = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.out(torch.cat([x, self.pool(x).expand_as(x)], 1))


# NK302


# Pixels of 0 to 255 in training and of 0 to 1 afterwards
class Pixels(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Linear(288, 2)
        with torch.no_grad():
            for _ in range(60):
                self.train()(scale * torch.rand(8, 3, 8, 8))

    def forward(self, image: Tensor) -> Tensor:
        return self.fc(F.relu(self.bn(self.conv(image))).flatten(1))


# github.com/svishwa/crowdcount-mcnn/issues/64: momentum=0, so that evaluation uses 0 and 1 for ever
class Counter(nn.Module):
    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, momentum=momentum)
        self.head = nn.Conv2d(8, 1, 1)
        nn.init.normal_(self.stem.weight, std=1.0)
        with torch.no_grad():
            for _ in range(60):
                self.train()(torch.randn(8, 3, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.bn(self.stem(x))))


# A checkpoint that was converted, and its variances taken for standard deviations
class Converted(nn.Module):
    def __init__(self, power: float) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        nn.init.normal_(self.conv.weight, std=1.0)
        self.bn.running_var.copy_(self.conv.weight.detach().square().sum((1, 2, 3)) ** power)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


# NK303


# github.com/lightly-ai/lightly/issues/1438, Lightning-AI/pytorch-lightning/issues/15062
class Transfer(nn.Module):
    def __init__(self, freezes: bool) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3),
            nn.BatchNorm2d(8),
        )
        self.backbone.requires_grad_(False)
        self.head, self.freezes = nn.Linear(8, 2), freezes

    def train(self, mode: bool = True) -> Transfer:
        super().train(mode)
        if self.freezes:
            self.backbone.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x).mean((2, 3)))


# A projector without gains, behind a frozen encoder: github.com/pytorch/pytorch/issues/86590
class Probe(nn.Module):
    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.encoder, self.bn = nn.Linear(DIM, 8), nn.BatchNorm1d(8, affine=False)
        self.encoder.requires_grad_(not frozen)
        self.fc = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.bn(self.encoder(x)))


# NK304


def padded(**more: Callable[[], Any]) -> Callable[[], dict[str, Any]]:
    """Sequences of 12, 8 and 5 in rows of 12."""

    def build() -> dict[str, Any]:
        mask = torch.arange(12) < torch.tensor([12, 8, 5, 9])[:, None]
        ids = torch.randint(1, VOCAB, (4, 12)) * mask
        return {"ids": ids, **{name: make(mask) for name, make in more.items()}}  # type: ignore[call-arg]

    return build


# github.com/Tomiinek/Multilingual_Text_to_Speech/issues/81: BatchNorm1d on padded text
class Tacotron(nn.Module):
    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.emb, self.conv = nn.Embedding(VOCAB, DIM), nn.Conv1d(DIM, DIM, 3, padding=1, bias=False)
        self.bn, self.masked = (nk.BatchNorm1d if masked else nn.BatchNorm1d)(DIM), masked
        self.out = nn.Linear(DIM, 4)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.conv(self.emb(ids).mT)
        x = self.bn(x, mask=attention_mask) if self.masked else self.bn(x)
        return self.out(F.relu(x).mT)


# github.com/pytorch/pytorch/issues/81985: InstanceNorm and GroupNorm need a mask, too
class Speech(nn.Module):
    def __init__(self, norm: nn.Module, last: bool) -> None:
        super().__init__()
        self.emb, self.conv = nn.Embedding(VOCAB, DIM), nn.Conv1d(DIM, DIM, 1)
        self.norm, self.last, self.out = norm, last, nn.Linear(DIM, 4)

    def forward(self, ids: Tensor, src_key_padding_mask: Tensor) -> Tensor:
        x = self.conv(self.emb(ids).mT)
        x = self.norm(x.mT) if self.last else self.norm(x).mT
        return self.out(F.gelu(x)).masked_fill(src_key_padding_mask[..., None], 0)


# github.com/SeanNaren/deepspeech.pytorch/issues/312: a batch of frames and their lengths
class Frames(nn.Module):
    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        self.fc, self.norm, self.out = nn.Linear(5, DIM, bias=False), norm(DIM), nn.Linear(DIM, 4)

    def forward(self, frames: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        x = self.fc(frames)
        return self.out(self.norm(x.flatten(0, 1)).view_as(x)), lengths


def frames() -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([12, 8, 5, 9])
    return torch.randn(4, 12, 5) * (torch.arange(12) < lengths[:, None])[..., None], lengths


# NK305


def yolo(momentum: float) -> nn.Module:
    conv = nn.Conv2d(3, 8, 3, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(8, momentum=momentum), nn.LeakyReLU(0.1), nn.Conv2d(8, 4, 1))


class DeepLab(nn.Module):
    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(
            {"conv": nn.Conv2d(3, 8, 3, bias=False), "bn": nk.BatchNorm2d(8, 1e-5, momentum)}
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        return [F.relu(self.layers["bn"](self.layers["conv"](x)))]


TRAINING = {"modes": (True,)}
# fmt: off
CASES = [
    Sick("NK301", "4 rows", mlp, mlp, vectors(4, DIM), "1", healthy_batch=vectors(64, DIM), **TRAINING),
    Sick("NK301", "2 rows", mlp, mlp, vectors(2, DIM), "1", healthy_batch=vectors(64, DIM), **TRAINING),
    twins("NK301", "a pooled branch", Aspp, lambda: nn.BatchNorm2d(8), lambda: nn.GroupNorm(2, 8), images(8),
          "pool.2", **TRAINING),
    twins("NK302", "pixels of another scale", Pixels, 255.0, 1.0, lambda: torch.rand(16, 3, 8, 8), "bn"),
    twins("NK302", "a momentum of 0", Counter, 0.0, 0.1, images(16), "bn"),
    twins("NK302", "a converted checkpoint", Converted, 0.5, 1.0, images(32), "bn"),
    twins("NK303", "a frozen backbone", Transfer, False, True, images(), "backbone.1 backbone.4", **TRAINING),
    twins("NK303", "a frozen encoder, a norm without gains", Probe, True, False, vectors(64, DIM), "bn",
          **TRAINING),
    twins("NK304", "BatchNorm1d", Tacotron, False, True, padded(attention_mask=lambda mask: mask), "bn",
          **TRAINING),
    Sick("NK304", "InstanceNorm1d", lambda: Speech(nn.InstanceNorm1d(DIM), False),
         lambda: Speech(nn.LayerNorm(DIM), True), padded(src_key_padding_mask=lambda mask: ~mask), "norm"),
    Sick("NK304", "GroupNorm over time", lambda: Speech(nn.GroupNorm(1, DIM), False),
         lambda: Speech(nn.RMSNorm(DIM), True), padded(src_key_padding_mask=lambda mask: ~mask), "norm"),
    twins("NK304", "a mask of (batch, 1, length)", Tacotron, False, True,
          padded(attention_mask=lambda mask: mask[:, None]), "bn", **TRAINING),
    twins("NK304", "a tuple with lengths", Frames, nn.BatchNorm1d, nn.LayerNorm, frames, "norm",
          **TRAINING),
    # github.com/eriklindernoren/PyTorch-YOLOv3/issues/230
    twins("NK305", "0.9", yolo, 0.9, 0.1, images(), "1", **TRAINING),
    # github.com/kazuto1011/deeplab-pytorch/issues/79
    twins("NK305", "0.999", DeepLab, 0.999, 0.001, images(), "layers.bn", **TRAINING),
    twins("NK305", "0.999, in evaluation", DeepLab, 0.999, 0.001, images(), "layers.bn", modes=(False,),
          severity="info"),
]
# fmt: on

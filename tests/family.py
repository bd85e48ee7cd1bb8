"""Every layer with every option, as data: tests run over this table, and a new norm is one more row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normkit as nk

TOKENS = (3, 4, 6)  # batch, length, features
IMAGES = (3, 6, 2, 3)  # batch, channels, height, width


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[..., nn.Module]
    shape: tuple[int, ...]
    mask_shape: tuple[int, ...] | None = None  # None: the layer takes no mask
    training: bool = True
    extra: dict[str, Any] = field(default_factory=dict)  # further inputs by name, as shapes

    def layer(self, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
        """The layer with random parameters and running statistics: 1 and 0 would hide mistakes."""
        layer = self.make().to(dtype).train(self.training)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
                if tensor.is_floating_point():
                    low = 0.5 if name.endswith(("var", "square", "alpha", "scale")) else -1.0
                    tensor.copy_(
                        low + 1.5 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
                    )
        return layer

    def inputs(self, dtype: torch.dtype = torch.float64, seed: int = 1) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        shapes = {"x": self.shape, **self.extra}
        return {
            name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            for name, shape in shapes.items()
        }


def call(layer: nn.Module, inputs: dict[str, Tensor], **others: Any) -> Tensor:
    """torch calls its first input now ``input``, now ``x``: pass it by position."""
    first, *rest = inputs.items()
    return layer(first[1], **dict(rest), **others)


TRACK = {"track_running_stats": True, "affine": True}
FAMILY = [
    Case("LayerNorm", lambda: nk.LayerNorm(6), TOKENS),
    Case("LayerNorm-two-axes", lambda: nk.LayerNorm((4, 6)), TOKENS),
    Case("LayerNorm-no-bias", lambda: nk.LayerNorm(6, bias=False), TOKENS),
    Case("LayerNorm-plain", lambda: nk.LayerNorm(6, elementwise_affine=False), TOKENS),
    Case("LayerNorm-channels", lambda: nk.LayerNorm(6, axis=1), IMAGES),
    Case("RMSNorm", lambda: nk.RMSNorm(6), TOKENS),
    Case("RMSNorm-eps", lambda: nk.RMSNorm(6, eps=1e-2), TOKENS),
    Case("RMSNorm-plain", lambda: nk.RMSNorm(6, elementwise_affine=False), TOKENS),
    Case("RMSNorm-channels", lambda: nk.RMSNorm(6, axis=1), IMAGES),
    Case("RMSNorm-zero-centred", lambda: nk.RMSNorm(6, zero_centered_weight=True), TOKENS),
    Case("RMSNorm-after-cast", lambda: nk.RMSNorm(6, multiply="after_cast"), TOKENS),
    Case("GroupNorm", lambda: nk.GroupNorm(3, 6), IMAGES, (3, 2, 3)),
    Case("GroupNorm-plain", lambda: nk.GroupNorm(3, 6, affine=False), IMAGES, (3, 2, 3)),
    Case("GroupNorm-no-bias", lambda: nk.GroupNorm(3, 6, bias=False), IMAGES, (3, 2, 3)),
    Case("GroupNorm-last", lambda: nk.GroupNorm(3, 6, axis=-1), TOKENS, (3, 4)),
    Case("BatchNorm1d", lambda: nk.BatchNorm1d(6), (5, 6), (5,)),
    Case("BatchNorm1d-last", lambda: nk.BatchNorm1d(6, axis=-1), TOKENS, (3, 4)),
    Case("BatchNorm1d-eval", lambda: nk.BatchNorm1d(6, axis=-1), TOKENS, (3, 4), training=False),
    Case("BatchNorm2d", lambda: nk.BatchNorm2d(6), IMAGES, (3, 2, 3)),
    Case("BatchNorm2d-average", lambda: nk.BatchNorm2d(6, momentum=None), IMAGES, (3, 2, 3)),
    Case("BatchNorm2d-untracked", lambda: nk.BatchNorm2d(6, track_running_stats=False), IMAGES, (3, 2, 3)),
    Case("BatchNorm2d-plain", lambda: nk.BatchNorm2d(6, affine=False), IMAGES, (3, 2, 3)),
    Case("BatchNorm2d-no-bias", lambda: nk.BatchNorm2d(6, bias=False), IMAGES, (3, 2, 3)),
    Case("BatchNorm3d", lambda: nk.BatchNorm3d(4), (2, 4, 2, 1, 3), (2, 2, 1, 3)),
    Case("SyncBatchNorm", lambda: nk.SyncBatchNorm(6), IMAGES, (3, 2, 3)),
    Case("InstanceNorm1d", lambda: nk.InstanceNorm1d(6), (3, 6, 5), (3, 5)),
    Case("InstanceNorm1d-last", lambda: nk.InstanceNorm1d(6, affine=True, axis=-1), TOKENS, (3, 4)),
    Case("InstanceNorm2d", lambda: nk.InstanceNorm2d(6, **TRACK), IMAGES, (3, 2, 3)),
    Case("InstanceNorm2d-eval", lambda: nk.InstanceNorm2d(6, **TRACK), IMAGES, (3, 2, 3), training=False),
    Case("InstanceNorm3d", lambda: nk.InstanceNorm3d(4, affine=True), (2, 4, 2, 1, 3), (2, 2, 1, 3)),
    Case("Norm-token", lambda: nk.Norm("b l [d]", d=6), TOKENS, (3, 4)),
    Case("Norm-rms", lambda: nk.Norm("b l [d]", d=6, center=False), TOKENS, (3, 4)),
    Case("Norm-group", lambda: nk.Norm("n (g [c]) [h w]", g=3, c=2), IMAGES, (3, 2, 3)),
    Case("Norm-group-rms", lambda: nk.Norm("n (g [c]) [h w]", g=3, c=2, center=False), IMAGES, (3, 2, 3)),
    Case("Norm-batch", lambda: nk.Norm("[...] d", d=6), TOKENS, (3, 4)),
    Case("Norm-one-factor", lambda: nk.Norm("n (g [c]) h w", g=3, c=2, affine="c"), IMAGES, (3, 2, 3)),
    Case("Norm-plain", lambda: nk.Norm("n [c h] w", affine=False), IMAGES, (3, 6, 2, 3)),
    Case("ScaleNorm", lambda: nk.ScaleNorm(6), TOKENS),
    Case("ScaleNorm-channels", lambda: nk.ScaleNorm(6, axis=1), IMAGES),
    Case("DyT", lambda: nk.DyT(6), TOKENS),
    Case("DyT-channels", lambda: nk.DyT(6, axis=1), IMAGES),
    Case(
        "AdaNorm",
        lambda: nk.AdaNorm(nk.LayerNorm(6, elementwise_affine=False), 6, 2),
        TOKENS,
        (3, 4),
        extra={"cond": (3, 2)},
    ),
    Case(
        "AdaNorm-batch",
        lambda: nk.AdaNorm(nk.BatchNorm2d(6, affine=False), 6, 2, axis=1),
        IMAGES,
        (3, 2, 3),
        extra={"cond": (3, 2)},
    ),
]
# Its gradient is not the derivative of its output, by definition: tests of gradients leave it out.
POWER = [
    Case("PowerNorm", lambda: nk.PowerNorm(6), TOKENS, (3, 4)),
    Case("PowerNorm-eval", lambda: nk.PowerNorm(6), TOKENS, (3, 4), training=False),
]


def over(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)

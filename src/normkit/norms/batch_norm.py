from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules import batchnorm

from normkit import checks, functional
from normkit.errors import user_error
from normkit.norms.affine import reset_affine

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d"]


class BatchNormBase(batchnorm._BatchNorm):
    """What every BatchNorm shares. The named classes inherit from torch's too, so that isinstance holds."""

    axis: int = 1
    ranks: tuple[int, ...] | None = None  # how many axes an input may have; None: two or more

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        axis: int = 1,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        if not bias:  # torch has this argument in recent releases only
            self.register_parameter("bias", None)
        self.axis = axis

    def reset_parameters(self) -> None:
        self.reset_running_stats()
        reset_affine(self)

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        self._check_input_dim(input)
        training = self.training or (self.running_mean is None and self.running_var is None)
        running = not self.training or self.track_running_stats
        tracked = self.training and self.track_running_stats and self.num_batches_tracked is not None
        return functional.batch_norm(
            input,
            self.running_mean if running else None,
            self.running_var if running else None,
            self.weight,
            self.bias,
            training,
            self.momentum if tracked or self.momentum is not None else 0.0,
            self.eps,
            axis=self.axis,
            mask=mask,
            process_group=self._sync_group() if training else None,
            num_batches_tracked=self.num_batches_tracked if tracked else None,
        )

    def _sync_group(self) -> ProcessGroup | None:
        return None

    def _check_input_dim(self, input: Tensor) -> None:
        checks.floating(type(self).__name__, input)
        if self.ranks is not None and input.dim() not in self.ranks:
            raise user_error(
                f"{type(self).__name__} got an input of shape {tuple(input.shape)}, with {input.dim()} axes.",
                expected=" or ".join(map(str, self.ranks)) + " axes",
            )

    def extra_repr(self) -> str:
        return super().extra_repr() + (f", axis={self.axis}" if self.axis != 1 else "")


class BatchNorm1d(BatchNormBase, nn.BatchNorm1d):
    r"""Normalise each feature over the batch (and the positions); scale and shift it.

        y = (x - mean) / sqrt(var + eps) * weight + bias

    where mean and (biased) variance are taken over everything but the channel: ``[n] c`` or ``[n] c [l]``.
    In training they come from the batch, and running averages follow them (with the unbiased variance):
    running = (1 - momentum) * running + momentum * batch. In evaluation the running averages are used.

    Shape: (batch, features) or (batch, features, length) -> the same. Statistics in fp32 or wider, output in
    x.dtype.

    Args:
        num_features: how many features.
        eps: added to the variance, inside the root.
        momentum: how fast the running averages follow; None for the plain average of all batches.
        affine: whether there are a weight (starts at 1) and a bias (starts at 0), one number a feature.
        track_running_stats: False for batch statistics in evaluation too.
        bias: False leaves the bias out.
        axis: where the features are; ``axis=-1`` for (batch, length, features).

    ``forward(x, mask)``: the mask is True where a value is real. Padding enters no statistic, gets no
    gradient, and comes out as 0. It has the input's shape without the feature axis, or broadcasts against it.

    Example:
        >>> tokens, real = torch.randn(2, 5, 8), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
        >>> BatchNorm1d(8, axis=-1)(tokens, mask=real).shape
        torch.Size([2, 5, 8])

    Reference: Ioffe & Szegedy 2015, arXiv:1502.03167.
    """

    ranks = (2, 3)


class BatchNorm2d(BatchNormBase, nn.BatchNorm2d):
    r"""Normalise each channel over batch, height and width: ``[n] c [h w]``.

    Shape: (batch, channels, height, width) -> the same. All else as in :class:`BatchNorm1d`.

    Example:
        >>> BatchNorm2d(3)(torch.randn(2, 3, 4, 4)).shape
        torch.Size([2, 3, 4, 4])
    """

    ranks = (4,)


class BatchNorm3d(BatchNormBase, nn.BatchNorm3d):
    r"""Normalise each channel over batch, depth, height and width: ``[n] c [d h w]``.

    Shape: (batch, channels, depth, height, width) -> the same. All else as in :class:`BatchNorm1d`.

    Example:
        >>> BatchNorm3d(3)(torch.randn(2, 3, 4, 4, 4)).shape
        torch.Size([2, 3, 4, 4, 4])
    """

    ranks = (5,)

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.modules import batchnorm

from normkit.norms.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d, BatchNormBase

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(BatchNormBase):
    r"""BatchNorm with the batch of all processes: ``[n] c [h w]``, where n runs over every process.

    Output, gradients and running statistics equal those of one process with the whole batch, on any device
    and backend (CPU with gloo, too), for unequal batches and masks. Without ``torch.distributed``, with one
    process, and in evaluation it is BatchNorm.

    It is not a subclass of ``torch.nn.SyncBatchNorm``: DistributedDataParallel refuses that one on a CPU.

    Shape: (batch, channels, ...) -> the same. Arguments as in :class:`BatchNorm1d`, and

    Args:
        process_group: the processes that share statistics; None for all of them.

    Example:
        >>> SyncBatchNorm(3)(torch.randn(4, 3, 5)).shape
        torch.Size([4, 3, 5])

    Reference: Ioffe & Szegedy 2015, arXiv:1502.03167.
    """

    process_group: ProcessGroup | None = None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: ProcessGroup | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        axis: int = 1,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias, axis=axis
        )
        self.process_group = process_group

    def _sync_group(self) -> ProcessGroup | None:
        distributed = torch.distributed
        if not (self.training and distributed.is_available() and distributed.is_initialized()):
            return None
        group = self.process_group or distributed.group.WORLD
        return group if distributed.get_world_size(group) > 1 else None

    @classmethod
    def convert_sync_batchnorm(
        cls, module: nn.Module, process_group: ProcessGroup | None = None
    ) -> nn.Module:
        """Turn every BatchNorm of a model, torch's or ours, into this one, in place, and return the model.

        The modules stay the same objects, with their parameters, buffers and hooks. A class derived from
        BatchNorm may compute something else: it is left as it is, with a warning.
        """
        for name, part in module.named_modules():
            if type(part) in _PLAIN:
                part.__class__ = cls
                part.process_group = process_group
            elif isinstance(part, batchnorm._BatchNorm) and not isinstance(part, cls):
                kind = f"{type(part).__module__}.{type(part).__qualname__}"
                warnings.warn(
                    f"{name or 'the model'} ({kind}) derives from BatchNorm: not synchronised.", stacklevel=2
                )
        return module


_PLAIN = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(BatchNorm1d, BatchNorm2d, BatchNorm3d, SyncBatchNorm),
)

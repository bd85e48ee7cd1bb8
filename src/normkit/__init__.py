"""normkit: the normalization toolkit for PyTorch.

Every norm is the same operation; they differ only in which numbers share one mean. ``Norm`` takes that as a
pattern, the named layers are drop-in for ``torch.nn``, ``functional`` holds them all as functions, and
``swap`` puts them into a model that exists.
"""

from normkit import functional, kernels
from normkit._version import __version__
from normkit.errors import NormkitError
from normkit.norms import (
    AdaNorm,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    DyT,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    Norm,
    PowerNorm,
    RMSNorm,
    ScaleNorm,
    SyncBatchNorm,
)
from normkit.pattern import describe
from normkit.swapping import swap

__all__ = [
    "AdaNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "DyT",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "Norm",
    "NormkitError",
    "PowerNorm",
    "RMSNorm",
    "ScaleNorm",
    "SyncBatchNorm",
    "__version__",
    "describe",
    "functional",
    "kernels",
    "swap",
]

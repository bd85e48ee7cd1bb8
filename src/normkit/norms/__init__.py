"""Every norm as a layer, one file each; those that torch.nn has carry its names and arguments."""

from normkit.norms.ada_norm import AdaNorm
from normkit.norms.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from normkit.norms.dyt import DyT
from normkit.norms.group_norm import GroupNorm
from normkit.norms.instance_norm import InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
from normkit.norms.layer_norm import LayerNorm
from normkit.norms.norm import Norm
from normkit.norms.power_norm import PowerNorm
from normkit.norms.rms_norm import RMSNorm
from normkit.norms.scale_norm import ScaleNorm
from normkit.norms.sync_batch_norm import SyncBatchNorm

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
    "PowerNorm",
    "RMSNorm",
    "ScaleNorm",
    "SyncBatchNorm",
]

"""Edits of the norms in trained models, each with a certificate."""

from normkit.surgery.add_qk_norm import add_qk_norm
from normkit.surgery.batch_norm import bn_to_sync, freeze_bn, recalibrate_bn, sync_to_bn
from normkit.surgery.center_to_rms import center_to_rms
from normkit.surgery.certificate import Certificate
from normkit.surgery.drop_bias import drop_bias
from normkit.surgery.equalise_gains import equalise_gains
from normkit.surgery.fold_affine import fold_affine
from normkit.surgery.fold_batchnorm import fold_batchnorm
from normkit.surgery.other_norms import bn_to_group, ln_to_rms, to_dyt

__all__ = [
    "Certificate",
    "add_qk_norm",
    "bn_to_group",
    "bn_to_sync",
    "center_to_rms",
    "drop_bias",
    "equalise_gains",
    "fold_affine",
    "fold_batchnorm",
    "freeze_bn",
    "ln_to_rms",
    "recalibrate_bn",
    "sync_to_bn",
    "to_dyt",
]

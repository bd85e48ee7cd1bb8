"""Edits of the norms in trained models, each with a certificate."""

from normkit.surgery.center_to_rms import center_to_rms
from normkit.surgery.certificate import Certificate
from normkit.surgery.drop_bias import drop_bias
from normkit.surgery.fold_affine import fold_affine
from normkit.surgery.fold_batchnorm import fold_batchnorm

__all__ = ["Certificate", "center_to_rms", "drop_bias", "fold_affine", "fold_batchnorm"]

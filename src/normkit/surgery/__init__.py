"""Edits of the norms in trained models, each with a certificate."""

from normkit.surgery.center_to_rms import center_to_rms
from normkit.surgery.certificate import Certificate
from normkit.surgery.fold_affine import fold_affine

__all__ = ["Certificate", "center_to_rms", "fold_affine"]

"""Edits of the norms in trained models, each with a certificate.

    certificate = normkit.surgery.fold_affine(model, batch)      # in place, all or nothing
    print(certificate); certificate.undo()

One file a surgery; the table of all is in table. Beneath them:

following   one run of the model, with the labels of all its numbers, into a flow; labels, books
moves       what functions do to labels; weighted: where they meet a matrix
readers     who reads a norm; writers, direct: who writes what it reads
changes     edits of tensors and modules, which can be undone; become: modules of a class derived from theirs
proving     the same edits on a copy with random norms, compared in float64, also on other batches (batches);
            certificate: what came of it
operating   plan, prove, change, compare
folder      a folder of Hugging Face's into another
"""

from normkit.surgery.add_qk_norm import add_qk_norm
from normkit.surgery.batch_norm import bn_to_sync, freeze_bn, recalibrate_bn, sync_to_bn
from normkit.surgery.center_to_rms import center_to_rms
from normkit.surgery.certificate import Certificate
from normkit.surgery.drop_bias import drop_bias
from normkit.surgery.equalise_gains import equalise_gains
from normkit.surgery.fold_affine import fold_affine
from normkit.surgery.fold_batchnorm import fold_batchnorm
from normkit.surgery.operating import progress
from normkit.surgery.other_norms import bn_to_group, ln_to_rms, to_dyt
from normkit.surgery.table import SURGERIES

__all__ = [
    "SURGERIES",
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
    "progress",
    "recalibrate_bn",
    "sync_to_bn",
    "to_dyt",
]

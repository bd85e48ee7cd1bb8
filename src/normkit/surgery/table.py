"""All surgeries by name, as the command line and the docs list them."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from normkit.errors import user_error
from normkit.surgery.add_qk_norm import add_qk_norm
from normkit.surgery.batch_norm import bn_to_sync, freeze_bn, recalibrate_bn, sync_to_bn
from normkit.surgery.center_to_rms import center_to_rms
from normkit.surgery.certificate import Certificate
from normkit.surgery.drop_bias import drop_bias
from normkit.surgery.equalise_gains import equalise_gains
from normkit.surgery.fold_affine import fold_affine
from normkit.surgery.fold_batchnorm import fold_batchnorm
from normkit.surgery.other_norms import bn_to_group, ln_to_rms, to_dyt

__all__ = ["SURGERIES", "Surgery", "surgery_of"]


@dataclass(frozen=True)
class Surgery:
    """``in_files``: the options with which the result can be loaded by the class that it was saved from; None
    if it cannot, because it has other modules."""

    operate: Callable[..., Certificate]
    what: str
    exact: bool = True
    in_files: dict[str, Any] | None = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.operate.__name__


_TABLE = (
    Surgery(fold_affine, "gains and biases of norms into what reads them", in_files={"new_biases": False}),
    Surgery(center_to_rms, "writers without a mean, LayerNorms become RMSNorms", in_files={"convert": False}),
    Surgery(fold_batchnorm, "BatchNorms into convolutions and linear layers", in_files=None),
    Surgery(drop_bias, "biases that norms take away again", in_files={"remove": False}),
    Surgery(equalise_gains, "the range of channels shared between norms and matrices"),
    Surgery(freeze_bn, "running statistics stop for good", in_files=None),
    Surgery(recalibrate_bn, "running statistics measured anew, on data", exact=False),
    Surgery(bn_to_sync, "BatchNorms share statistics over processes", in_files=None),
    Surgery(sync_to_bn, "and back", in_files=None),
    Surgery(bn_to_group, "BatchNorms become GroupNorms", exact=False, in_files=None),
    Surgery(ln_to_rms, "LayerNorms become RMSNorms, the mean is left in", exact=False, in_files=None),
    Surgery(to_dyt, "LayerNorms and RMSNorms become DyT", exact=False, in_files=None),
    Surgery(add_qk_norm, "norms on queries and keys", exact=False, in_files=None),
)
SURGERIES = {surgery.name: surgery for surgery in _TABLE}


def surgery_of(name: str) -> Surgery:
    """fold-affine and fold_affine are the same."""
    found = SURGERIES.get(name.replace("-", "_").lower())
    if found is None:
        close = difflib.get_close_matches(name.replace("-", "_"), SURGERIES, n=1)
        raise user_error(
            f"there is no surgery {name!r}.",
            expected=f"one of {', '.join(n.replace('_', '-') for n in SURGERIES)}",
            fix=f"normkit surgery {close[0].replace('_', '-')}" if close else None,
        )
    return found

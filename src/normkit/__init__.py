"""normkit: the normalization toolkit for PyTorch.

Every norm is the same operation; they differ only in which numbers share one mean. ``Norm`` takes that as a
pattern, the named layers are drop-in for ``torch.nn``, ``functional`` holds them all as functions, and
``swap`` puts them into a model that exists. ``Placement`` says where a norm stands, and ``Encoder``,
``LanguageModel`` and ``Seq2Seq`` are built on it. ``doctor`` examines a model, ``surgery`` edits one. ``lab``
trains and compares them all.
"""

import importlib
from typing import TYPE_CHECKING

from normkit._version import __version__

if TYPE_CHECKING:
    from normkit import functional, kernels, lab, surgery
    from normkit.doctor import Doctor, assert_healthy, doctor
    from normkit.errors import NormkitError
    from normkit.inspect import inspect, swap
    from normkit.kernels import backend, exact
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
    from normkit.placement import Placement, Residual
    from normkit.transformer import Encoder, LanguageModel, Seq2Seq

__all__ = [
    "AdaNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Doctor",
    "DyT",
    "Encoder",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LanguageModel",
    "LayerNorm",
    "Norm",
    "NormkitError",
    "Placement",
    "PowerNorm",
    "RMSNorm",
    "Residual",
    "ScaleNorm",
    "Seq2Seq",
    "SyncBatchNorm",
    "__version__",
    "assert_healthy",
    "backend",
    "describe",
    "doctor",
    "exact",
    "functional",
    "inspect",
    "kernels",
    "lab",
    "surgery",
    "swap",
]

# Where a name lives, unless it is a layer, in norms. It is looked up when it is first used: `normkit --help`
# need not wait for torch.
_HOMES = {
    "Doctor": "doctor",
    "Encoder": "transformer",
    "LanguageModel": "transformer",
    "NormkitError": "errors",
    "Placement": "placement",
    "Residual": "placement",
    "Seq2Seq": "transformer",
    "assert_healthy": "doctor",
    "backend": "kernels",
    "describe": "pattern",
    "exact": "kernels",
    "swap": "inspect",
}
_PARTS = (
    "callable_part",
    "checks",
    "doctor",
    "errors",
    "functional",
    "inspect",
    "kernels",
    "lab",
    "loading",
    "norms",
    "pattern",
    "placement",
    "surgery",
    "torch_semantics",
    "transformer",
)

if not TYPE_CHECKING:  # a type checker would take any name for an attribute

    def __getattr__(name):
        if name in _PARTS:
            return importlib.import_module(f"normkit.{name}")  # which makes it an attribute
        if name not in __all__:
            raise AttributeError(f"module 'normkit' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"normkit.{_HOMES.get(name, 'norms')}"), name)
        return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PARTS})

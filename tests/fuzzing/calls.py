"""One call of one norm, as data, and how it is made: as a function or as a layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

import normkit as nk
from fuzzing.oracle import Grouping
from normkit import functional

ADDS = ("add_layer_norm", "add_rms_norm")


@dataclass
class Case:
    name: str
    op: str
    how: Grouping
    x: Tensor
    inputs: dict[str, Any]  # every other tensor, by the name of its argument
    options: dict[str, Any]  # every other argument
    mode: str
    module: bool = False
    given: bool = False  # evaluation: running statistics instead of the input's
    refused: bool = False  # a single number a group
    samples: bool = True  # does every sample have statistics of its own?
    needs: tuple[str, ...] = ()  # what requires a gradient
    dy: tuple[Tensor, ...] = ()
    out: tuple[Tensor, ...] = ()
    positional: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [self.op, self.mode, *(["module"] if self.module else []), _describe(self.x)]
        parts += [f"{k}={_describe(v)}" for k, v in self.inputs.items() if v is not None]
        parts += [f"{k}={v!r}" for k, v in (*self.positional.items(), *self.options.items())]
        parts += [f"needs={'+'.join(self.needs)}"] if self.needs else []
        parts += [f"out={_describe(self.out[0])}"] if self.out else []
        return " ".join(parts)

    @property
    def out_dtype(self) -> torch.dtype:
        weight = self.inputs.get("weight")
        if self.options.get("multiply") == "after_cast" and weight is not None:
            return torch.promote_types(self.x.dtype, weight.dtype)
        return self.x.dtype

    @property
    def eps(self) -> float:
        eps = self.options["eps"]
        terms = [t.dtype for t in (self.x, self.inputs.get("residual")) if t is not None]
        return min(torch.finfo(d).eps for d in (torch.float32, *terms)) if eps is None else eps


def _describe(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    strides = "" if value.is_contiguous() else f" strides {value.stride()}"
    return f"{str(value.dtype).removeprefix('torch.')}{tuple(value.shape)}{strides}".replace(" ", "")


def has_module(case: Case) -> bool:
    has = {n: case.inputs.get(n) is not None for n in ("weight", "bias")}
    if (
        case.op in ADDS
        or (has["bias"] and not has["weight"])
        or (case.op == "normalize" and 0 in case.x.shape)
    ):
        return False
    if case.op == "batch_norm":
        return case.given or "running_mean" not in case.inputs or "num_batches_tracked" in case.inputs
    return not (case.op == "instance_norm" and case.options["momentum"] is None)


def call(case: Case, x: Tensor, inputs: dict[str, Any], out: Any = None) -> Any:
    """Call the function, or a layer with these tensors in place of its own."""
    if case.module:
        layer, names = _layer(case)
        state = {n: inputs[n] for n in names if inputs.get(n) is not None}
        mask = {} if inputs.get("mask") is None else {"mask": inputs["mask"]}
        return functional_call(layer, state, (x,), mask)
    arguments = {**case.positional, **inputs, **case.options} | ({} if out is None else {"out": out})
    first = (x, arguments.pop("residual")) if case.op in ADDS else (x,)
    if case.op in ("batch_norm", "instance_norm"):
        arguments = {"running_mean": None, "running_var": None} | arguments
    return getattr(functional, case.op)(*first, **arguments)


def _layer(case: Case) -> tuple[torch.nn.Module, list[str]]:
    options, has_bias = dict(case.options), case.inputs.get("bias") is not None
    affine = case.inputs.get("weight") is not None
    eps, ndim = options.pop("eps"), case.x.ndim
    tracks = case.inputs.get("running_mean") is not None
    names = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    if case.op in ("layer_norm", "rms_norm"):
        shape = case.positional["normalized_shape"]
        if case.op == "rms_norm":
            return nk.RMSNorm(shape, eps, affine, **options), names
        return nk.LayerNorm(shape, eps, affine, has_bias, **options), names
    if case.op == "normalize":
        sizes = dict(zip(_names(case.positional["pattern"]), case.how.shape, strict=True))
        named = options.pop("affine")
        known = {n: s for n, s in sizes.items() if n in options or n in (named or "").split()}
        options = {k: v for k, v in options.items() if k not in sizes}
        options |= {"affine": named if affine else False, "bias": has_bias if affine else None}
        return nk.Norm(case.positional["pattern"], eps, **options, **known), names
    axis = options["axis"]
    channels = case.x.shape[axis]
    if case.op == "group_norm":
        groups = case.positional["num_groups"]
        return nk.GroupNorm(groups, channels, eps, affine, bias=has_bias, axis=axis), names
    kind = {2: 1, 3: 1, 4: 2, 5: 3}[ndim]
    made = getattr(nk, f"{'Batch' if case.op == 'batch_norm' else 'Instance'}Norm{kind}d")
    layer = made(channels, eps, options["momentum"], affine, tracks, bias=has_bias, axis=axis)
    return layer.train(not case.given), names


def _names(pattern: str) -> list[str]:
    return "".join(" " if c in "[]()" else c for c in pattern).split()

"""A case is one call of one norm, drawn from (seed, index) alone: the same pair gives the same case."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fuzzing.calls import ADDS, Case, has_module
from fuzzing.oracle import Grouping
from fuzzing.tensors import DTYPE_SHARES, DTYPES, Rng, chance, lay, normal, numbers, pick, sizes

OPS = {  # and how often
    "layer_norm": 0.2,
    "rms_norm": 0.15,
    "add_layer_norm": 0.07,
    "add_rms_norm": 0.08,
    "group_norm": 0.12,
    "instance_norm": 0.1,
    "batch_norm": 0.13,
    "normalize": 0.15,
}
MODES = {"plain": 0.3, "out": 0.15, "in place": 0.07, "grad": 0.35, "double": 0.11, "meta": 0.02}


def draw(seed: int, index: int) -> Case:
    rng = np.random.default_rng([seed, index])
    op = pick(rng, list(OPS), list(OPS.values()))
    mode = pick(rng, list(MODES), list(MODES.values()))
    case = _norm(rng, op, mode)
    case.name = f"{seed}:{index}"
    _finish(rng, case)
    return case


def _norm(rng: Rng, op: str, mode: str) -> Case:
    """The shape, what shares a mean, the numbers and the parameters."""
    dtype = pick(rng, DTYPES, DTYPE_SHARES)
    rows = op in ("layer_norm", "rms_norm", *ADDS)
    ndim = int(rng.integers(1, 6) if rows or op == "normalize" else rng.integers(2, 6))
    if op == "instance_norm":
        ndim = max(ndim, 3)
    shape = sizes(rng, ndim)
    center = "rms" not in op
    tame = mode == "double"
    options: dict[str, Any] = {"eps": pick(rng, [1e-5, 1e-5, 1e-6, 1e-2, 1e-5 if tame else 0.0])}
    positional: dict[str, Any] = {}
    samples, given, refused = True, False, False
    if rows:
        last = ndim - 1 if chance(rng, 0.75) else int(rng.integers(ndim))
        first = last if chance(rng, 0.7) else int(rng.integers(last + 1))
        shared = tuple(range(first, last + 1))
        how = Grouping(tuple(shape), shared, shared, center)
        parameter_shape = shape[first : last + 1]
        positional["normalized_shape"] = tuple(parameter_shape)
        options["axis"] = -1 if last == ndim - 1 else int(pick(rng, [last, last - ndim]))
        samples = first > 0
        if not center:
            options["eps"] = None if chance(rng, 0.4) else options["eps"]
            options["zero_centered_weight"] = chance(rng, 0.3)
            options["multiply"] = pick(rng, ["before_cast", "after_cast"], [0.7, 0.3])
    elif op == "normalize":
        how, text, known, names, parameter_shape = _pattern(rng, shape)
        center = chance(rng, 0.7)
        how = replace(how, center=center)
        positional["pattern"] = text
        options |= {"center": center, "affine": " ".join(names) or None, **known}
        first_axis = text.split()[0]
        samples = first_axis.isidentifier() and first_axis not in known
    else:
        axis = 1 if chance(rng, 0.7) else int(rng.integers(1, ndim))
        options["axis"] = axis if chance(rng, 0.7) else axis - ndim
        rest = tuple(a for a in range(1, ndim) if a != axis)
        channels, parameter_shape = shape[axis], [shape[axis]]
        if op == "group_norm":
            num_groups = int(pick(rng, [g for g in range(1, channels + 1) if channels % g == 0] or [1]))
            positional["num_groups"] = num_groups
            split = (*shape[:axis], num_groups, channels // num_groups, *shape[axis + 1 :])
            shared = tuple(a for a in range(1, ndim + 1) if a != axis)
            how = Grouping(split, shared, (axis, axis + 1))
            refused = math.prod(shape) // num_groups == 1
        else:
            given = chance(rng, 0.3)
            batch = op == "batch_norm"
            samples = not batch or given
            shared = (0, *rest) if batch or given else rest
            how = Grouping(tuple(shape), shared, (axis,))
            options["training" if batch else "use_input_stats"] = not given
            options["momentum"] = float(pick(rng, [0.1, 0.1, 1.0, 0.0]))
            refused = not given and math.prod(shape[a] for a in shared) == 1
            refused = refused or (batch and not given and options["eps"] == 0)
    x = numbers(rng, how, dtype, tame=tame).reshape(shape)
    inputs = _parameters(rng, parameter_shape, dtype, op)
    case = Case("", op, how, x, inputs, options, mode, given=given, refused=refused, samples=samples)
    case.positional = positional
    if op in ("batch_norm", "instance_norm") and (given or chance(rng, 0.6)):
        _running(rng, case)
    if op not in ("layer_norm", "rms_norm", *ADDS) and chance(rng, 0.4):
        inputs["mask"] = _mask(rng, case)
    if op in ADDS:
        wide = dtype if chance(rng, 0.6) else pick(rng, DTYPES)
        inputs["residual"] = lay(rng, normal(rng, shape, wide) * float(pick(rng, [1.0, 1e3])))
    return case


def _pattern(rng: Rng, shape: list[int]) -> tuple[Grouping, str, dict[str, int], list[str], list[int]]:
    """Names for all axes, some of them split, brackets around some names, and the names of the parameters."""
    names = iter("abcdefghijklmnop")
    words, split, known = [], [], {}
    own: list[list[str]] = []
    for size in shape:
        divisors = [d for d in range(2, size) if size % d == 0]
        if divisors and chance(rng, 0.3):
            first = int(pick(rng, divisors))
            factors = [first, size // first]
            own.append([next(names), next(names)])
            at = int(rng.integers(2))
            known[own[-1][at]] = factors[at]
        else:
            factors = [size]
            own.append([next(names)])
        split += factors
    flat = [n for axis in own for n in axis]
    shared = [a for a in range(len(flat)) if chance(rng, 0.45)] or [int(rng.integers(len(flat)))]
    along = [a for a in range(len(flat)) if chance(rng, 0.4)]
    for axis in own:
        marked = [f"[{n}]" if flat.index(n) in shared else n for n in axis]
        words.append(marked[0] if len(axis) == 1 else f"({' '.join(marked)})")
    how = Grouping(tuple(split), tuple(shared), tuple(along))
    named = [flat[a] for a in along]
    of_axes = [[split[flat.index(n)] for n in axis if n in named] for axis in own]
    return how, " ".join(words), known, named, [math.prod(f) for f in of_axes if f]


def _parameters(rng: Rng, shape: list[int], dtype: torch.dtype, op: str) -> dict[str, Any]:
    own = dtype if chance(rng, 0.7) else pick(rng, DTYPES)
    inputs: dict[str, Any] = {}
    for name in ("weight", "bias"):
        if (name == "bias" and "rms" in op) or not shape or chance(rng, 0.25):
            continue
        parameter = normal(rng, shape, own)
        kind = "contiguous" if chance(rng, 0.85) else pick(rng, ["step", "offset", "expanded"])
        inputs[name] = lay(rng, parameter, kind)
    return inputs


def _running(rng: Rng, case: Case) -> None:
    (channels,) = (case.how.shape[a] for a in case.how.along)
    own = torch.float32 if chance(rng, 0.7) else pick(rng, [case.x.dtype, torch.float64])
    near = 10.0 ** rng.uniform(-1, 2 if case.x.dtype == torch.float16 else 6)
    case.inputs["running_mean"] = (normal(rng, (channels,), torch.float64) * near).to(own)
    case.inputs["running_var"] = torch.from_numpy(rng.uniform(0.1, 4, channels) * min(near, 100)).to(own)
    if case.op == "batch_norm" and not case.given and chance(rng, 0.5):
        case.inputs["num_batches_tracked"] = torch.tensor(int(rng.integers(3)))
        case.options["momentum"] = None if chance(rng, 0.6) else case.options["momentum"]


def _mask(rng: Rng, case: Case) -> Tensor:
    """Of any shape that fits; it may be all padding, or leave one number."""
    shape = list(case.x.shape)
    full = list(shape)
    axis = case.options["axis"] % len(shape) if "axis" in case.options else None
    for a in range(len(shape)):
        if chance(rng, 0.25) or (a == axis and chance(rng, 0.6)):
            full[a] = 1
    kind = rng.random()
    mask = torch.from_numpy(rng.random(full) < pick(rng, [0.5, 0.8]))
    if kind < 0.08:
        mask[:] = False
    elif kind < 0.14:
        mask[:] = False
        if mask.numel():
            mask.view(-1)[int(rng.integers(mask.numel()))] = True
    elif kind < 0.2:
        mask[:] = True
    elif kind < 0.3 and mask.numel():
        mask[0] = False
    if axis is not None and full[axis] == 1 and chance(rng, 0.4):
        return mask.squeeze(axis)
    return lay(rng, mask, pick(rng, ["contiguous", "permuted"]))


def _finish(rng: Rng, case: Case) -> None:
    """How it lies in memory, what it returns into, what is differentiated."""
    case.x = lay(rng, case.x)
    if case.options.get("multiply") == "after_cast" and case.out_dtype != case.x.dtype and "out" in case.mode:
        case.mode = "plain"
    if case.mode == "in place" and (_repeats(case.x) or case.out_dtype != case.x.dtype):
        case.mode = "plain"
    case.module = case.mode not in ("out", "in place") and chance(rng, 0.35) and has_module(case)
    differentiable = [n for n in ("x", "residual", "weight", "bias") if n == "x" or n in case.inputs]
    if case.mode == "meta" and not any(n in case.inputs for n in ("weight", "bias")):
        case.mode = "plain"
    if case.mode in ("grad", "double"):
        chosen = [n for n in differentiable if case.mode == "double" or chance(rng, 0.75)]
        case.needs = tuple(chosen or [pick(rng, differentiable)])
    dtypes = [case.out_dtype]
    if case.op in ADDS:
        dtypes.append(torch.promote_types(case.x.dtype, case.inputs["residual"].dtype))
    if case.mode in ("grad", "double"):
        case.dy = tuple(
            lay(rng, normal(rng, case.x.shape, d), None if chance(rng, 0.3) else "contiguous") for d in dtypes
        )
    elif case.mode == "in place":
        case.out = (case.x, *(torch.full(case.x.shape, math.nan, dtype=d) for d in dtypes[1:]))
    elif case.mode == "out":
        case.out = tuple(_out(rng, case.x, d) for d in dtypes)


def _out(rng: Rng, x: Tensor, dtype: torch.dtype) -> Tensor:
    if chance(rng, 0.4):
        return torch.empty_like(x, dtype=dtype).fill_(math.nan)
    out = lay(rng, torch.full(x.shape, math.nan, dtype=dtype))
    return torch.full(x.shape, math.nan, dtype=dtype) if _repeats(out) else out


def _repeats(x: Tensor) -> bool:
    return any(n > 1 and s == 0 for n, s in zip(x.shape, x.stride(), strict=True))

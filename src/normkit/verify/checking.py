"""What is asked of a case: the right numbers, the same bits, no more memory than it needs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from normkit import kernels
from normkit.errors import NormkitError
from normkit.verify.cases import Case, Inputs, inputs
from normkit.verify.memory import extra_memory
from normkit.verify.norms import NORMS, Norm, backend_of
from normkit.verify.truth import compute, error, true_results

__all__ = ["EXACT", "Result", "check_case", "check_memory"]

EXACT = 1e-5  # the promise
OWN = ("cpu", "triton")  # kernels of ours, which promise bits and memory, too
OURS, TORCHS, NOT_HELD = "ours", "torch's", "not promised"
# Beside the outputs and their statistics: nothing for rows; of groups, partial sums.
MEMORY = {True: 1.01, False: 1.1}
SLACK = 16 << 10  # bytes: an allocator's blocks, and running statistics


@dataclass(frozen=True)
class Result:
    """One check of one case."""

    check: str
    norm: str
    case: str
    dtype: str
    backend: str
    value: float | None  # the error, or the memory over what is needed; None where it is no number
    bound: float | None
    whose: str  # bound
    status: str  # passed, failed, skipped
    note: str = ""


def check_case(case: Case, device: torch.device) -> Iterator[Result]:
    """Every check that the case is made for. What fails with an error has failed."""
    norm, given = NORMS[case.norm], inputs(case)
    base = Result("accuracy", case.norm, case.what, case.dtype, "", None, None, OURS, "passed")
    try:
        backend = _backend(norm, given, device)
    except NormkitError as reason:  # one was asked for by name, and does not take it
        yield replace(base, status="skipped", note=str(reason).splitlines()[0])
        return
    base = replace(base, backend=backend)
    try:
        got = compute(norm.run, given, device, grads=True)
        yield from _compare(case, norm, given, got, device, base)
        if not case.hard and not case.mask:
            yield _repeat(norm, given, got, device, base)
        if not case.hard and not case.mask and case.norm != "batch, train":
            yield _batch(norm, given, got, device, base)
    except Exception as wrong:  # a compiler, a driver: the user sends us what it was
        said = " ".join(str(wrong).split())[:300]
        yield replace(base, check="runs", status="failed", note=f"{type(wrong).__name__}: {said}")


def check_memory(name: str, dtype: str, device: torch.device) -> Result:
    """The most memory that a forward takes, over its outputs and what its backward needs."""
    norm = NORMS[name]
    case = Case(name, (2048, 1024) if norm.rows else (8, 48, 64, 64), dtype)
    given = inputs(case)
    base = Result("memory", name, case.what, dtype, "", None, None, OURS, "passed")
    try:
        base = replace(base, backend=_backend(norm, given, device))
        peak, outputs = extra_memory(norm.run, given, device)
    except NormkitError as reason:
        return replace(base, status="skipped", note=str(reason).splitlines()[0])
    if peak is None:
        return replace(base, status="skipped", note=f"not measured: nobody counts on {device.type}")
    shape = case.shape
    shared = shape[0] if norm.rows else shape[0] * shape[1]
    needed = outputs + 2 * 4 * shared + SLACK
    value = round(peak / needed, 4)
    if base.backend not in OWN:
        return replace(base, value=value, whose=NOT_HELD)
    bound = MEMORY[norm.rows]
    return replace(base, value=value, bound=bound, status="passed" if value <= bound else "failed")


def _backend(norm: Norm, given: Inputs, device: torch.device) -> str:
    weight, bias, other, mask = (
        None if t is None else t.to(device) for t in (given.weight, given.bias, given.other, given.mask)
    )
    return backend_of(norm, given.x.to(device), weight, bias, other, mask)


def _compare(
    case: Case, norm: Norm, given: Inputs, got: dict[str, Tensor], device: torch.device, base: Result
) -> Iterator[Result]:
    """Outputs and gradients beside float64; where torch computes, beside torch's own error."""
    true = true_results(norm, given, grads=True)
    torchs: dict[str, Tensor] = {}
    as_torch = kernels.BACKENDS[base.backend].promise != "exact"
    if as_torch and norm.torchs is not None:
        torchs = compute(norm.torchs, given, device, grads=True)
    for whole in (False, True):
        names = [name for name in true if name.startswith("gradient") == whole]
        check = "hard inputs" if case.hard else "gradients" if whole else "accuracy"
        errors = {name: error(got[name], true[name], norm.roundings, whole) for name in names}
        worst = max(errors, key=lambda name: errors[name])
        bound = _bound(norm, case, whole)
        if torchs:
            bound = max(
                bound, *(2 * error(torchs[name], true[name], norm.roundings, whole) for name in names)
            )
        passed = errors[worst] <= bound
        yield replace(
            base,
            check=check,
            value=errors[worst] if math.isfinite(errors[worst]) else None,
            bound=bound if math.isfinite(bound) else None,
            whose=TORCHS if torchs else OURS,
            status="passed" if passed else "failed",
            note="" if passed else f"{worst} is the worst",
        )


def _bound(norm: Norm, case: Case, gradients: bool) -> float:
    """after_cast rounds inside: its gradients in a narrow dtype are those of the rounded numbers."""
    narrow = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(case.dtype)
    if gradients and norm.roundings > 1 and narrow is not None:
        return 4 * torch.finfo(narrow).eps
    return EXACT


def _repeat(
    norm: Norm, given: Inputs, first: dict[str, Tensor], device: torch.device, base: Result
) -> Result:
    """The same call again has the same bits."""
    second = compute(norm.run, given, device, grads=True)
    other = [name for name in first if not _same(first[name], second[name])]
    return _bits(replace(base, check="same bits twice"), other, len(first))


def _batch(norm: Norm, given: Inputs, whole: dict[str, Tensor], device: torch.device, base: Result) -> Result:
    """A row or a sample alone, and in a pair, has the bits that it has in the batch."""
    other = []
    size = given.x.shape[0]
    for part in (slice(0, 1), slice(size - 1, size), slice(size - 2, size)):
        few = replace(
            given,
            x=given.x[part],
            other=None if given.other is None else given.other[part],
            grads=tuple(g[part] for g in given.grads),
        )
        got = compute(norm.run, few, device, grads=True)
        names = ["y", "gradient of x", *(["output 2", "gradient of residual"] if norm.adds else [])]
        other += [f"{name}[{part.start}:]" for name in names if not _same(got[name], whole[name][part])]
    return _bits(replace(base, check="same in any batch"), other, 4)


def _bits(base: Result, other: list[str], count: int) -> Result:
    if base.backend not in OWN:
        return replace(base, value=float(len(other)), whose=NOT_HELD)
    note = f"other bits: {', '.join(other)}" if other else ""
    status = "failed" if other else "passed"
    return replace(base, value=float(len(other)), bound=0.0, status=status, note=note)


def _same(a: Tensor, b: Tensor) -> bool:
    """NaN is NaN; 0 and -0 differ in no result that anyone sees."""
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())

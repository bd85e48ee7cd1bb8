"""Everything that is promised about a call: its numbers, and what it may and may not touch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from fuzzing.bounds import Truth
from fuzzing.calls import ADDS, Case, call
from fuzzing.second import judge_second
from fuzzing.verdict import Verdict, same_bits
from normkit import NormkitError, kernels


def judge(case: Case) -> Verdict:
    """Call the norm and hold every promise against it."""
    verdict = Verdict(case)
    try:
        _judge(case, verdict)
    except NormkitError as error:
        if not case.refused:
            verdict.fail("refused", str(error).split("\n")[0])
    except Exception as error:
        verdict.fail("raised", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    return verdict


def _judge(case: Case, verdict: Verdict) -> None:
    if case.mode == "meta":
        _judge_meta(case, verdict)
        return
    truth = Truth(case)
    given = {n: t for n, t in (("x", case.x), *case.inputs.items()) if isinstance(t, Tensor)}
    copies = {n: t.detach().clone() for n, t in given.items()}
    x, inputs = _leaves(case)
    out: Any = (case.out if case.op in ADDS else case.out[0]) if case.out else None
    versions = [t._version for t in case.out]
    with torch.set_grad_enabled(bool(case.needs)):
        result = call(case, x, inputs, out)
    if case.refused:
        verdict.fail("refused", "a single number a group was taken")
        return
    results = result if isinstance(result, tuple) else (result,)
    truth.judge_output(verdict, results)
    for into, value, version in zip(case.out, results, versions, strict=False):
        if value is not into:
            verdict.fail("out", "another tensor than out was returned")
        if into._version <= version and into.numel():
            verdict.fail("out", "the version counter was not counted up")
    if not case.out and not _laid_out_as_promised(case.x, results[0]):
        verdict.fail("layout", f"output with strides {results[0].stride()}")
    changed = {"running_mean", "running_var", "num_batches_tracked"} if not case.given else set()
    changed |= {"x"} if case.mode == "in place" else set()
    for name, tensor in given.items():
        if name not in changed and not same_bits(tensor.detach(), copies[name]):
            verdict.fail("inputs", f"{name} was changed")
    if not case.given:
        truth.judge_running(verdict, inputs)
    grads: list[Tensor | None] = []
    if case.mode == "grad":
        leaves = {"x": x, **inputs}
        outputs = [(y, dy) for y, dy in zip(results, case.dy, strict=True) if y.requires_grad]
        wanted = [leaves[n] for n in case.needs]
        grads = list(torch.autograd.grad([y for y, _ in outputs], wanted, [dy for _, dy in outputs]))
        truth.judge_gradients(verdict, dict(zip(case.needs, grads, strict=True)))
    elif case.mode == "double":
        judge_second(case, verdict, truth, x, inputs, results)
    if case.samples and not case.given and case.mode in ("plain", "grad", "out"):
        dx = grads[case.needs.index("x")] if grads and "x" in case.needs else None
        _judge_alone(case, verdict, results[0], dx)


def _leaves(case: Case) -> tuple[Tensor, dict[str, Any]]:
    """The tensors that are differentiated; leaves lie in memory as the tensors of the case do."""

    def leaf(name: str, tensor: Any) -> Any:
        return tensor.detach().requires_grad_() if name in case.needs else tensor

    return leaf("x", case.x), {n: leaf(n, t) for n, t in case.inputs.items()}


def _laid_out_as_promised(x: Tensor, y: Tensor) -> bool:
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.ndim)
    return y.is_contiguous() or (last is not None and y.is_contiguous(memory_format=last))


def _judge_meta(case: Case, verdict: Verdict) -> None:
    name = "weight" if "weight" in case.inputs else "bias"
    inputs = {**case.inputs, name: case.inputs[name].to("meta")}
    try:
        call(case, case.x, inputs)
    except (RuntimeError, NormkitError):
        return
    verdict.fail("meta", f"a {name} without memory was taken")


@contextmanager
def _backends() -> Iterator[list[str]]:
    """The backends that calls are admitted to meanwhile; none for those that take the fast path."""
    seen: list[str] = []

    def admit(*call: Any) -> Any:
        found = real(*call)
        seen.append(found.backend)
        return found

    real = kernels.admit
    with mock.patch.object(kernels, "admit", admit):
        yield seen


def _judge_alone(case: Case, verdict: Verdict, y: Tensor, dx: Tensor | None) -> None:
    """A sample has the same bits alone, if it lies in memory as it does in the batch."""
    batch = case.x.shape[0]
    if batch < 2 or not case.x.numel() or case.x.stride(0) < max(case.x.stride()):
        return
    for sample in {0, batch - 1}:
        own = slice(sample, sample + 1)
        inputs = {n: t for n, t in case.inputs.items() if not n.startswith(("running", "num_"))}
        mask = inputs.get("mask")
        if mask is not None and mask.shape[0] == batch and mask.ndim >= case.x.ndim - 1:
            inputs["mask"] = mask[own]
        if "residual" in inputs:
            inputs["residual"] = inputs["residual"][own]
        x = case.x[own].detach().requires_grad_(dx is not None)
        try:
            with _backends() as seen:
                alone = call(case, x, inputs)
        except NormkitError:  # a single number, now
            return
        if "reference" in seen:  # there torch adds up, in an order that depends on the shape
            return
        alone = alone[0] if isinstance(alone, tuple) else alone
        if not same_bits(alone.detach()[0], y.detach()[sample]):
            error = (alone.detach()[0].double() - y.detach()[sample].double()).abs().nan_to_num().max().item()
            verdict.fail("alone", f"sample {sample} has other bits in its batch, by up to {error:.3g}")
            return
        if dx is not None and len(case.dy) == 1:
            (dx_alone,) = torch.autograd.grad(alone, x, case.dy[0][own])
            if not same_bits(dx_alone[0], dx[sample]):
                error = (dx_alone[0].double() - dx[sample].double()).abs().nan_to_num().max().item()
                verdict.fail(
                    "alone", f"dx of sample {sample} has other bits in its batch, by up to {error:.3g}"
                )
                return

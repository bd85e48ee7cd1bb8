"""How far a result may be from the truth.

Every bound is a number of the table below times a size that follows from the formula:

    y      gain * (EXACT * share + ROUND * |x_hat|) + ROUND * (|gain * x_hat| + |bias|)
           share = sqrt(var / (var + eps)) is the spread of x_hat: an error is measured in it
    dx     EXACT * (|g| + (1 + |x_hat|) * rms(g)) / std: what x_hat and std that are off by EXACT do to it
    dgain  EXACT * sum(|dy| * (share + |x_hat|)), dbias: EXACT * sum(|dy|)
    second EXACT * the largest |g|, |v| and (1 + |x_hat|)³ of a group / std², and so on

and half a step of the result's own dtype, for the one rounding. Where std is small, dx is large, and so is
its bound: no further allowance is made for eps = 0. Equal numbers with eps = 0 are 0 / 0, and not judged.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fuzzing import oracle
from fuzzing.calls import ADDS, Case
from fuzzing.oracle import Array, exact
from fuzzing.verdict import Verdict, same_bits

# The promise for a spread of 1: of float32 at any mean; float64 is computed in itself, with a mean of its own
# precision.
EXACT = {torch.float32: 1e-5, torch.float64: 1e-12}
LARGEST = 1e-10  # of float64 near its end
# A few roundings of the dtype that is computed in, of numbers that are not small. float32 has some of them in
# float64: the mean, 1 / std, their products with the parameters.
ROUND = {torch.float32: 4 * torch.finfo(torch.float32).eps, torch.float64: 8 * torch.finfo(torch.float64).eps}


class Truth:
    """What the oracle says about a case, and the bounds of the promise."""

    def __init__(self, case: Case) -> None:
        self.case, self.how = case, case.how
        x, inputs = case.x.detach(), case.inputs
        self.total = x + inputs["residual"].detach() if case.op in ADDS else x
        self.wide = torch.float64 if self.total.dtype == torch.float64 else torch.float32
        self.exact, self.round = EXACT[self.wide], ROUND[self.wide]
        mask = inputs.get("mask")
        if mask is not None and mask.ndim < x.ndim:
            mask = mask.unsqueeze(case.options["axis"] % x.ndim)
        self.mask = mask
        self.gain = self._gain()
        self.old = {n: exact(inputs.get(n)) for n in ("running_mean", "running_var")}
        counter = inputs.get("num_batches_tracked")
        self.batches = None if counter is None else int(counter)
        self.given = (self.old["running_mean"], self.old["running_var"]) if case.given else None
        self.found = oracle.forward(
            exact(self.total),
            self.how,
            case.eps,
            self.gain,
            exact(inputs.get("bias")),
            None if mask is None else mask.numpy(),
            self.given,
        )
        if self.wide == torch.float64:  # no wider dtype holds what rounding leaves of a mean
            with np.errstate(all="ignore"):
                far = np.abs(self.found.mean) / np.sqrt(self.found.var)
            far = np.where(np.isfinite(far), far, 0)
            self.exact += float(4 * self.round * far.max(initial=0))
            if np.abs(np.nan_to_num(exact(self.total))).max(initial=0) > 1e290:
                self.exact += LARGEST  # scaled, and added up one number after the other
        # 0 / 0 is nothing to be judged by; a group with NaN or inf has no derivative.
        self.defined = np.broadcast_to(~(self.found.std == 0), self.found.y.shape)
        bad = ~np.isfinite(np.where(self.found.real, self.how.gather(exact(self.total)), 0)).all(
            1, keepdims=True
        )
        self.sound = self.defined & (~bad | (self.given is not None)) & ~self._is_lost()
        # after_cast rounds x_hat to the input's dtype, and its gradient, too
        self.step = torch.finfo(x.dtype).eps if case.options.get("multiply") == "after_cast" else 0.0

    def _is_lost(self) -> Array:
        """Equal numbers so large that eps is nothing beside one step of theirs: there is no dx to see."""
        rows = np.abs(np.where(self.found.real, self.how.gather(exact(self.total)), 0))
        step = float(torch.finfo(self.wide).eps) * rows.max(1, keepdims=True, initial=0)
        with np.errstate(all="ignore"):
            return np.broadcast_to(self.found.std < 1e-10 * step, self.found.y.shape)

    def _gain(self) -> Array | None:
        weight = self.case.inputs.get("weight")
        if weight is None or not self.case.options.get("zero_centered_weight"):
            return exact(weight)
        if self.case.options["multiply"] == "after_cast":
            return exact(1 + weight.detach())  # in the weight's own dtype, by definition
        return 1 + exact(weight)

    def back(self, rows: Array) -> Array:
        return self.how.scatter(rows).reshape(self.case.x.shape)

    def judge_output(self, verdict: Verdict, results: tuple[Tensor, ...]) -> None:
        f, y = self.found, results[0].detach()
        with np.errstate(all="ignore"):
            bound = np.abs(f.gain) * (
                self.exact * np.where(self.given is None, f.share, 0) + self.round * np.abs(f.x_hat)
            )
            bound = bound + self.round * (np.abs(f.gain * f.x_hat) + np.abs(f.bias)) * f.real
            bound = bound + self.step * np.abs(f.gain * f.x_hat)
            if self.given is not None and self.case.inputs["running_mean"].dtype == torch.float64:
                mean = np.abs(f.mean)  # it is rounded to the dtype that is computed in
                bound = bound + torch.finfo(self.wide).eps * mean / f.std * np.abs(f.gain)
            # with given statistics the distance from the mean, or x_hat, may overflow
            held = self.defined & ~(np.abs(f.x_hat) * np.maximum(f.std, 1) > torch.finfo(self.wide).max)
        verdict.compare("y", y, self.back(f.y), self.back(bound), self.case.out_dtype, self.back(held))
        if self.mask is not None and y[~self.mask.expand(y.shape)].count_nonzero():
            verdict.fail("padding", "y is not 0 there")
        if self.case.op in ADDS and not same_bits(results[1].detach(), self.total):
            verdict.fail("sum", "x + residual has other bits")

    def judge_gradients(self, verdict: Verdict, grads: dict[str, Tensor | None]) -> None:
        case, f, how = self.case, self.found, self.how
        back = oracle.backward(f, how, exact(case.dy[0]), given=self.given is not None)
        with np.errstate(all="ignore"):
            size = np.abs(back.g) + (0 if self.given is not None else (1 + np.abs(f.x_hat)) * back.size)
            bound = (self.exact + self.step) * size / f.std * f.real
        dx, bound_x = self.back(back.dx), self.back(np.broadcast_to(bound, back.dx.shape))
        if case.op in ADDS:
            dtotal = exact(case.dy[1])
            dx = dx + dtotal
            # both terms are rounded to the dtype of the sum before they are added
            half = torch.finfo(self.total.dtype).eps / 2
            bound_x = bound_x + half * (np.abs(dx - dtotal) + np.abs(dx))
        with np.errstate(all="ignore"):
            error = np.abs(back.dy) * (
                self.exact * (f.share * f.real + np.abs(f.x_hat)) + self.step * np.abs(f.x_hat)
            )
        for name, grad in grads.items():
            if grad is None:
                verdict.fail(f"d{name}", "there is none")
            elif name in ("x", "residual"):
                leaf = case.x if name == "x" else case.inputs[name]
                verdict.compare("dx", grad, dx, bound_x, leaf.dtype, self.back(self.sound))
                if self.mask is not None and grad[~self.mask.expand(grad.shape)].count_nonzero():
                    verdict.fail("padding", "dx is not 0 there")
            else:
                parameter = case.inputs[name]
                shape = tuple(parameter.shape)
                rows, off = (
                    (back.dy * f.x_hat, error)
                    if name == "weight"
                    else (back.dy, self.exact * np.abs(back.dy))
                )
                with np.errstate(all="ignore"):
                    truth, bound = (how.sum_along(np.broadcast_to(r, f.y.shape), shape) for r in (rows, off))
                    # a sum whose parts overflow may be anything
                    size = (
                        np.abs(rows) * np.maximum(f.std, 1) + np.abs(f.x_hat)
                        if name == "weight"
                        else np.abs(rows)
                    )
                    parts = how.sum_along(np.broadcast_to(size, f.y.shape), shape)
                    judged = ~(parts > torch.finfo(self.wide).max)
                if name == "weight":
                    judged &= how.sum_along(~self.defined, shape) == 0
                verdict.compare(f"d{name}", grad, truth, bound, parameter.dtype, judged)

    def judge_running(self, verdict: Verdict, inputs: dict[str, Any]) -> None:
        case, f = self.case, self.found
        if self.old["running_mean"] is None:
            return
        counted = self.mask is None or bool((f.n > 0).any())
        batches = None if self.batches is None else self.batches + counted
        if batches is not None and int(inputs["num_batches_tracked"]) != batches:
            verdict.fail(
                "running", f"counted {int(inputs['num_batches_tracked'])} batches, expected {batches}"
            )
        momentum = case.options["momentum"]
        momentum = np.longdouble(1) / max(batches or 1, 1) if momentum is None else np.longdouble(momentum)
        channels = case.x.shape[case.options["axis"]]
        with np.errstate(all="ignore"):
            n = f.n.reshape(len(f.n) // channels if channels else 0, channels)
            mean, var = (v.reshape(n.shape) for v in (f.mean, f.var * f.n / np.maximum(f.n - 1, 1)))
            for name, value, least in (("running_mean", mean, 1), ("running_var", var, 2)):
                known = n >= least
                new = np.where(known, value, 0).sum(0) / np.maximum(known.sum(0), 1)
                old = self.old[name]
                truth = np.where(known.any(0), (1 - momentum) * old + momentum * new, old)
                spread = np.sqrt(np.where(n > 0, f.var.reshape(n.shape), 0).max(0, initial=0))
                off = spread if least == 1 else np.abs(new)
                # the old value is widened to float32 at least, and moved there
                step = torch.finfo(torch.promote_types(inputs[name].dtype, torch.float32)).eps
                moved = np.abs(old) + momentum * np.where(known, np.abs(value), 0).max(0, initial=0)
                bound = self.exact * momentum * off + max(self.round, step) * moved
                fits = np.abs(new) <= torch.finfo(self.wide).max
                verdict.compare(
                    name, inputs[name], truth, np.nan_to_num(bound), inputs[name].dtype, fits | np.isnan(new)
                )

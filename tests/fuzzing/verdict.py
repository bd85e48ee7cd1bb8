"""What was found out about a case: broken promises, and how much of each bound was used."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fuzzing.calls import Case
from fuzzing.oracle import Array, exact


@dataclass
class Failure:
    case: str
    what: str  # which promise
    detail: str  # got and expected

    @property
    def kind(self) -> tuple[str, str]:
        """The norm and the promise."""
        return self.detail.split(" | ")[-1].split()[0], self.what

    def __str__(self) -> str:
        return f"--case {self.case}  {self.what}: {self.detail}"


@dataclass
class Verdict:
    case: Case
    failures: list[Failure] = field(default_factory=list)
    worst: dict[str, float] = field(default_factory=dict)  # error over bound

    def fail(self, what: str, detail: str) -> None:
        self.failures.append(Failure(self.case.name, what, f"{detail} | {self.case}"))

    def compare(
        self,
        what: str,
        got: Tensor,
        truth: Array,
        bound: Array,
        dtype: torch.dtype,
        judged: Array | None = None,
    ) -> None:
        """NaN where the truth is, infinite where it is too large, and else within the bound."""
        if tuple(got.shape) != truth.shape or got.dtype != dtype:
            self.fail(what, f"got {got.dtype} {tuple(got.shape)}, expected {dtype} {truth.shape}")
            return
        info = torch.finfo(dtype)
        value = exact(got)
        with np.errstate(all="ignore"):
            bound = bound + info.eps / 2 * (np.abs(truth) + bound)
            bound = bound + (
                info.smallest_normal if info.bits == 64 or info.max > 1e5 else info.eps * info.tiny
            )
            finite = np.isfinite(truth) & (np.abs(truth) + bound <= info.max)
            ratio = np.where(finite, np.abs(value - truth) / bound, 0)
            wrong = np.where(finite, ~(ratio <= 1), np.isnan(truth) != np.isnan(value))
        if judged is not None:
            wrong, ratio = wrong & judged, np.where(judged, ratio, 0)
        if wrong.any():
            at = np.unravel_index(
                int(np.argmax(np.where(wrong, np.nan_to_num(ratio, nan=np.inf), -1))), wrong.shape
            )
            times = f"{float(ratio[at]):.3g} times the bound" if np.isfinite(ratio[at]) else "not finite"
            place = tuple(int(i) for i in at)
            self.fail(
                what,
                f"got {float(value[at]):.9g} at {place}, expected {float(truth[at]):.9g}, {times}, "
                f"{int(wrong.sum())} of {wrong.size} numbers",
            )
        elif ratio.size:
            self.worst[what] = max(self.worst.get(what, 0.0), float(np.nanmax(ratio)))


def same_bits(a: Tensor, b: Tensor) -> bool:
    """NaN is NaN."""
    if not a.is_floating_point():
        return torch.equal(a, b)
    return bool(((a == b) | (a.isnan() & b.isnan())).all())

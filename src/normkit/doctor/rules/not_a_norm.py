"""Named as a norm, and none.

What it finds: a module whose class is called a norm, without statistics of its own, whose output follows
the scale of its input: 10 times as large when its input is, or its square, or its inverse.

Why it matters: whoever reads the model believes that the scale is taken care of.

Example:
    class RMSNorm(nn.Module):
        def forward(self, x): return x * self.weight           # the division was lost

Fix: divide by the root mean square; or name it for what it does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import torch
from torch import nn

from normkit.doctor.case import Case
from normkit.doctor.rule import Found
from normkit.inspect.spec import NotANormError, bare_copy, call

NAMED = re.compile(r"norm(?!al)|normali[sz]ation", re.IGNORECASE)
# Named so for good reasons: they scale by what they learnt, or measured once.
OTHERS = re.compile(
    r"frozen|act_?norm|weight_?norm|spectral|no_?norm|norm_?free|denorm|unnorm|data|affine|response", re.I
)


def check(case: Case) -> Iterator[Found]:
    for path, found in case.inspection.trace.not_norms.items():
        module = found.module
        kind = type(module).__name__
        if not NAMED.search(kind) or OTHERS.search(kind) or _has_statistics(module):
            continue
        ratio = _follows(module, found.shape)
        if ratio is not None:
            yield Found(
                where=path,
                measured=ratio,
                expected="1: the same output, whatever the scale of the input",
                message=f"{kind} gives outputs {ratio:.4g} times as large for inputs 100 times as large.",
                fix="divide by the root of the mean square, or name it for what it does.",
                line=found.line,
            )


def _has_statistics(module: nn.Module) -> bool:
    held = [n for n, b in module.named_buffers() if b.is_floating_point()]
    return bool(held) or any(hasattr(module, n) for n in ("running_mean", "mean", "std"))


def _follows(module: nn.Module, called_with: tuple[int, ...]) -> float | None:
    """How much larger the output is at 100 times the scale, if it is a power of it: x, x², 1/x."""
    width = next((p.shape[-1] for p in module.parameters() if p.ndim), 8)
    for shape in (called_with, (3, 4, width), (3, width, 4, 4)):
        generator = torch.Generator("cpu").manual_seed(0)
        x = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        try:
            with torch.no_grad():
                bare = bare_copy(module)
                zero, one, ten, hundred = (call(bare, x * k) for k in (0.0, 1.0, 10.0, 100.0))
        except NotANormError:
            continue
        if torch.equal(one, x) and not any(True for _ in module.parameters()):
            return None  # it is switched off
        sizes = [float((y - zero).std()) for y in (one, ten, hundred)]
        if not (sizes[0] > 0 and math.isfinite(sizes[2])):
            continue
        ten_times, hundred_times = sizes[1] / sizes[0], sizes[2] / sizes[0]
        is_power = math.isclose(hundred_times, ten_times**2, rel_tol=0.02)
        if is_power and not 0.5 < ten_times < 2:
            return hundred_times
    return None
